"""Reward functions and a reward manager that a user might have; loaded by verl from this file's path."""

import asyncio

from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager


def conditional_keys(data_source, solution_str, ground_truth, extra_info, **kwargs):
    """Keys that come and go: a dict for some rows, a float for others, a nested value for one kind."""
    index = extra_info["index"]
    if index % 4 == 0:
        return float(index)
    if index % 4 == 1:
        return {"score": 0.5, "judge": f"row {index}", "steps": [0.1] * (index % 3)}
    if index % 4 == 2:
        return {"score": 1.0, "judge": index, "format_reward": None}
    return {"score": -1.0, "detail": {"index": index}, "acc": True}


def one_schema(data_source, solution_str, ground_truth, extra_info, **kwargs):
    """The same keys for every row."""
    index = extra_info["index"]
    return {"score": index / 7, "acc": index % 2 == 0, "pred": str(index * 37), "steps": [index, 0.5]}


async def slow_or_broken(data_source, solution_str, ground_truth, extra_info, **kwargs):
    """Too slow for the time-out on some rows, an exception on others, a dict on the rest."""
    index = extra_info["index"]
    if index % 3 == 0:
        await asyncio.sleep(60)
    if index % 3 == 1:
        raise ConnectionError("connection reset")
    return {"score": 1.0, "acc": 1.0}


def sometimes_no_score(data_source, solution_str, ground_truth, extra_info, **kwargs):
    return {"score": None if extra_info["index"] == 4 else 1.0}


def names_a_tensor(data_source, solution_str, ground_truth, extra_info, **kwargs):
    return {"score": 1.0, "responses": "mine"}


class WithoutExtraInfo(RewardManagerBase):
    """A score and nothing else, as verl's discriminative reward model answers (`compute_score_disrm`)."""

    def __init__(self, config, tokenizer, compute_score, **kwargs):
        super().__init__(config, tokenizer, compute_score)

    async def run_single(self, data):
        return {"reward_score": 0.25}


class SometimesWithoutExtraInfo(WithoutExtraInfo):
    """No extra info on some rows, `None` on others, a dict on the rest."""

    async def run_single(self, data):
        index = data.non_tensor_batch["extra_info"][0]["index"]
        return [
            {"reward_score": 0.25},
            {"reward_score": 0.5, "reward_extra_info": {}},
            {"reward_score": 1.0, "reward_extra_info": {"acc": index}},
        ][index % 3]


class AsTheRowSays(NaiveRewardManager):
    """What `extra_info` holds as `reward` and `emit`; verl's own scorers for a row that holds no such thing."""

    async def run_single(self, data):
        extra_info = data.non_tensor_batch["extra_info"][0]
        if "emit" not in extra_info:
            return await super().run_single(data)
        return {"reward_score": extra_info["reward"], "reward_extra_info": extra_info["emit"]}


async def slow_keys(data_source, solution_str, ground_truth, extra_info, **kwargs):
    """As `conditional_keys`, from a judge that takes its time."""
    await asyncio.sleep(10)
    return conditional_keys(data_source, solution_str, ground_truth, extra_info)
