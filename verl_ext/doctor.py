"""What `verl-ext doctor` finds out: whether, in this process and in Ray's workers, every path of verl is covered.

It looks at what is there after `import verl`, as a training process would find it; it changes nothing.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from textwrap import TextWrapper
from typing import Any

from verl_ext import __version__, core
from verl_ext.errors import VerlExtError, shown
from verl_ext.plugin import DISABLE, SITES, SiteStatus, State, status, unknown_names
from verl_ext.plugin.runtime_env import AUTOLOAD, MODULES, PLUGINS, has_entry_points

ABSENT = "absent"
NOT_IMPORTABLE = "not importable"

COVERED = {State.ACTIVE.value, State.NOT_NEEDED.value, ABSENT, NOT_IMPORTABLE}
"""The states in which a user loses nothing: the site stands, or nobody can take its path."""

_PACKAGES = ("verl", "ray", "torch", "tensordict", "numpy")
_PATIENCE = 300.0


@dataclass(frozen=True)
class Site:
    """One patch site in one process: its state (of `State`, or absent, or not importable), why, and what to do."""

    name: str
    module: str
    state: str
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class Process:
    """What one process has: where it runs, how it loaded the plugin, which verl and core, versions, and every site."""

    where: str
    loaded: str
    remedy: str = ""
    verl: str = ""  # the directory that it was imported from: a clone may lie before the installed one
    versions: dict[str, str | None] = field(default_factory=dict)
    sites: tuple[Site, ...] = ()
    core: str = core.VERSION

    @property
    def covered(self) -> bool:
        """Whether every path of verl that can be taken in this process is covered."""
        return bool(self.sites) and not self.remedy and all(site.state in COVERED for site in self.sites)


@dataclass(frozen=True)
class Diagnosis:
    """This process, and a fresh Ray worker on each node, where they were asked for."""

    processes: tuple[Process, ...]

    @property
    def covered(self) -> bool:
        """Whether all processes are covered, by the same versions of verl and verl-ext."""
        return all(process.covered for process in self.processes) and not self.differing

    @property
    def differing(self) -> dict[str, list[str]]:
        """The packages of which the processes have different versions, where that matters."""
        found = {
            package: list(dict.fromkeys(str(process.versions.get(package)) for process in self.processes))
            for package in ("verl-ext", "verl")
        }
        return {package: versions for package, versions in found.items() if len(versions) > 1}

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "covered": self.covered,
            "differing": self.differing,
            "processes": [{**asdict(process), "covered": process.covered} for process in self.processes],
        }


def examine(where: str = "this process") -> Process:
    """What this process has; it imports verl, and every verl module that a patch site is for."""
    with warnings.catch_warnings(), redirect_stdout(sys.stderr):  # what others print is no part of a report
        warnings.simplefilter("ignore")
        try:
            import verl  # it loads the plugin, or does not
        except Exception as error:
            missing = isinstance(error, ModuleNotFoundError) and error.name == "verl"
            remedy = "install verl, 0.7.1 or newer" if missing else "mend that first: `import verl` in a Python shell"
            return Process(where, f"verl cannot be imported: {_said(error)}", remedy, versions=_versions())
        errors = {name: _import_error(module) for name, module in SITES.items()}
    loaded, remedy = _how_loaded()
    sites = tuple(_site(report, errors[report.name], {} if remedy else _REMEDIES) for report in status())
    versions = _versions() | {"verl": str(getattr(verl, "__version__", "of no version"))}
    return Process(where, loaded, remedy, ", ".join(getattr(verl, "__path__", ())), versions, sites)


def examine_nodes(address: str | None) -> Iterator[Process]:
    """What a fresh Ray worker has, on each node of the cluster; with the environment that verl gives its workers.

    Args:
        address: of a running cluster; `None` for the one that `RAY_ADDRESS` names, or a local one made for this.

    Raises:
        NoClusterError: the address is none, or no cluster answers there.
    """
    try:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
        from verl.trainer import constants_ppo
    except Exception as error:
        yield Process("Ray workers", f"cannot be asked: {_said(error)}", "mend that first")
        return

    def look(where: str) -> Any:
        # Nested on purpose: Ray sends it by value, so that it runs where verl-ext is not even installed.
        import contextlib

        with contextlib.suppress(ImportError):  # the examination says it
            import verl  # noqa: F401 - as a worker of verl's does, before anything of verl-ext
        try:
            from verl_ext.doctor import examine
        except ImportError as error:
            return f"verl-ext cannot be imported: {error}"
        return examine(where)

    ours = not ray.is_initialized()
    if ours:
        _connect(ray, address, constants_ppo.get_ppo_ray_runtime_env())
    try:
        asked = {}
        for node in ray.nodes():
            if node["Alive"]:
                where = f"Ray worker on {node['NodeManagerAddress']}, node {node['NodeID'][:8]}"
                here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                asked[where] = ray.remote(look).options(num_cpus=0, scheduling_strategy=here).remote(where)
        for where, reference in asked.items():
            try:
                found = ray.get(reference, timeout=_PATIENCE)
            except ray.exceptions.RayError as error:
                found = f"no answer: {_said(error)}"
            remedy = f"install verl-ext {__version__} there"
            yield found if isinstance(found, Process) else Process(where, found, remedy)
    finally:
        if ours:
            ray.shutdown()


# --- in words ----------------------------------------------------------------------------------------------------

_WIDTH = 80
_INDENT = " " * 33


def told(found: Diagnosis) -> str:
    """A diagnosis as plain text, 80 columns wide; of processes that agree in everything, once."""
    alike: dict[str, list[Process]] = {}
    for process in found.processes:
        alike.setdefault(repr(replace(process, where="")), []).append(process)
    parts = [_process_told([process.where for process in processes], processes[0]) for processes in alike.values()]
    for package, versions in found.differing.items():
        parts.append(f"! different versions of {package}: {', '.join(versions)}\n  -> install the same one everywhere")
    asked = "" if len(found.processes) > 1 else " Ray workers were not asked: --ray does."
    verdict = (
        "Every path of this verl is covered." if found.covered else "Not every path is covered: see the lines with !"
    )
    return "\n\n".join([*parts, "\n".join(_wrapped("", verdict + asked))])


def _process_told(places: list[str], process: Process) -> str:
    mark = "! " if process.remedy or not process.sites else ""
    lines = [*places[:-1], *_wrapped(mark, f"{places[-1]}: {process.loaded}")]
    if process.remedy:
        lines += _wrapped("  -> ", process.remedy)
    lines += _wrapped("  ", ", ".join(f"{name} {found}" for name, found in process.versions.items() if found))
    lines += _wrapped("  rows are read by ", process.core)
    lines += [f"  verl is {process.verl}"] if process.verl else []
    for site in process.sites:
        mark = " " if site.state in COVERED else "!"
        detail = site.detail
        if site.state == State.ACTIVE.value:
            detail = ", ".join(part for part in detail.split(", ") if part.endswith("(not needed)"))
        lines += _wrapped(f"{mark} {site.state:14} {site.name:15} ", detail, _INDENT)
        if site.remedy:
            lines += _wrapped(f"{_INDENT}-> ", site.remedy, f"{_INDENT}   ")
    return "\n".join(lines)


def _wrapped(first: str, text: str, following: str | None = None) -> list[str]:
    following = " " * len(first) if following is None else following
    wrapper = TextWrapper(
        _WIDTH, initial_indent=first, subsequent_indent=following, break_long_words=False, break_on_hyphens=False
    )
    return wrapper.wrap(text) or [first.rstrip()]


# --- finding out -------------------------------------------------------------------------------------------------


class NoClusterError(VerlExtError, ConnectionError):
    """Nothing answers at the address of a Ray cluster."""


_ADDRESS = re.compile(r"(?P<client>ray://)?(?:\[(?P<v6>[^\[\]\s]+)\]|(?P<name>[^\[\]\s:/]+))(?::(?P<port>[0-9]{1,5}))?")
_CLIENT_PORT, _HIGHEST_PORT = 10001, 65535  # the first is Ray's own default for ray://
_ATTEMPTS = "RAY_gcs_server_port_wait_time_s"


def _connect(ray: Any, address: str | None, environment: Mapping[str, Any]) -> None:
    failure = "Ray does not start"
    try:
        target = _target(address)
        if target is not None:
            failure = f"no Ray cluster answers at {shown(target)}"
            os.environ.setdefault(_ATTEMPTS, "1")  # where another server listens, Ray tries 20 times, for 40 s each
            _refuse_unreachable(target)
        ray.init(address=address, runtime_env=environment, log_to_driver=False, logging_level="ERROR")
    except NoClusterError:
        raise
    except Exception as error:
        raise NoClusterError(f"{failure}: {_said(error)}") from error


def _target(address: str | None) -> str | None:
    """The address of the cluster that Ray will connect to; `None` where it starts one."""
    if address in (None, "auto"):
        address = os.environ.get("RAY_ADDRESS") or address
    if address in (None, "auto"):
        try:
            from ray._private.services import canonicalize_bootstrap_address
        except ImportError:  # another Ray, which has it elsewhere: it has to find out by itself
            return None
        address = canonicalize_bootstrap_address(address)  # of the last cluster here, which may be gone
    return None if address == "local" else address


def _refuse_unreachable(address: str) -> None:
    """Raise for an address where nothing listens: Ray itself goes on trying for many minutes.

    Raises:
        NoClusterError: nothing listens there, or it is no address.
    """
    found = _ADDRESS.fullmatch(address)
    port = found and int(found["port"] or (_CLIENT_PORT if found["client"] else 0))
    if not found or not port or port > _HIGHEST_PORT:
        raise NoClusterError(
            f"{shown(address)} is no address of a Ray cluster: write host:port or [IPv6 address]:port, with a port "
            f"from 1 to {_HIGHEST_PORT}; or ray://host:port, for its client server"
        )
    try:
        socket.create_connection((found["v6"] or found["name"], port), timeout=10).close()
    except (OSError, ValueError) as error:  # a name that no encoding of names has is a ValueError
        raise NoClusterError(
            f"no Ray cluster answers at {shown(address)}: {_said(error)}. `ray stop` makes Ray forget a cluster that "
            "ran here; --address local starts one"
        ) from error


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def _versions() -> dict[str, str | None]:
    def of(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    return {"verl-ext": __version__, **{name: of(name) for name in _PACKAGES}, "python": platform.python_version()}


def _import_error(module: str) -> Exception | None:
    try:
        import_module(module)
    except Exception as error:
        return error
    return None


def _how_loaded() -> tuple[str, str]:
    """How the plugin came into this process, and what to do if it did not."""
    named = AUTOLOAD in os.environ.get(MODULES, "").split(",")
    policy = os.environ.get(PLUGINS, "auto").strip().lower()
    if AUTOLOAD in sys.modules:
        if all(report.state is State.DISABLED for report in status()):
            return f"loaded, and disabled by {DISABLE}={os.environ.get(DISABLE)}", f"unset {DISABLE}"
        misspelt = (
            f"{DISABLE} names no patch site: {', '.join(names)}; spell it as below"
            if (names := unknown_names())
            else ""
        )
        return f"loaded by {MODULES if named else 'entry point' if has_entry_points() else 'an import'}", misspelt
    if named:
        return f"not loaded, although {MODULES} names it", f"`import {AUTOLOAD}` in a Python shell shows the error"
    if not has_entry_points():
        return "not loaded: this verl knows no entry points", f"set {MODULES}={AUTOLOAD} for the driver and the workers"
    if policy != "auto" and "verl_ext" not in policy.split(","):
        return f"not loaded: {PLUGINS}={os.environ[PLUGINS]}", f"unset {PLUGINS}, or name verl_ext in it"
    if "verl_ext" not in entry_points(group="verl.plugins").names:
        return (
            "not loaded: verl-ext is importable, but not installed",
            "pip install it, so that verl finds its entry point",
        )
    return "not loaded, although verl finds its entry point", f"`import {AUTOLOAD}` in a Python shell shows the error"


def _site(report: SiteStatus, error: Exception | None, remedies: Mapping[State, str]) -> Site:
    name, module = report.name, report.module
    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
        return Site(name, module, ABSENT, f"this verl has no {module.rpartition('.')[2]}")
    if error is not None:
        return Site(name, module, NOT_IMPORTABLE, f"{module}: {_said(error)}", "mend that first, to take this path")
    return Site(name, module, report.state.value, report.detail, remedies.get(report.state, "").replace("{name}", name))


_REMEDIES = {
    State.UNKNOWN: (
        "use a verl-ext that knows this verl, or a verl that it knows; to accept what stock verl does there, "
        f"{DISABLE}={{name}}"
    ),
    State.DISABLED: f"unset {DISABLE}, or take out what it names",
    State.WAITING: "verl imported the module before the plugin was loaded: load it first",
}
