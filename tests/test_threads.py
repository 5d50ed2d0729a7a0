"""Threads that share batches: a batch is raw or finalized, whoever looks at it, and whatever another does meanwhile."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

pytest.importorskip("verl")

import torch
from strategies import objects
from tensordict import TensorDict
from verl.protocol import DataProto

from verl_ext import plugin
from verl_ext.column import RAW_COLUMN, SparseNonTensor
from verl_ext.protocol import SparseDataProto

ROWS: list[Any] = [{"acc": 1.0}, {"acc": 0.0, "pred": "42"}, None, {"acc": 0.5}]


@pytest.fixture(autouse=True)
def active_plugin():
    plugin.activate()


def batch_of(
    rows: Any, first: int = 0, cls: type[DataProto] = SparseDataProto, column: type[SparseNonTensor] = SparseNonTensor
) -> Any:
    numbers = torch.arange(first, first + len(rows))
    return cls(
        batch=TensorDict({"number": numbers, "rm_scores": numbers[:, None] / 2}, batch_size=len(rows)),
        non_tensor_batch={"uid": objects(f"u{n}" for n in numbers), RAW_COLUMN: SparseNonTensor(rows).view(column)},
        meta_info={"step": 7},
    )


def told(batch: DataProto) -> Any:
    """All that a batch holds, as values."""
    columns = {name: (type(c), str(c.dtype), c.tolist()) for name, c in batch.non_tensor_batch.items()}
    return columns, {name: tensor.tolist() for name, tensor in batch.batch.items()}, copy.deepcopy(batch.meta_info)


# --- threads that share a batch ----------------------------------------------------------------------------------


class Slow(SparseNonTensor):
    """A raw column whose rows come late to every thread but one: when that one is done."""

    first: Any = None
    done = threading.Event()

    def tolist(self) -> Any:
        if threading.current_thread() is not Slow.first:
            assert Slow.done.wait(60)
        return super().tolist()


def test_threads_that_finalize_one_batch_while_another_has_done_so_find_no_collision():
    batch, expected = batch_of(ROWS, column=Slow), told(batch_of(ROWS).finalize())
    Slow.first, results = threading.current_thread(), []
    threads = [threading.Thread(target=lambda: results.append(batch.finalize())) for _ in range(3)]
    for thread in threads:
        thread.start()
    batch.finalize()
    Slow.done.set()
    for thread in threads:
        thread.join()
    assert [result is batch for result in results] == [True] * 3
    assert told(batch) == expected


class Interrupted(SparseDataProto):
    """A batch that another thread finalizes after so many looks at what it holds."""

    looks = 0

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        parts = super().__getattribute__("__dict__")
        if name in ("__dict__", "non_tensor_batch", "meta_info") and parts.get("looks", 0) > 0:
            parts["looks"] -= 1
            if parts["looks"] == 0:
                other = SparseDataProto(*(parts[part] for part in ("batch", "non_tensor_batch", "meta_info")))
                parts.update(vars(other.finalize()))
        return found


def prompts() -> DataProto:
    tensors = TensorDict({"prompts": torch.zeros(4, 2)}, batch_size=4)
    return DataProto(batch=tensors, non_tensor_batch={"uid": objects(f"u{n}" for n in range(4))})


USES: dict[str, Callable[[Any], list[DataProto]]] = {
    "finalize": lambda batch: [batch.finalize()],
    "concat with a raw batch": lambda batch: [DataProto.concat([batch, batch_of(ROWS[:2], first=4)])],
    "concat with a finalized batch": lambda batch: [DataProto.concat([batch_of(ROWS[:2]).finalize(), batch])],
    "concat with a plain batch": lambda batch: [
        DataProto.concat([batch_of(ROWS[:2], cls=DataProto).select(non_tensor_batch_keys=["uid"]), batch])
    ],
    "union": lambda batch: [batch.union(prompts())],
    "union, on the right": lambda batch: [prompts().union(batch)],
    "make_iterator": lambda batch: list(batch.make_iterator(2, 2)),
    "to_tensordict": lambda batch: [DataProto.from_tensordict(batch.to_tensordict())],
}
_MOST_LOOKS = 60


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_batch_that_is_finalized_meanwhile_counts_as_raw_or_as_finalized_and_as_nothing_between(use):
    right = [list(map(told, use(batch))) for batch in (batch_of(ROWS), batch_of(ROWS).finalize())]
    for looks in range(1, _MOST_LOOKS):
        batch = batch_of(ROWS, cls=Interrupted)
        batch.looks = looks
        assert list(map(told, use(batch))) in right, f"finalized by another after {looks} looks"
    assert batch.looks > 0, "there were more looks than were tried"


# --- threads with batches of their own ---------------------------------------------------------------------------


def test_threads_that_finalize_concatenate_and_unite_batches_of_their_own_do_not_meet():
    rows = [[{"acc": float(n), f"key {n % 5}": [n] * (n % 3)} for n in range(first, first + 50)] for first in range(40)]
    alone = [told(through(batch)) for batch in rows]
    with ThreadPoolExecutor(16) as threads:
        for _ in range(5):
            assert list(threads.map(lambda batch: told(through(batch)), rows)) == alone


def through(rows: Any) -> DataProto:
    """Raw chunks concatenated, finalized, beside a finalized one, united with a batch of prompts."""
    cut = len(rows) // 2
    batch = SparseDataProto.concat([batch_of(rows[:cut]), batch_of(rows[cut:], first=cut)]).finalize()
    batch = SparseDataProto.concat([batch, batch_of(rows, first=len(rows)).finalize(keep_raw=False)])
    tensors = TensorDict({"length": torch.arange(len(batch))}, batch_size=len(batch))
    return batch.union(DataProto(batch=tensors, non_tensor_batch={"extra": np.arange(len(batch))}))
