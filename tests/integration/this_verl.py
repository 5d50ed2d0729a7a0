"""What the installed verl does, where the supported versions of it differ: asked of its code, here and nowhere else."""

import inspect

from verl.experimental.reward_loop.reward_loop import RewardLoopManager


def _names_in(function):
    return inspect.unwrap(function).__code__.co_names


PADS_FOR_REWARD_WORKERS = "pad_dataproto_to_divisor" in _names_in(RewardLoopManager.compute_rm_score)
"""Whether any number of rows can be scored by any number of workers: verl before 0.9 asserts equal shares."""
