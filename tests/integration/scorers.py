"""Reward functions and a reward manager that a user might have; loaded by verl from this file's path."""

import asyncio
import os
import signal
import sys
import threading
import time

import numpy as np
import torch
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


def arrays_as_scores(data_source, solution_str, ground_truth, extra_info, **kwargs):
    """A float, a 0-d array, a NumPy scalar and a 0-d tensor in turn."""
    index = extra_info["index"] % 4
    value = 1.5 * index
    return {"score": [float, np.array, np.float32, torch.tensor][index](value), "acc": 1.0}


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


# --- scorers that go wrong: `extra_info` says which way ---------------------------------------------------------


def _changing():
    """A dict into which another thread writes for a second, never the same keys."""
    row = {"score": 1.0, "acc": 1.0}

    def change():
        until, number = time.monotonic() + 1.0, 0
        while time.monotonic() < until:
            row[f"late {number % 50}"] = number
            row.pop(f"late {(number + 25) % 50}", None)
            number += 1

    threading.Thread(target=change, daemon=True).start()
    return row


def _raise(error):
    raise error


def _knot():
    knot = [1.0]
    knot.append(knot)
    return knot


def _deep(levels):
    value = 1.0
    for _ in range(levels):
        value = [value]
    return value


class CodedError(Exception):
    """Pickles, and does not come back: its constructor takes more than its text."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")


class PicklingFailsError(Exception):
    def __reduce__(self):
        raise RuntimeError("not to be pickled")


WRONG = {
    "raises": lambda: _raise(ConnectionError("connection reset")),
    "raises StopIteration": lambda: next(found for found in [] if found),
    "raises CancelledError": lambda: _raise(asyncio.CancelledError()),
    "raises what does not come back": lambda: _raise(CodedError(500, "judge down")),
    "raises what does not pickle": lambda: _raise(PicklingFailsError("busy")),
    "raises half a character": lambda: _raise(ValueError("\ud800")),
    "returns None": lambda: None,
    "returns a list": lambda: [1.0, 2.0],
    "returns text": lambda: "right",
    "returns a list that holds itself as the score": lambda: {"score": _knot(), "acc": 1.0},
    "exits": lambda: sys.exit(3),
    "is interrupted": lambda: _raise(KeyboardInterrupt()),
    "returns no score": lambda: {"acc": 1.0},
    "returns a lock": lambda: {"score": 1.0, "lock": threading.Lock()},
    "returns a lock in a list": lambda: {"score": 1.0, "nested": [{"lock": threading.Lock()}]},
    "returns a list that holds itself": lambda: {"score": 1.0, "knot": _knot()},
    "returns a list of 900 levels": lambda: {"score": 1.0, "deep": _deep(900)},
    "returns a list of 400 levels": lambda: {"score": 1.0, "deep": _deep(400)},
    "returns 10 MB of text": lambda: {"score": 1.0, "text": "x" * 10_000_000},
    "goes on writing": _changing,
    "dies": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def as_told_in_a_thread(data_source, solution_str, ground_truth, extra_info, **kwargs):
    """As `as_told`, of no coroutine function: verl runs it in a thread, or in a process of its own."""
    if "wrong" in extra_info:
        return WRONG[extra_info["wrong"]]()
    return conditional_keys(data_source, solution_str, ground_truth, extra_info)


async def as_told(data_source, solution_str, ground_truth, extra_info, **kwargs):
    """What `extra_info` says is wrong with this sample; else keys that come and go."""
    await asyncio.sleep(extra_info.get("seconds", 0.0))
    if "wrong" in extra_info:
        return WRONG[extra_info["wrong"]]()
    return conditional_keys(data_source, solution_str, ground_truth, extra_info)
