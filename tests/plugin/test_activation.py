"""When verl's modules are patched: on import, on activation, in child processes, by several threads at once."""

import sys
import threading
import time
from collections import Counter
from importlib import import_module
from types import ModuleType

import pytest
from held import HELD
from patched import (
    ALL_ACTIVE,
    ALL_OFF,
    HERE,
    LOOK,
    STOCK,
    TARGETS,
    TAUGHT,
    WITH_ENTRY_POINTS,
    function_at,
    in_new_process,
    in_new_python,
    marks,
    seen,
    states,
)

from verl_ext import plugin
from verl_ext.plugin import SITES, State
from verl_ext.plugin._site import PatchSite


@pytest.mark.skipif(not WITH_ENTRY_POINTS, reason="verl loads plugins by entry point since 0.9")
def test_importing_verl_teaches_each_module_as_soon_as_it_is_imported():
    imported, first, then = in_new_process(
        f"sites = {HELD!r}\n"
        + LOOK
        + """
        import verl
        first = look()
        imported = [name for name, module in sites.items() if module in sys.modules]
        from importlib import import_module
        for module in sites.values():
            import_module(module)
        result = [imported, first, look()]
        """.replace("\n        ", "\n"),
        HERE,
    )
    assert {"protocol"} <= set(imported) < set(HELD)
    assert first[0] == {name: ALL_ACTIVE[name] if name in imported else "waiting" for name in SITES}
    assert then == seen(ALL_ACTIVE, TAUGHT)


def test_only_activation_teaches_modules_that_are_imported_already_and_deactivation_puts_the_same_objects_back():
    states_and_marks, same = in_new_process(
        LOOK
        + """
        from importlib import import_module
        import verl_ext
        from patched import HELD, TARGETS, standing
        modules = {name: import_module(module) for name, module in HELD.items()}
        def objects():
            return [standing(modules[name], target) for name, target in TARGETS]
        verls_own = objects()
        story = [look()]
        import verl_ext.autoload
        story.append(look())
        verl_ext.plugin.deactivate()
        story.append(look())
        same = all(now is before for now, before in zip(objects(), verls_own, strict=True))
        verl_ext.plugin.activate()
        story.append(look())
        result = [story, same]
        """.replace("\n        ", "\n"),
        HERE,
        VERL_USE_EXTERNAL_PLUGINS="none",
    )
    assert states_and_marks == [
        seen(ALL_OFF, STOCK),
        seen(ALL_ACTIVE, TAUGHT),
        seen(ALL_OFF, STOCK),
        seen(ALL_ACTIVE, TAUGHT),
    ]
    assert same


def test_autoload_before_verl_waits_for_it_and_imports_none_of_it():
    states, imported = in_new_process(
        """
        import verl_ext.autoload
        from verl_ext import plugin
        states = {site.name: site.state.value for site in plugin.status()}
        result = [states, sorted({"verl", "torch", "ray", "tensordict"} & set(sys.modules))]
        """,
        start=in_new_python,
    )
    assert states == dict.fromkeys(SITES, "waiting")
    assert imported == []


def test_verl_use_external_modules_activates_where_entry_points_are_off():
    mark = in_new_process(
        """
        import verl
        from verl_ext.plugin._site import taught_by
        result = taught_by(verl.DataProto.concat)
        """,
        VERL_USE_EXTERNAL_PLUGINS="none",
        VERL_USE_EXTERNAL_MODULES="verl_ext.autoload",
    )
    assert mark == "protocol"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_process_is_taught_as_its_parent_is(method):
    found = in_new_process(
        f"""
        import multiprocessing
        import verl
        from patched import who_teaches_concat
        with multiprocessing.get_context({method!r}).Pool(1) as pool:
            result = [who_teaches_concat(), pool.apply(who_teaches_concat)]
        """,
        HERE,
        VERL_USE_EXTERNAL_MODULES="verl_ext.autoload",
    )
    assert found == ["protocol", "protocol"]


@pytest.mark.skipif(not WITH_ENTRY_POINTS, reason="verl loads plugins by entry point since 0.9")
def test_a_failure_of_autoload_is_an_error_in_the_log_although_verl_swallows_it():
    records = in_new_process(
        """
        class Keep(logging.Handler):
            def emit(self, record):
                result.append([record.levelname, record.getMessage(), str(record.exc_info[1])])

        result = []
        logging.getLogger("verl_ext").addHandler(Keep())
        sys.modules["verl_ext.plugin"] = None  # what a broken installation comes to
        import verl
        verl.DataProto
        """
    )
    assert len(records) == 1
    level, message, cause = records[0]
    assert level == "ERROR"
    assert "verl-ext could not be activated" in message
    assert "verl_ext.plugin" in cause


