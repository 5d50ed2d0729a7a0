"""The plugin: which verl modules are taught, when, and what became of it.

`activate()` registers the patch sites; each is applied when verl imports its module. `import verl_ext` alone activates
nothing: verl imports `verl_ext.autoload`, which does.
"""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

import wrapt

from verl_ext.plugin._site import PatchSite, State, warn_once

__all__ = ["SITES", "SiteStatus", "State", "activate", "deactivate", "status"]

DISABLE = "VERL_EXT_DISABLE"
"""`1` turns the plugin off, `0` does not; a comma-separated list of sites turns those off."""

SITES = {
    "protocol": "verl.protocol",
    "tensordict_utils": "verl.utils.tensordict_utils",
    "runtime_env": "verl.trainer.constants_ppo",
    "reward": "verl.trainer.ppo.reward",
    "reward_loop": "verl.experimental.reward_loop.reward_loop",
    "agent_loop": "verl.experimental.agent_loop.agent_loop",
    "fully_async": "verl.experimental.fully_async_policy.fully_async_rollouter",
    "fully_async_agent_loop": "verl.experimental.fully_async_policy.agent_loop.agent_loop",
    "aggregator": "verl.experimental.fully_async_policy.detach_utils",
    "metrics": "verl.trainer.ppo.metric_utils",
    "advantage": "verl.trainer.ppo.core_algos",
    "losses": "verl.workers.utils.losses",
    "trainer": "verl.trainer.ppo.ray_trainer",
    "trainer_v1": "verl.trainer.ppo.v1.trainer_base",
    "replay_buffer": "verl.trainer.ppo.v1.replay_buffer",
    "main_ppo": "verl.trainer.main_ppo",
    "main_ppo_sync": "verl.trainer.main_ppo_sync",
}
"""Every patch site: the file of this package, and the verl module that it teaches."""

_lock = threading.RLock()
_sites: dict[str, PatchSite] = {}


@dataclass(frozen=True)
class SiteStatus:
    """What became of one patch site in this process: its name, verl module and state, and why."""

    name: str
    module: str
    state: State
    detail: str

    @property
    def stands(self) -> bool:
        """Whether what the site is for is there, by us or by verl itself."""
        return self.state in (State.ACTIVE, State.NOT_NEEDED)


def activate() -> None:
    """Teach verl in this process: modules that are imported already now, the others on import.

    Doing it twice changes nothing. Sites named in `VERL_EXT_DISABLE` are left out.
    """
    off = _disabled()
    with _lock:
        for name, module in SITES.items():
            site = _sites.get(name)
            if name in off or (site is not None and site.state is not State.DISABLED):
                continue
            if site is None:
                site = _sites[name] = import_module(f"{__name__}.{name}").site
                wrapt.register_post_import_hook(_apply_on_import, module)
            site.state = State.WAITING
    for name, module in SITES.items():
        if name not in off and sys.modules.get(module) is not None:
            whole = import_module(module)  # waits for a thread that is in the midst of it: half a one is unknown code
            with _lock:
                _apply(_sites[name], whole)


def deactivate() -> None:
    """Put verl's own functions back, in this process."""
    with _lock:
        for site in reversed(_sites.values()):
            site.undo()


def status() -> list[SiteStatus]:
    """What became of every patch site in this process, in the order of `SITES`."""
    off = _disabled()
    reports = []
    for name, module in SITES.items():
        site = _sites.get(name)
        if site is not None and site.state is not State.DISABLED:
            reports.append(SiteStatus(name, module, site.state, site.detail))
        else:
            why = f"{DISABLE}={os.environ[DISABLE]}" if name in off else (site and site.detail) or "not activated"
            reports.append(SiteStatus(name, module, State.DISABLED, why))
    return reports


def site_is_active(name: str) -> bool:
    """Whether a site's patches stand in this process."""
    return name in _sites and _sites[name].state is State.ACTIVE


def _apply_on_import(module: ModuleType) -> None:
    with _lock:
        for site in _sites.values():
            if site.module == module.__name__:
                _apply(site, module)


def _apply(site: PatchSite, module: ModuleType) -> None:
    lacking = [report for report in status() if report.name in site.requires and not report.stands]
    if not lacking:
        site.apply(module)
    elif site.state is State.WAITING:
        why = f"it needs the site {lacking[0].name!r}, which is {lacking[0].state.value}: {lacking[0].detail}"
        if lacking[0].state is State.UNKNOWN:
            site.stay_off(module, why)
        else:
            site.state, site.detail = State.DISABLED, why


def unknown_names() -> list[str]:
    """What `VERL_EXT_DISABLE` names that is no patch site."""
    return sorted(_named() - SITES.keys())


def _disabled() -> set[str]:
    if unknown := unknown_names():
        warn_once((DISABLE, *unknown), f"{DISABLE} names no patch site: {unknown}; there are {sorted(SITES)}")
    return _named() & SITES.keys()


def _named() -> set[str]:
    setting = os.environ.get(DISABLE, "").strip().lower()
    if setting in ("", "0", "false", "no", "off"):
        return set()
    if setting in ("1", "true", "yes", "on", "all"):
        return set(SITES)
    return {name.strip() for name in setting.split(",") if name.strip()}
