"""Worker processes that tests share.

A process that imports verl takes seconds to start, and a batch milliseconds. So a manager of verl's, whose own code
starts its workers, gets processes that an earlier test has given back; the worker's constructor runs in them again.
"""

import asyncio
from contextlib import contextmanager
from unittest import mock

import ray
from ray.exceptions import RayActorError

import verl_ext

_idle = {}
"""By worker class, the workers that no manager has."""

_class_of = {}
"""By the id of a worker that goes back there, its class."""


@contextmanager
def shared():
    """verl's managers get workers that were given back, as long as there are any of that class."""
    from verl.experimental.agent_loop import AgentLoopManager
    from verl.experimental.reward_loop import RewardLoopManager

    with (
        _sharing(RewardLoopManager, "_init_reward_loop_workers", "reward_loop_workers_class"),
        _sharing(AgentLoopManager, "_init_agent_loop_workers", "agent_loop_workers_class"),
    ):
        try:
            yield
        finally:
            _idle.clear()
            _class_of.clear()


def _sharing(manager_class, name, attribute):
    verls = getattr(manager_class, name)

    def start_workers(self):
        setattr(self, attribute, _Shared(getattr(self, attribute)))
        return verls(self)

    return mock.patch.object(manager_class, name, start_workers)


class _Shared:
    """In the place of Ray's actor class: an idle process rather than a new one."""

    def __init__(self, actor_class):
        self._actor_class = actor_class
        self._class = actor_class.__ray_metadata__.modified_class.__ray_actor_class__

    def options(self, **options):
        """Names and nodes are not taken: they are the first manager's. What needs variables of its own is started."""
        return self._actor_class.options(**options) if "runtime_env" in options else self

    def remote(self, *args):
        idle = _idle.setdefault(self._class, [])
        while idle:
            worker = idle.pop()
            try:
                return renewed([worker], *args)[0]
            except RayActorError:  # a test has killed it
                continue
        worker = self._actor_class.remote(*args)
        _class_of[worker._actor_id] = self._class
        return worker


def renewed(workers, *args):
    """The same processes, in which the worker's constructor has run again with these arguments."""

    def again(worker, *args):
        async def construct():
            worker.__init__(*args)

        # Ray runs this function beside the actor's event loop, in which a reward worker must be made: it keeps it.
        loop = getattr(worker, "loop", None)
        if loop is None:
            worker.__init__(*args)
        else:
            asyncio.run_coroutine_threadsafe(construct(), loop).result()

    ray.get([worker.__ray_call__.remote(again, *args) for worker in workers])
    return workers


@contextmanager
def of_version(worker, version):
    """Within the block, the process of `worker` says that it runs this version of verl-ext."""

    def say(version):
        def pretend(worker):
            import verl_ext

            verl_ext.__version__ = version

        ray.get(worker.__ray_call__.remote(pretend))

    say(version)
    try:
        yield
    finally:
        say(verl_ext.__version__)


def release(manager):
    """Give the workers of `manager` back, and kill those that no other manager could use."""
    for attribute in ("reward_loop_workers", "agent_loop_workers"):
        give_back(getattr(manager, attribute, ()))


def give_back(workers):
    """As `release`, for workers that a manager has been started with."""
    for worker in workers:
        worker_class = _class_of.get(worker._actor_id)
        if worker_class is None:
            ray.kill(worker)
        elif worker not in _idle[worker_class]:
            _idle[worker_class].append(worker)
