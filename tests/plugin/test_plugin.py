"""The plugin's one mechanism: when a patch site is applied, what verl's functions are then, and how it is undone."""

import functools
import inspect
import json
import logging
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from functools import reduce
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest
from held import HELD

from verl_ext import plugin
from verl_ext.plugin import SITES, State
from verl_ext.plugin._site import REST, PatchSite, taught_by
from verl_ext.plugin._trial import unless

WITH_ENTRY_POINTS = tuple(map(int, version("verl").split(".")[:2])) >= (0, 9)
OF_SOME_VERSIONS = {
    "AgentLoopWorker._compute_score",
    "AgentLoopOutput.as_dict",
    "RayPPOTrainer._init_dump_executor",
    "RayPPOTrainer._write_generations",
    "RayPPOTrainer._dump_generations",
    *(["run_ppo"] if "main_ppo_sync" not in HELD else []),
}
"""Targets that are taught only where a verl has the fault, or the function: they have tests of their own."""
ABSENT = dict.fromkeys(SITES.keys() - HELD.keys(), "waiting")
TARGETS = [
    (name, patch.target)
    for name in HELD
    for patch in import_module(f"verl_ext.plugin.{name}").site._patches
    if patch.target not in OF_SOME_VERSIONS
]
NEEDED = {name for name, _ in TARGETS}
ALL_ACTIVE = {name: "active" if name in NEEDED else "not needed" for name in HELD} | ABSENT
ALL_OFF = dict.fromkeys(SITES, "disabled")


# --- what is looked at, in this process and in others ----------------------------------------------------------------


def states():
    return {site.name: site.state.value for site in plugin.status()}


def standing(module, target):
    """What stands at a dotted name: a function, or a static or class method."""
    *path, name = target.split(".")
    return vars(reduce(getattr, path, module)).get(name)


def function_at(name, target):
    found = standing(sys.modules[SITES[name]], target)
    return getattr(found, "__func__", found)


def marks():
    """By site, the marks on all of verl's functions that it teaches and that are imported."""
    imported = [(name, target) for name, target in TARGETS if SITES[name] in sys.modules]
    return {name: {taught_by(function_at(site, target)) for site, target in imported if site == name} for name in HELD}


TAUGHT = {name: {name} & NEEDED for name in HELD}
STOCK = {name: {None for _ in {name} & NEEDED} for name in HELD}


def in_new_process(code, path=(), **environment):
    """What `code` leaves in `result`, from a Python of its own with no setting of verl's plugins but `environment`."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("VERL_EXT", "VERL_USE_EXTERNAL"))
    }
    prelude = f"import sys, logging, json; sys.path[:0] = {[*map(str, path)]!r}; result = None\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(code) + "\nprint(json.dumps(result))"],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


HERE = [Path(__file__).parent]
LOOK = """
def look():
    from test_plugin import marks, states
    return [states(), {name: [*found] for name, found in marks().items()}]
"""


NEED_PROTOCOL = [name for name in ("agent_loop", "fully_async") if name in HELD]


def seen(states, marks):
    """As `look` tells it, by JSON."""
    return [states, {name: [*found] for name, found in marks.items()}]


# --- when the plugin is activated ------------------------------------------------------------------------------------


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
        from test_plugin import HELD, TARGETS, standing
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
        """
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


