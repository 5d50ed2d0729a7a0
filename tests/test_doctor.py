"""What `verl-ext doctor` says of processes as users have them: taught, taught in part, or in want of something."""

import json
import os
import socket
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import processes
import pytest
import verl

from verl_ext import core, plugin
from verl_ext import doctor as diagnosis
from verl_ext.plugin import SITES

LOADING = ("VERL_USE_EXTERNAL_MODULES", "VERL_USE_EXTERNAL_PLUGINS", "VERL_EXT_DISABLE")
BY_VARIABLE = {"VERL_USE_EXTERNAL_MODULES": "verl_ext.autoload"}
WITH_ENTRY_POINTS = tuple(map(int, version("verl").split(".")[:2])) >= (0, 9)


def doctor(*arguments, first="", **environment):
    """Exit code and output of the command, in a process in which the code `first` ran before."""
    inherited = {name: value for name, value in os.environ.items() if name not in LOADING}
    done = processes.verl_ext("doctor", *arguments, env={**inherited, **environment}, first=first)
    return done.returncode, done.stdout, done.stderr


def unwrapped(text):
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("environment", "how"),
    [
        pytest.param(
            {},
            "loaded by entry point",
            marks=pytest.mark.skipif(not WITH_ENTRY_POINTS, reason="verl loads plugins by entry point since 0.9"),
        ),
        (BY_VARIABLE, "loaded by VERL_USE_EXTERNAL_MODULES"),
    ],
)
def test_a_taught_process_is_covered_and_every_site_is_named_within_80_columns(environment, how):
    code, out, _ = doctor(**environment)
    assert code == 0, out
    assert f"this process: {how}" in out
    assert f"verl {version('verl')}" in out
    assert f"\n  verl is {Path(verl.__file__).parent}\n" in out
    assert f"rows are read by {core.VERSION}" in unwrapped(out)
    lines = out.splitlines()
    assert all(len(line) <= 80 or line.startswith("  verl is ") for line in lines)  # a path is not broken
    named = [line[17:].split()[0] for line in lines if line[2:16].strip() in diagnosis.COVERED]
    assert named == list(SITES)
    assert "Every path of this verl is covered. Ray workers were not asked" in unwrapped(out)


def test_json_holds_the_same_and_nothing_else_is_printed():
    code, out, _ = doctor("--json", **BY_VARIABLE)
    found = json.loads(out)
    assert code == 0
    assert found["covered"] is True
    (process,) = found["processes"]
    assert process["versions"]["verl"] == version("verl")
    assert {site["name"]: site["module"] for site in process["sites"]} == SITES
    assert {site["state"] for site in process["sites"]} <= diagnosis.COVERED


NOT_LOADED = {
    "disabled": (
        {**BY_VARIABLE, "VERL_EXT_DISABLE": "1"},
        "loaded, and disabled by VERL_EXT_DISABLE=1 -> unset VERL_EXT_DISABLE",
    ),
    "plugins are off": (
        {"VERL_USE_EXTERNAL_PLUGINS": "none"},
        "not loaded: VERL_USE_EXTERNAL_PLUGINS=none -> unset VERL_USE_EXTERNAL_PLUGINS, or name verl_ext in it"
        if WITH_ENTRY_POINTS
        else "not loaded: this verl knows no entry points -> set VERL_USE_EXTERNAL_MODULES=verl_ext.autoload for the "
        "driver and the workers",
    ),
}


@pytest.mark.parametrize("case", NOT_LOADED)
def test_a_process_that_is_not_taught_is_not_covered_and_is_told_what_to_set(case):
    environment, said = NOT_LOADED[case]
    code, out, _ = doctor(**environment)
    assert code == 1
    assert said in unwrapped(out)
    assert "Not every path is covered" in out


def test_a_site_that_is_turned_off_is_not_covered_nor_what_needs_it():
    code, out, _ = doctor(**BY_VARIABLE, VERL_EXT_DISABLE="agent_loop")
    assert code == 1
    assert "! disabled agent_loop VERL_EXT_DISABLE=agent_loop -> unset VERL_EXT_DISABLE" in unwrapped(out)
    marked = [line.split()[2] for line in out.splitlines() if line.startswith("! disabled")]
    assert marked in (["agent_loop"], ["agent_loop", "fully_async"])


