"""Patches the loading of a user's reward function: what it raises, and a score that is missing, get to the worker.

verl's reward managers run it in a thread (`naive`, `dapo`, `gdpo`) or in an actor of its own (`remote`).
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from verl_ext.plugin._abstain import computable_call, computable_coroutine, may_abstain
from verl_ext.plugin._raised import answering
from verl_ext.plugin._site import Function, PatchSite
from verl_ext.settings import Settings

site = PatchSite(
    name="reward",
    module="verl.trainer.ppo.reward",
    purpose="a reward function that raises StopIteration is never answered",
)


@site.wraps("get_custom_reward_fn", "config")
def _get_custom_reward_fn(stock: Function) -> Function:
    def get_custom_reward_fn(config: Any) -> Any:
        scorer = stock(config)
        if scorer is None:
            return scorer
        is_coroutine = inspect.iscoroutinefunction(scorer)
        if may_abstain(config):
            call = computable_coroutine if is_coroutine else computable_call
            scorer = functools.partial(call, Settings.of(config), scorer)
        # A coroutine raises in the reward worker itself, which sees it (`RewardLoopWorker.compute_score`).
        return scorer if is_coroutine else functools.partial(answering, scorer)

    return get_custom_reward_fn
