"""Teaches the environment that verl gives to Ray workers the variables by which they load the plugin, as this process.

verl forwards none of them, and a cluster that was started elsewhere has never seen them.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import verl_ext
from verl_ext.plugin._site import REST, Function, PatchSite
from verl_ext.plugin._workers import DRIVER

site = PatchSite(
    name="runtime_env",
    module="verl.trainer.constants_ppo",
    purpose="Ray workers of a cluster that was started elsewhere load the plugin only by what is set there",
)

MODULES = "VERL_USE_EXTERNAL_MODULES"
PLUGINS = "VERL_USE_EXTERNAL_PLUGINS"
AUTOLOAD = "verl_ext.autoload"


@site.wraps("get_ppo_ray_runtime_env", REST)
def _get_ppo_ray_runtime_env(stock: Function) -> Function:
    def get_ppo_ray_runtime_env(*args: Any, **kwargs: Any) -> Any:
        runtime_env = stock(*args, **kwargs)
        return {**runtime_env, "env_vars": {**forwarded(), **runtime_env.get("env_vars", {})}}

    return get_ppo_ray_runtime_env


def forwarded() -> dict[str, str]:
    """The variables that decide whether and how a process loads the plugin, and say that this one runs it."""
    wanted = {name: value for name, value in os.environ.items() if name.startswith("VERL_EXT_") or name in _VERLS_OWN}
    wanted[DRIVER] = verl_ext.__version__
    modules = wanted.get(MODULES, "").split(",")
    if not has_entry_points() and AUTOLOAD not in modules:  # the plugin is on here by an import in the user's script
        wanted[MODULES] = ",".join([*filter(None, modules), AUTOLOAD])
    return wanted


_VERLS_OWN = (MODULES, PLUGINS)


def has_entry_points() -> bool:
    """Whether this verl loads plugins by entry point: those before 0.9 do not."""
    return hasattr(sys.modules.get("verl"), "_plugins_policy")