def test_a_name_that_is_no_patch_site_is_not_covered_and_is_said_once():
    code, out, err = doctor(**BY_VARIABLE, VERL_EXT_DISABLE="metric")
    assert code == 1
    assert "-> VERL_EXT_DISABLE names no patch site: metric" in unwrapped(out)
    assert err.count("names no patch site") == 1


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "no Ray cluster answers at '127.0.0.1:1': ConnectionRefusedError"),
        ("a..b:6379", "no Ray cluster answers at 'a..b:6379': UnicodeError"),
        ("127.0.0.1:²", r"'127.0.0.1:\xb2' is no address of a Ray cluster: write host:port"),
        ("", "'' is no address of a Ray cluster"),
    ],
)
def test_an_address_at_which_no_cluster_answers_is_one_line_and_exit_code_2(address, said):
    code, out, err = doctor("--address", address, **BY_VARIABLE)
    assert (code, out) == (2, "")
    (line,) = [line for line in err.splitlines() if line.startswith("verl-ext: ")]
    assert line.startswith(f"verl-ext: {said}")
    assert "Traceback" not in err


def test_a_verl_module_that_cannot_be_imported_is_named_with_the_reason_and_is_no_fault():
    code, out, _ = doctor(first="sys.modules['cachetools'] = None", **BY_VARIABLE)
    assert code == 0, out
    assert "not importable agent_loop" in unwrapped(out)
    assert "cachetools" in out


def test_without_verl_it_says_so():
    code, out, _ = doctor(first="sys.modules['verl'] = None")
    assert code == 1
    assert "verl cannot be imported: ModuleNotFoundError" in unwrapped(out)
    assert "-> install verl, 0.7.1 or newer" in out


# --- in this process -------------------------------------------------------------------------------------------------


@pytest.fixture
def unknown_metrics(monkeypatch):
    metrics = import_module(SITES["metrics"])  # which may be the first import of verl, that activates the plugin
    plugin.deactivate()
    monkeypatch.setattr(metrics, "process_validation_metrics", lambda theirs: {})
    plugin.activate()
    yield
    plugin.deactivate()
    monkeypatch.undo()
    plugin.activate()


def test_an_unknown_site_is_not_covered_and_names_the_switch(unknown_metrics):
    process = diagnosis.examine()
    (site,) = [site for site in process.sites if site.name == "metrics"]
    assert (site.state, process.covered) == ("unknown", False)
    assert "takes (theirs)" in site.detail
    assert "VERL_EXT_DISABLE=metrics" in site.remedy


def process(where, **versions):
    site = diagnosis.Site("protocol", SITES["protocol"], "active", "")
    return diagnosis.Process(where, "loaded", "", "verl", {"verl-ext": "1", "verl": "0.9.1", **versions}, (site,))


def test_processes_that_agree_are_told_once_and_different_versions_are_a_fault():
    alike = diagnosis.Diagnosis((process("this process"), process("node a"), process("node b")))
    assert alike.covered
    assert diagnosis.told(alike).count("protocol") == 1
    apart = diagnosis.Diagnosis((process("this process"), process("node a", **{"verl-ext": "2"})))
    assert not apart.covered
    assert "! different versions of verl-ext: 1, 2" in diagnosis.told(apart)
    assert apart.as_json()["differing"] == {"verl-ext": ["1", "2"]}


def test_nothing_that_a_report_quotes_breaks_its_lines():
    site = diagnosis.Site("protocol", SITES["protocol"], "unknown", "a" * 200 + " b" * 60, "c d " * 60)
    told = diagnosis.told(diagnosis.Diagnosis((diagnosis.Process("here", "loaded", sites=(site,)),)))
    assert all(len(line) <= 80 or "a" * 200 in line for line in told.splitlines())


# --- the address of a cluster ----------------------------------------------------------------------------------------


class Ray:
    """A double for Ray where it would connect: it notes the address, and may fail as Ray does."""

    def __init__(self, error=None):
        self.asked, self.error = [], error

    def init(self, address, **_):
        self.asked.append(address)
        if self.error is not None:
            raise self.error


