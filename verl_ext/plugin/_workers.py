"""The mark by which managers ask workers to act, and whether Ray workers run the plugin at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import verl_ext
from verl_ext.errors import PluginMissingError, shown

REQUEST = "verl_ext/request"
"""Key in a request's `meta_info` by which a manager asks workers to act: its version of verl-ext.

Workers act on this mark only, so a driver without the plugin gets stock behaviour from workers with it.
"""

DRIVER = "VERL_EXT_DRIVER"
"""Variable by which a driver with the plugin says so to the workers of its job: its version of verl-ext.

Code that calls workers without verl's managers sends no mark. Such a request is answered with aligned columns then.
"""

_PATIENCE = 60.0


def driver_runs_plugin() -> bool:
    """Whether the driver of this process's job has said that it runs the plugin, or this process is the driver."""
    import ray

    in_worker = ray.is_initialized() and ray.get_runtime_context().worker.mode == ray.WORKER_MODE
    return DRIVER in os.environ or not in_worker


def marked(batch: Any) -> Any:
    """The same batch with the mark in a `meta_info` of its own; tensors and columns are shared."""
    return type(batch)(
        batch=batch.batch,
        non_tensor_batch=batch.non_tensor_batch,
        meta_info={**batch.meta_info, REQUEST: verl_ext.__version__},
    )


@contextmanager
def untaught_blamed(workers: Sequence[Any], site: str) -> Iterator[None]:
    """For a call of `workers`: what stock workers lead to (a KeyError, a ValueError, ...) is raised as what it is.

    Raises:
        PluginMissingError: the call failed, and a worker does not run the patch site; else its error as it is.
    """
    from ray.exceptions import RayActorError

    try:
        yield
    except RayActorError:  # a worker that died explains itself, and would not answer
        raise
    except Exception as error:
        refuse_untaught(workers, site, error)
        raise


def refuse_untaught(workers: Sequence[Any], site: str, cause: Exception | None = None) -> None:
    """Raise if a worker's process does not run the patch site `site`, or runs another version of verl-ext.

    Args:
        workers: Ray actor handles.
        site: the name of the patch site.
        cause: the error that made the caller ask; it goes first where a worker is dead or stuck, and cannot answer.

    Raises:
        PluginMissingError: names each such worker's node and process, and what to do.
    """
    import ray

    def state(worker: Any) -> tuple[str | None, str, int]:
        # Nested on purpose: Ray sends it by value, so that it runs where verl-ext is not even installed.
        import os
        import sys

        import ray

        plugin = sys.modules.get("verl_ext.plugin")
        sites = {} if plugin is None else {report.name: report.state.value for report in plugin.status()}
        # Waiting: a worker class that is none of verl's, in whose process verl's module was never imported.
        on = sites.get(site) in ("active", "not needed", "waiting")
        return sys.modules["verl_ext"].__version__ if on else None, ray.util.get_node_ip_address(), os.getpid()

    try:
        answers = ray.get([worker.__ray_call__.remote(state) for worker in workers], timeout=_PATIENCE)
    except ray.exceptions.RayError:
        if cause is None:
            raise
        return
    for version in dict.fromkeys(version for version, _, _ in answers if version != verl_ext.__version__):
        where = [f"worker {n} on node {ip} (pid {pid})" for n, (v, ip, pid) in enumerate(answers) if v == version]
        what = f"run verl-ext {shown(version)}" if version else f"do not run verl-ext's patch site {site!r}"
        raise PluginMissingError(
            f"{len(where)} of {len(workers)} workers {what}: {', '.join(where[:8])}. "
            f"Install verl-ext {verl_ext.__version__} on every node. verl >= 0.9 then loads it, unless "
            "VERL_USE_EXTERNAL_PLUGINS or VERL_EXT_DISABLE says otherwise in the worker's environment; "
            "older verl needs VERL_USE_EXTERNAL_MODULES=verl_ext.autoload there"
        ) from cause
