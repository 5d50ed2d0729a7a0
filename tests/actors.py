"""The Ray actors that verl's managers start, ended: a demo ends with its Ray, tests share one."""

import ray


def release(manager):
    """Kill the Ray actors that `manager` started.

    Reward loop workers have fixed names, so a second reward loop manager needs the first one's to be gone.
    """
    for workers in ("reward_loop_workers", "agent_loop_workers"):
        for worker in getattr(manager, workers, ()):
            ray.kill(worker)