@pytest.fixture
def ray(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_gcs_server_port_wait_time_s", "1")  # else it is set, and stays
    return Ray()


@pytest.fixture(params=["127.0.0.1", "::1"])
def listening(request):
    """An address at which something listens, in the way that Ray writes it."""
    host = request.param
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with server:
        port = server.getsockname()[1]
        yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_ray_is_asked_to_connect_where_something_listens_by_ipv4_and_by_ipv6(ray, listening, scheme):
    diagnosis._connect(ray, f"{scheme}{listening}", {})
    assert ray.asked == [f"{scheme}{listening}"]


@pytest.fixture
def remembered(monkeypatch):
    """What Ray finds, by its own function, where it is told no address."""
    from ray._private import services

    def remember(found):
        def canonicalize_bootstrap_address(address):
            if found is None and address == "auto":
                raise ConnectionError("Could not find any running Ray instance")
            return found

        monkeypatch.setattr(services, "canonicalize_bootstrap_address", canonicalize_bootstrap_address)

    return remember


def test_ray_starts_a_cluster_where_none_runs(ray, remembered):
    remembered(None)
    for address in (None, "local"):
        diagnosis._connect(ray, address, {})
    assert ray.asked == [None, "local"]
    with pytest.raises(diagnosis.NoClusterError, match="ConnectionError: Could not find any running"):
        diagnosis._connect(ray, "auto", {})


def test_ray_connects_to_the_cluster_that_runs_here_and_one_that_is_gone_is_said(ray, remembered, listening):
    remembered(listening)
    for address in (None, "auto"):
        diagnosis._connect(ray, address, {})
    assert ray.asked == [None, "auto"]
    remembered("127.0.0.1:1")
    for address in (None, "auto"):
        with pytest.raises(
            diagnosis.NoClusterError, match=r"answers at '127\.0\.0\.1:1': .* `ray stop` makes Ray forget"
        ):
            diagnosis._connect(ray, address, {})
    assert ray.asked == [None, "auto"]


@pytest.mark.parametrize(("address", "variable"), [(None, "a..b:1"), ("auto", "a..b:1"), (None, "127.0.0.1:1")])
def test_the_address_in_the_environment_is_looked_at_too(ray, monkeypatch, address, variable):
    monkeypatch.setenv("RAY_ADDRESS", variable)
    with pytest.raises(diagnosis.NoClusterError, match=f"no Ray cluster answers at '{variable}'"):
        diagnosis._connect(ray, address, {})
    assert ray.asked == []


def test_an_address_goes_before_the_one_in_the_environment(ray, monkeypatch, listening):
    monkeypatch.setenv("RAY_ADDRESS", "a..b:1")
    diagnosis._connect(ray, listening, {})
    assert ray.asked == [listening]


NO_ADDRESSES = [
    *("", " ", "nosuchhost", "::1", "[::1]", "::1:6379", "[::1:6379", "h:1:2", ":6379", "127.0.0.1:", "127.0.0.1:0"),
    *("127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:6379 ", " 127.0.0.1:6379", "127.0.0.1:1\n", "a b:1"),
    *("127.0.0.1:²", "127.0.0.1:\N{FULLWIDTH DIGIT SIX}", "127.0.0.1:1/x", "ray://", "http://127.0.0.1:1", "AUTO"),
]


@pytest.mark.parametrize("address", NO_ADDRESSES, ids=ascii)
def test_what_is_no_address_is_said_with_how_to_write_one(ray, address):
    with pytest.raises(
        diagnosis.NoClusterError, match=r"is no address of a Ray cluster: write host:port or \[IPv6"
    ) as said:
        diagnosis._connect(ray, address, {})
    assert str(said.value).isprintable()
    assert ray.asked == []


NOBODY = [
    "127.0.0.1:1",
    "[::1]:1",
    "ray://127.0.0.1:1",
    "a..b:6379",
    "é..é:1",
    f"{'x' * 70}.test:1",
    "ß\ud800:1",
    "\0:1",
]


@pytest.mark.parametrize("address", NOBODY, ids=lambda address: ascii(address)[:20])
def test_where_nobody_answers_the_reason_is_said_in_one_line(ray, address):
    with pytest.raises(diagnosis.NoClusterError, match=r"no Ray cluster answers at '.*: \w+: ") as said:
        diagnosis._connect(ray, address, {})
    assert str(said.value).isprintable()
    assert ray.asked == []


def test_what_ray_says_of_a_cluster_that_it_cannot_join_is_said_in_one_line(listening, ray):
    ray.error = ConnectionError("Failed to connect to Ray cluster\nand more")
    with pytest.raises(diagnosis.NoClusterError) as said:
        diagnosis._connect(ray, listening, {})
    expected = f"no Ray cluster answers at '{listening}': ConnectionError: Failed to connect to Ray cluster"
    assert str(said.value) == expected
    with pytest.raises(diagnosis.NoClusterError, match="Ray does not start: ConnectionError: Failed"):
        diagnosis._connect(ray, "local", {})