def who_teaches_concat():
    """Asked of a child process."""
    import verl

    return taught_by(verl.DataProto.concat)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_process_is_taught_as_its_parent_is(method):
    found = in_new_process(
        f"""
        import multiprocessing
        import verl
        from test_plugin import who_teaches_concat
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


# --- in this process, on real verl -----------------------------------------------------------------------------------


@pytest.fixture
def taught_verl(monkeypatch):
    """Every module that a site is for, taught; and taught again after the test, whatever it did."""
    monkeypatch.delenv(plugin.DISABLE, raising=False)
    for module in HELD.values():
        import_module(module)
    plugin.activate()
    yield
    monkeypatch.undo()
    plugin.deactivate()
    plugin.activate()


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


@pytest.mark.parametrize("setting", ["", "0", "false", "No", " off "])
def test_these_settings_of_verl_ext_disable_leave_the_plugin_on(setting, taught_verl, monkeypatch):
    plugin.deactivate()
    monkeypatch.setenv(plugin.DISABLE, setting)
    plugin.activate()
    assert states() == ALL_ACTIVE
    assert marks() == TAUGHT


@pytest.mark.parametrize("setting", ["1", "true", "YES", "on", " all "])
def test_these_settings_of_verl_ext_disable_turn_every_site_off(setting, taught_verl, monkeypatch):
    plugin.deactivate()
    monkeypatch.setenv(plugin.DISABLE, setting)
    plugin.activate()
    assert states() == ALL_OFF
    assert marks() == STOCK
    assert {report.detail for report in plugin.status()} == {f"VERL_EXT_DISABLE={setting}"}


@pytest.mark.parametrize("setting", ["reward_loop", " Reward_Loop ,"])
def test_verl_ext_disable_turns_single_sites_off_by_name(setting, taught_verl, monkeypatch):
    plugin.deactivate()
    monkeypatch.setenv(plugin.DISABLE, setting)
    plugin.activate()
    assert states() == {**ALL_ACTIVE, "reward_loop": "disabled"}
    assert marks() == {**TAUGHT, "reward_loop": {None}}


def test_an_unknown_name_in_verl_ext_disable_is_a_warning_that_lists_the_sites(taught_verl, monkeypatch, caplog):
    plugin.deactivate()
    monkeypatch.setenv(plugin.DISABLE, "nonsense,protocol")
    plugin.activate()
    assert states() == {**ALL_ACTIVE, "protocol": "disabled", **dict.fromkeys(NEED_PROTOCOL, "disabled")}
    warning = next(record for record in caplog.records if record.levelno == logging.WARNING)
    assert "['nonsense']" in warning.getMessage()
    assert all(name in warning.getMessage() for name in SITES)


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


@pytest.mark.parametrize(("name", "target"), TARGETS)
def test_a_taught_function_keeps_its_names_signature_and_kind_and_pickles_by_reference(name, target, taught_verl):
    taught = function_at(name, target)
    kind = type(standing(sys.modules[SITES[name]], target))
    assert taught_by(taught) == name
    attribute = reduce(getattr, target.split("."), sys.modules[SITES[name]])
    assert pickle.loads(pickle.dumps(attribute)) == attribute  # noqa: S301
    if kind is not classmethod:  # whose functions cloudpickle sends by value, those of stock verl too
        assert cloudpickle.loads(cloudpickle.dumps(attribute)) is attribute

    plugin.deactivate()
    stock = function_at(name, target)
    assert taught is not stock
    assert taught_by(stock) is None
    assert type(standing(sys.modules[SITES[name]], target)) is kind
    assert inspect.signature(taught) == inspect.signature(stock)
    assert inspect.iscoroutinefunction(taught) == inspect.iscoroutinefunction(stock)
    for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(taught, attribute) == getattr(stock, attribute)


# --- what each site expects of verl ----------------------------------------------------------------------------------


def test_every_file_of_the_plugin_holds_the_site_that_is_listed_under_its_name():
    files = {file.stem for file in Path(plugin.__file__).parent.glob("*.py") if not file.stem.startswith("_")}
    assert files == set(SITES)
    for name, module in SITES.items():
        site = import_module(f"verl_ext.plugin.{name}").site
        assert (site.name, site.module) == (name, module)
        assert site.purpose


def vanished(patch, found):
    return None


def renamed_parameter(patch, found):
    function = getattr(found, "__func__", found)
    parameters = inspect.signature(function).parameters.values()
    last_known = next(name for name in reversed(patch.parameters) if name != REST)
    renamed = [p.replace(name="renamed") if p.name == last_known else p for p in parameters]
    return _like(found, lambda *args, **kwargs: None, inspect.Signature(renamed))


def plain_instead_of_coroutine_or_the_other_way_round(patch, found):
    function = getattr(found, "__func__", found)

    def plain(*args, **kwargs): ...

    async def coroutine(*args, **kwargs): ...

    other = plain if inspect.iscoroutinefunction(function) else coroutine
    return _like(found, other, inspect.signature(function))


def _like(found, function, signature):
    function.__signature__ = signature
    return type(found)(function) if isinstance(found, staticmethod | classmethod) else function


LEFT_OUT = {
    (name, patch.target)
    for name in HELD
    for patch in import_module(f"verl_ext.plugin.{name}").site._patches
    if not patch.vital
}
"""Functions that some clones of verl lack, and without which no value is lost: their site is applied without them."""

CHANGES = [
    (name, target, change)
    for name, target in TARGETS
    for change in (vanished, renamed_parameter, plain_instead_of_coroutine_or_the_other_way_round)
    if (change, target) != (renamed_parameter, "get_ppo_ray_runtime_env")  # all of its parameters are handed on
    if change is not vanished or (name, target) not in LEFT_OUT
]


@pytest.mark.parametrize(("name", "target", "change"), CHANGES)
def test_a_site_whose_verl_function_changed_is_off_as_a_whole_and_says_which(name, target, change, taught_verl, caplog):
    plugin.deactivate()
    site = import_module(f"verl_ext.plugin.{name}").site
    # The module as it is, but for classes of the same name that hold nothing but the functions the site teaches.
    module = ModuleType(site.module)
    vars(module).update(vars(sys.modules[site.module]))
    for patch in site._patches:
        *path, attribute = patch.target.split(".")
        found = standing(sys.modules[site.module], patch.target)
        if found is not None:
            place(module, path, attribute, change(patch, found) if patch.target == target else found)
    before = contents(module)

    site = PatchSite(site.name, site.module, site.purpose, State.WAITING, _patches=list(site._patches))
    site.apply(module)

    assert site.state is State.UNKNOWN
    assert target in site.detail
    assert contents(module) == before
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert all(part in caplog.text for part in (site.module, target, site.purpose))
    assert marks() == STOCK


def place(module, path, attribute, value):
    owner = module
    if path:
        owner = vars(module).get(path[0])
        if owner is None or getattr(owner, "__module__", None) != __name__:
            owner = type(path[0], (), {"__module__": __name__})
            setattr(module, path[0], owner)
    if value is not None:
        setattr(owner, attribute, value)
    elif not path:
        delattr(owner, attribute)


def contents(module):
    """All that a module and the classes of this file in it hold: functions compare by identity."""
    classes = [value for value in vars(module).values() if getattr(value, "__module__", "") == __name__]
    return [dict(vars(module)), *(dict(vars(found)) for found in classes if isinstance(found, type))]


# --- the mechanism alone, on a module made up for it -----------------------------------------------------------------


def made_up_module():
    class Batch:
        @staticmethod
        def concat(data):
            return [f"stock {item}" for item in data]

        @classmethod
        def load(cls, path):
            return cls, path

        def union(self, other):
            return self, other

        async def score(self, data):
            return data

    def advantages(scores, mask=None):
        return scores

    module = ModuleType("verl.made_up")
    module.Batch, module.advantages = Batch, advantages
    return module


def made_up_site(name="made_up"):
    site = PatchSite(name, "verl.made_up", "rows are lost", State.WAITING)

    @site.wraps("Batch.concat", "data")
    def _concat(stock):
        return lambda data: [f"taught {item}" for item in stock(data)]

    @site.wraps("Batch.load", "cls", "path")
    def _load(stock):
        return lambda cls, path: ("taught", *stock(cls, path))

    @site.wraps("Batch.union", "self", "other")
    def _union(stock):
        return lambda self, other: ("taught", *stock(self, other))

    @site.wraps("advantages", "scores", "mask")
    def _advantages(stock):
        return lambda scores, mask=None: ("taught", stock(scores, mask))

    @site.wraps("Batch.score", "self", "data")
    def _score(stock):
        async def score(self, data):
            return "taught", await stock(self, data)

        return score

    return site


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


def test_functions_methods_static_and_class_methods_are_taught_and_undone():
    module, site = made_up_module(), made_up_site()
    before = contents(module)
    site.apply(module)
    batch = module.Batch()
    assert module.Batch.concat([1]) == batch.concat([1]) == ["taught stock 1"]
    assert module.Batch.load("x") == ("taught", module.Batch, "x")
    assert batch.union(2) == ("taught", batch, 2)
    assert module.advantages(3) == ("taught", 3)
    with pytest.raises(StopIteration) as returned:
        batch.score(4).send(None)
    assert returned.value.value == ("taught", 4)

    site.undo()
    assert contents(module) == before
    assert site.state is State.DISABLED


def test_applying_twice_or_undoing_twice_changes_nothing():
    module, site = made_up_module(), made_up_site()
    before = contents(module)
    site.apply(module)
    taught = contents(module)
    site.apply(module)
    assert contents(module) == taught
    site.undo()
    site.undo()
    assert contents(module) == before


def test_a_function_that_others_hold_by_value_is_taught_and_undone_there_too(monkeypatch):
    module, site = made_up_module(), made_up_site()
    stock = module.advantages
    module.REGISTRY = {"gae": stock, "other": len}
    reader, stranger = ModuleType("verl.reader"), ModuleType("stranger")
    reader.advantages, stranger.advantages = stock, len
    for other in (reader, stranger):
        monkeypatch.setitem(sys.modules, other.__name__, other)

    site.apply(module)
    assert reader.advantages is module.REGISTRY["gae"] is module.advantages is not stock
    site.undo()
    assert reader.advantages is module.REGISTRY["gae"] is module.advantages is stock
    assert stranger.advantages is module.REGISTRY["other"] is len


def test_a_parameter_that_verl_adds_at_the_end_is_known_only_to_a_patch_that_hands_the_rest_on():
    for parameters, state in ((("scores", "mask"), State.UNKNOWN), (("scores", "mask", REST), State.ACTIVE)):
        module = made_up_module()
        module.advantages = lambda scores, mask=None, gamma=1.0: scores
        site = PatchSite("made_up", module.__name__, "nothing", State.WAITING)
        site.wraps("advantages", *parameters)(lambda stock: lambda *args, **kwargs: stock(*args, **kwargs))
        site.apply(module)
        assert site.state is state


def a_number(module):
    module.advantages = 3


def no_class(module):
    del module.Batch


def a_number_for_a_class(module):
    module.Batch = 3


def a_property(module):
    module.Batch.union = property(lambda self: None)


def moved_to_a_base_class(module):
    module.Batch = type("Batch", (module.Batch,), {})


def no_known_signature(module):
    module.advantages = min


def plain_for_coroutine(module):
    module.Batch.score = lambda self, data: data


def coroutine_for_plain(module):
    async def advantages(scores, mask=None): ...

    module.advantages = advantages


def fewer_parameters(module):
    module.Batch.union = lambda self: None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (a_number, "advantages is no function"),
        (no_class, "Batch.concat is not there"),
        (a_number_for_a_class, "Batch.concat is not there"),
        (a_property, "Batch.union is no function"),
        (moved_to_a_base_class, "Batch.concat is not there"),
        (no_known_signature, "advantages does not tell its parameters"),
        (plain_for_coroutine, "Batch.score changed between plain and coroutine function"),
        (coroutine_for_plain, "advantages changed between plain and coroutine function"),
        (fewer_parameters, "Batch.union takes (self), not (self, other)"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_the_site_was_not_written_for_leaves_every_function_as_it_is_and_is_said(change, said, caplog):
    module, site = made_up_module(), made_up_site()
    change(module)
    before = contents(module)
    site.apply(module)
    assert (site.state, site.detail) == (State.UNKNOWN, said)
    assert contents(module) == before
    message = (
        f"verl.made_up is not what this version knows ({said}). Its patch site 'made_up' stays off, so rows are lost."
    )
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, f"verl-ext: {message}")
    ]


def test_an_error_while_a_function_is_taught_names_it_shows_its_traceback_and_undoes_the_others(caplog):
    module, site = made_up_module(), made_up_site()

    @site.wraps("Batch.__init__", "self")
    def _init(stock):
        return stock.__wrapped__

    module.Batch.__init__ = lambda self: None
    before = contents(module)
    site.apply(module)
    assert site.state is State.UNKNOWN
    assert "Batch.__init__ cannot be taught: AttributeError(" in site.detail
    assert contents(module) == before
    assert "stock.__wrapped__" in caplog.text


def test_an_error_while_a_site_asks_whether_it_is_needed_is_reported_and_never_raised(caplog):
    module, site = made_up_module(), made_up_site()
    site.wraps("Batch.gone", needed=lambda found: found.Gone.fields)(lambda stock: stock)
    before = contents(module)
    site.apply(module)
    assert site.state is State.UNKNOWN
    assert "Gone" in site.detail
    assert contents(module) == before
    assert "Traceback" in caplog.text


def test_a_patch_that_is_not_needed_is_left_out_and_status_says_so():
    module, site = made_up_module(), made_up_site()
    site.wraps("Batch.gone", needed=lambda found: False)(lambda stock: stock)
    site.apply(module)
    assert site.state is State.ACTIVE
    assert site.detail.endswith("Batch.score, Batch.gone (not needed)")


def test_a_patch_without_which_no_value_is_lost_is_left_out_where_there_is_no_such_function():
    module, site = made_up_module(), made_up_site()
    site.wraps("Batch.gone", vital=False)(lambda stock: stock)
    site.apply(module)
    assert site.state is State.ACTIVE
    assert site.detail.endswith("Batch.score, Batch.gone (not there)")


def test_a_function_that_moved_to_a_base_class_is_unknown_code_although_no_value_is_lost_without_it():
    module, site = made_up_module(), PatchSite("made_up", "verl.made_up", "rows are lost", State.WAITING)
    site.wraps("Batch.union", "self", "other", vital=False)(lambda stock: stock)
    moved_to_a_base_class(module)
    site.apply(module)
    assert (site.state, site.detail) == (State.UNKNOWN, "Batch.union is not there")


def test_patches_that_hang_together_ask_verls_module_once():
    asked = []

    def works(module):
        asked.append(module)
        return False

    module, site = made_up_module(), PatchSite("made_up", "verl.made_up", "rows are lost", State.WAITING)
    for target, parameters in (("Batch.union", ("self", "other")), ("advantages", ("scores", "mask"))):
        site.wraps(target, *parameters, needed=unless(works))(lambda stock: lambda *args: stock(*args))
    site.apply(module)
    assert (site.state, site.detail) == (State.ACTIVE, "Batch.union, advantages")
    assert asked == [module]


def test_a_second_patch_of_the_same_function_is_refused_by_name(caplog):
    module, first, second = made_up_module(), made_up_site("first"), made_up_site("second")
    first.apply(module)
    taught = contents(module)
    second.apply(module)
    assert second.state is State.UNKNOWN
    assert second.detail == "Batch.concat is taught already, by the site 'first'"
    assert second.detail in caplog.text
    assert contents(module) == taught


@pytest.mark.parametrize("wraps", [functools.wraps, lambda function: lambda wrapper: wrapper])
def test_a_function_that_others_wrapped_since_acts_as_verls_own_inside_theirs_while_the_site_is_off(wraps):
    module, site = made_up_module(), made_up_site()
    before = contents(module)
    site.apply(module)
    ours = module.Batch.concat

    @wraps(ours)
    def theirs(data):
        return ["theirs", *ours(data)]

    module.Batch.concat = theirs_standing = staticmethod(theirs)

    assert module.Batch.concat([1]) == ["theirs", "taught stock 1"]
    site.undo()
    assert module.Batch.concat([1]) == ["theirs", "stock 1"]
    assert standing(module, "Batch.concat") is theirs_standing
    module.Batch.concat = before[1]["concat"]
    assert contents(module) == before


def test_a_function_that_others_wrapped_before_is_wrapped_with_theirs_inside_and_theirs_comes_back():
    module, site = made_up_module(), made_up_site()
    stock = module.Batch.union

    @functools.wraps(stock)
    def theirs(self, other):
        return ("theirs", *stock(self, other))

    module.Batch.union = theirs
    site.apply(module)
    assert module.Batch.union(1, 2) == ("taught", "theirs", 1, 2)
    site.undo()
    assert module.Batch.union is theirs


def test_activation_again_under_the_wrapper_of_others_wraps_nothing_twice():
    module, site = made_up_module(), made_up_site()
    site.apply(module)
    ours = module.Batch.union

    @functools.wraps(ours)
    def theirs(self, other):
        return ("theirs", *ours(self, other))

    module.Batch.union = theirs
    site.undo()
    site.state = State.WAITING
    site.apply(module)
    assert site.state is State.ACTIVE
    assert module.Batch.union is theirs
    assert module.Batch.union(1, 2) == ("theirs", "taught", 1, 2)


def test_activation_again_under_a_wrapper_that_hides_ours_acts_once():
    module, site = made_up_module(), made_up_site()
    site.apply(module)
    ours = module.Batch.union
    module.Batch.union = lambda self, other: ("theirs", *ours(self, other))
    site.undo()
    site.state = State.WAITING
    site.apply(module)
    assert module.Batch.union(1, 2) == ("taught", "theirs", 1, 2)


def test_subclasses_that_were_defined_before_activation_are_taught_by_what_they_inherit_and_call():
    module, site = made_up_module(), made_up_site()

    class Inherits(module.Batch): ...

    class Overrides(module.Batch):
        def union(self, other):
            return ("own", *super().union(other))

    site.apply(module)
    batch, other = Inherits(), object()
    assert batch.union(other) == ("taught", batch, other)
    own = Overrides()
    assert own.union(other) == ("own", "taught", own, other)
    site.undo()
    assert own.union(other) == ("own", own, other)
