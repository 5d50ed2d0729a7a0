"""verl's real managers, reward workers and agent loops in this process, rows for them, and what is asked of batches."""

import copy
import functools
import itertools
from pathlib import Path

import numpy as np
import torch
from integration.agent_loops import AgentLoopManager, AgentLoopWorker
from verl import DataProto
from verl.experimental.reward_loop.reward_loop import RewardLoopManager, RewardLoopWorker

from verl_ext.demo import rig

from .actors import Handle

SETTINGS = [
    "reward.reward_manager.source=importlib",
    "reward.reward_manager.name=AsTheRowSays",
    f"reward.reward_manager.module.path='{Path(__file__).parent / 'rewards.py'}'",
    "reward.num_workers=1",
    "data.max_prompt_length=64",
    "data.max_response_length=16",
]
QUESTIONS = 64

GSM8K = {"acc": 1.0}
DAPO = {"score": -1.0, "acc": False, "pred": "7"}
"""What verl's own scorers of two data sources emit."""


def orders(rows):
    """All orders of the two schemas over so many rows, as words: `gsm8k dapo ...`."""
    return [" ".join(kinds) for kinds in itertools.product(("gsm8k", "dapo"), repeat=rows)]


def infos_of(order):
    """The dicts of such an order; every one its own."""
    return [dict({"gsm8k": GSM8K, "dapo": DAPO}[kind]) for kind in order.split()]


class Surroundings:
    """The configuration, the model server's double, and one reward worker that says what the rows say."""

    def __init__(self, model_dir, overrides=()):
        self.model_dir = model_dir
        self.config = rig.compose_config(model_dir, [*SETTINGS, *overrides])
        answered = [{**question(number), "response": str(number)} for number in range(QUESTIONS)]
        self.client = rig.RecordedClient(answered, self.config)
        self.scorer = Handle(lambda: RewardLoopWorker(self.config, None))

    @functools.cache  # noqa: B019 - as long as the tests
    def worker(self, worker_class, number=0, scores=True):
        """The handle of worker `number` of a class, which has its samples scored while they are rolled out, or not."""
        return Handle(lambda: worker_class(self.config, self.client, None, [self.scorer] if scores else None))

    def manager(self, worker_class=AgentLoopWorker, workers=1, scores=True, manager_class=AgentLoopManager):
        """verl's manager, or one that inherits from it, of workers of a class."""
        manager = manager_class(self.config, self.client, reward_loop_worker_handles=[self.scorer] if scores else None)
        manager.agent_loop_workers = [self.worker(worker_class, number, scores) for number in range(workers)]
        return manager

    def reward_manager(self):
        """verl's reward loop manager, but for who starts the worker."""
        scorers = [self.scorer]

        class OnShared(RewardLoopManager):
            def _init_reward_loop_workers(self):
                self.reward_loop_workers = scorers

        return OnShared(self.config)

    def generated(self, infos, worker_class=AgentLoopWorker, workers=1, **kwargs):
        """What verl's manager hands on for samples that earn `infos`."""
        return self.manager(worker_class, workers, **kwargs).generate_sequences(prompts(rows_of(infos)))


def question(number, **says):
    """A row whose recorded answer is its number."""
    return {
        "data_source": "planned",
        "prompt": [{"role": "user", "content": f"question {number}"}],
        "ability": "none",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": number, **says},
    }


def rows_of(infos, start=0):
    """One row for each dict: a score, and what is emitted beside it."""
    return [
        question(number, emit=copy.deepcopy(info), reward=float(number % 2)) for number, info in enumerate(infos, start)
    ]


def prompts(rows):
    """The batch as a trainer hands it to the agent loop."""
    return rig.prompt_batch(rows)


def loaded(rows):
    """The same rows as a trainer keeps them, to unite with what comes back."""
    columns = prompts(rows).non_tensor_batch
    kept = {name: columns[name] for name in ("data_source", "reward_model", "extra_info", "uid")}
    return DataProto.from_single_dict({"dummy_tensor": torch.zeros(len(rows), 1, dtype=torch.uint8), **kept})


# --- what is asked of batches ------------------------------------------------------------------------------------


def lost(batch, infos):
    """The emitted (row, key, value) that are not at their row, equal and of their kind; one for a key that is said to
    be there and is not emitted, too."""
    columns = batch.non_tensor_batch
    keys = list(dict.fromkeys(key for info in infos for key in info or {}))
    gone = []
    for row, info in enumerate(infos):
        for key in keys:
            value = (info or {}).get(key)
            found = columns[key][row] if key in columns else "no such column"
            found = found.tolist() if isinstance(found, np.ndarray | np.generic) else found
            if found != value or isinstance(found, str) != isinstance(value, str):
                gone.append((row, key, value))
    return gone


def assert_whole(batch, infos):
    """Every value at its row, `None` for the keys of others, the keys listed, and nothing of ours left."""
    assert lost(batch, infos) == []
    assert sorted(batch.meta_info["reward_extra_keys"]) == sorted({key for info in infos for key in info or {}})
    assert [name for name in [*batch.non_tensor_batch, *batch.meta_info] if "verl_ext" in name] == []
    assert {type(column) for column in batch.non_tensor_batch.values()} == {np.ndarray}


def assert_same(ours, theirs):
    """The same batch, bit for bit: class, tensors, columns, `meta_info`; timings and ids only by name."""
    assert type(ours) is type(theirs)
    assert_same_content(ours, theirs)


def assert_same_content(ours, theirs):
    """The same but for the class of the batch."""
    assert list(ours.batch.keys()) == list(theirs.batch.keys())
    for name, tensor in theirs.batch.items():
        assert ours.batch[name].dtype == tensor.dtype
        assert ours.batch[name].equal(tensor), name
    assert sorted(ours.non_tensor_batch) == sorted(theirs.non_tensor_batch)
    for name, column in theirs.non_tensor_batch.items():
        same = ours.non_tensor_batch[name]
        assert (type(same), same.dtype, same.shape) == (type(column), column.dtype, column.shape), name
        assert name == "uid" or repr(same.tolist()) == repr(column.tolist()), name
    assert ours.meta_info.keys() == theirs.meta_info.keys()
    for name, value in theirs.meta_info.items():
        assert name in ("timing", "metrics") or repr(ours.meta_info[name]) == repr(value), name


def outcome(job):
    """What a job returns, or the exception that it raises: on stock verl, that is the outcome."""
    try:
        return job()
    except Exception as error:
        return error
