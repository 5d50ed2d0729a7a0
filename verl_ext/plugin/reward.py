"""Patches the loading of a user's reward function: what it raises leaves the thread or process that it runs in.

verl's reward managers run it in a thread (`naive`, `dapo`, `gdpo`) or in an actor of its own (`remote`).
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from verl_ext.plugin._raised import answering
from verl_ext.plugin._site import Function, PatchSite

site = PatchSite(
    name="reward",
    module="verl.trainer.ppo.reward",
    purpose="a reward function that raises StopIteration is never answered",
)


@site.wraps("get_custom_reward_fn", "config")
def _get_custom_reward_fn(stock: Function) -> Function:
    def get_custom_reward_fn(config: Any) -> Any:
        scorer = stock(config)
        # A coroutine raises in the reward worker itself, which sees it (`RewardLoopWorker.compute_score`).
        if scorer is None or inspect.iscoroutinefunction(scorer):
            return scorer
        return functools.partial(answering, scorer)

    return get_custom_reward_fn