def test_the_import_of_a_verl_without_any_function_that_we_know_does_not_break_and_is_reported(tmp_path):
    for module in SITES.values():
        file = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        for package in file.relative_to(tmp_path).parents[:-1]:
            (tmp_path / package / "__init__.py").touch()
        file.write_text("class DataProto: ...\nwhole = True\n")
    records, whole, reports = in_new_process(
        """
        from importlib import import_module

        class Keep(logging.Handler):
            def emit(self, record):
                records.append([record.levelname, record.getMessage()])

        records = []
        logging.getLogger("verl_ext").addHandler(Keep())
        import verl_ext.autoload
        from verl_ext.plugin import SITES, status
        whole = [import_module(module).whole for module in SITES.values()]
        result = [records, whole, [[site.state.value, site.detail] for site in status()]]
        """,
        [tmp_path],
    )
    assert all(whole)
    assert [state for state, _ in reports] == ["unknown"] * len(SITES)
    for (name, module), (_, detail), (level, message) in zip(SITES.items(), reports, records, strict=True):
        assert level == "WARNING"
        assert f"{module} is not what this version knows ({detail})" in message
        assert f"{name!r} stays off" in message
        assert "is not there" in detail


def test_activating_again_changes_nothing(taught_verl):
    before = [function_at(name, target) for name, target in TARGETS]
    reports = plugin.status()
    plugin.activate()
    assert all(function_at(*where) is function for where, function in zip(TARGETS, before, strict=True))
    assert plugin.status() == reports


def test_status_names_every_site_its_module_and_the_functions_that_it_teaches(taught_verl):
    reports = plugin.status()
    assert {report.name: report.module for report in reports} == SITES
    assert states() == ALL_ACTIVE
    assert all(report.stands == (report.name in HELD) for report in reports)
    for report in reports:
        assert {target for name, target in TARGETS if name == report.name} <= set(report.detail.split(", "))

    plugin.deactivate()
    assert [(report.state, report.detail) for report in plugin.status()] == [(State.DISABLED, "not activated")] * len(
        SITES
    )


def test_threads_that_activate_at_once_apply_each_patch_once(taught_verl, monkeypatch):
    plugin.deactivate()
    applied = []
    teach = PatchSite._taught

    def counted(site, patch, function):
        applied.append((site.name, patch.target))
        return teach(site, patch, function)

    def slow_import(name):
        time.sleep(0.01)
        return import_module(name)

    monkeypatch.setattr(plugin, "_sites", {})  # as in a new process
    monkeypatch.setattr(PatchSite, "_taught", counted)
    monkeypatch.setattr(plugin, "import_module", slow_import)
    together = threading.Barrier(8)
    threads = [threading.Thread(target=lambda: (together.wait(), plugin.activate()), daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    assert states() == ALL_ACTIVE
    assert marks() == TAUGHT
    assert set(TARGETS) <= set(applied)
    assert set(Counter(applied).values()) == {1}


def test_a_module_that_another_thread_is_importing_is_taught_once_it_is_whole(tmp_path, monkeypatch):
    gate = ModuleType("gate_of_verl_made_up")
    gate.reached, gate.opened = threading.Event(), threading.Event()
    (tmp_path / "verl_made_up.py").write_text(
        "import gate_of_verl_made_up as gate\ngate.reached.set()\ngate.opened.wait(60)\ndef late(data): ...\n"
    )
    site = PatchSite("made_up", "verl_made_up", "rows are lost")
    site.wraps("late", "data")(lambda stock: lambda data: "taught")
    home = ModuleType("verl_ext.plugin.made_up")
    home.site = site
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, gate.__name__, gate)
    monkeypatch.setitem(sys.modules, home.__name__, home)
    monkeypatch.setattr(plugin, "SITES", {site.name: site.module})
    monkeypatch.setattr(plugin, "_sites", {})

    importer = threading.Thread(target=import_module, args=[site.module], daemon=True)
    activator = threading.Thread(target=plugin.activate, daemon=True)
    importer.start()
    assert gate.reached.wait(60)
    activator.start()
    activator.join(0.2)
    assert not hasattr(sys.modules[site.module], "late")
    gate.opened.set()
    importer.join(60)
    activator.join(60)

    assert (site.state, site.detail) == (State.ACTIVE, "late")
    assert sys.modules.pop(site.module).late(None) == "taught"
