"""verl's own operations on a batch that carries a raw column: a `SparseDataProto`, and a plain one with the plugin.

Where a bare subclass of `np.ndarray` would be lost, a test shows the loss on stock verl.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import pytest
import torch
from batches import BOTH, ROWS, Bare, assert_holds, bare, batch_of, everything
from tensordict import TensorDict
from verl import DataProto
from verl import protocol as verl_protocol
from verl.protocol import BatchData, DataProtoItem
from verl.utils.tensordict_utils import contiguous

from verl_ext.column import RAW_COLUMN, SparseNonTensor


class Operation(NamedTuple):
    """Something verl does to a batch, and the rows of what comes out, in order."""

    run: Callable[[DataProto], list[DataProto]]
    picks: Callable[[int], list[int]]
    needs_rows: bool = False
    """Whether verl, torch or tensordict itself refuses a batch of 0 rows."""
    needs_tensors: bool = False
    """Whether verl itself refuses a batch without tensors."""
    loses_bare: bool = False
    """Whether verl makes a plain array of a bare subclass on the way."""


def in_place(change: Callable[[DataProto], Any]) -> Callable[[DataProto], list[DataProto]]:
    def run(batch: DataProto) -> list[DataProto]:
        change(batch)
        return [batch]

    return run


def unpadded(batch: DataProto) -> list[DataProto]:
    padded, size = verl_protocol.pad_dataproto_to_divisor(batch, 3)
    return [verl_protocol.unpad_dataproto(padded, size)]


def shuffled(batch: DataProto) -> list[DataProto]:
    return list(batch.make_iterator(2, 2, seed=1, dataloader_kwargs={"shuffle": True}))


def shuffled_picks(rows: int) -> list[int]:
    """The order that stock verl draws from this seed."""
    bare_batch = DataProto(batch=TensorDict({"number": torch.arange(rows)}, batch_size=rows))
    return [int(number) for batch in shuffled(bare_batch) for number in batch.batch["number"]]


def from_tensordict(td: TensorDict) -> DataProto:
    return DataProto.from_tensordict(td)


def dispatched(batch: DataProto) -> list[DataProto]:
    """As verl sends a TensorDict to its workers and back: chunked, consolidated, pickled, concatenated."""
    chunks = [pickle.loads(pickle.dumps(chunk)) for chunk in BatchData(batch.to_tensordict()).chunk(2)]  # noqa: S301
    return [from_tensordict(BatchData(chunks).concat())]


def mask(rows: int) -> list[bool]:
    return [number % 3 != 1 for number in range(rows)]


def masked(rows: int) -> list[int]:
    return [number for number in range(rows) if number % 3 != 1]


def twice_each(rows: int) -> list[int]:
    return [number for number in range(rows) for _ in range(2)]


def times(rows: int) -> list[int]:
    return [number % 3 for number in range(rows)]


def sample_level(rows: int) -> list[int]:
    return [number for number in range(rows) for _ in range(number % 3)]


def backwards(rows: int) -> list[int]:
    return list(range(rows))[::-1]


OPERATIONS = {
    "slice": Operation(lambda b: [b[1:3]], lambda n: everything(n)[1:3]),
    "slice with a step": Operation(lambda b: [b[::2]], lambda n: everything(n)[::2]),
    "slice to nothing": Operation(lambda b: [b[:0]], lambda n: []),
    "slice method": Operation(lambda b: [b.slice(1, None)], lambda n: everything(n)[1:]),
    "index by a list": Operation(lambda b: [b[backwards(len(b))]], backwards),
    "index by an array": Operation(lambda b: [b[np.array(backwards(len(b)), dtype=int)]], backwards),
    "index by a tensor": Operation(lambda b: [b[torch.tensor(backwards(len(b)), dtype=int)]], backwards),
    "mask as a list": Operation(lambda b: [b[mask(len(b))]], masked, needs_rows=True),
    "mask as an array": Operation(lambda b: [b[np.array(mask(len(b)), dtype=bool)]], masked),
    "mask as a tensor": Operation(lambda b: [b[torch.tensor(mask(len(b)), dtype=bool)]], masked),
    "select_idxs": Operation(lambda b: [b.select_idxs([0, 0])], lambda n: [0, 0], needs_rows=True),
    "select": Operation(lambda b: [b.select(non_tensor_batch_keys=["uid", RAW_COLUMN])], everything),
    "select with tensors": Operation(lambda b: [b.select(batch_keys=["number"])], everything, needs_tensors=True),
    "select with deepcopy": Operation(lambda b: [b.select(deepcopy=True)], everything),
    "chunk": Operation(lambda b: b.chunk(2), everything, needs_rows=True),
    "split": Operation(lambda b: b.split(3), everything, needs_rows=True),
    "repeat interleaved": Operation(lambda b: [b.repeat(2, interleave=True)], twice_each),
    "repeat in blocks": Operation(lambda b: [b.repeat(2, interleave=False)], lambda n: everything(n) * 2),
    "sample_level_repeat by a list": Operation(
        lambda b: [b.sample_level_repeat(times(len(b)))], sample_level, needs_rows=True
    ),
    "sample_level_repeat by an array": Operation(
        lambda b: [b.sample_level_repeat(np.array(times(len(b)), dtype=int))], sample_level, needs_rows=True
    ),
    "sample_level_repeat by a tensor": Operation(
        lambda b: [b.sample_level_repeat(torch.tensor(times(len(b)), dtype=int))], sample_level, needs_rows=True
    ),
    "unfold_column_chunks": Operation(lambda b: [b.unfold_column_chunks(2, split_keys=["rm_scores"])], twice_each),
    "reorder": Operation(
        in_place(lambda b: b.reorder(torch.tensor(backwards(len(b)), dtype=int))), backwards, needs_tensors=True
    ),
    "pad_dataproto_to_divisor": Operation(
        lambda b: [verl_protocol.pad_dataproto_to_divisor(b, 6)[0]],
        lambda n: [*range(n), 0, 1][: n + 2 if n else 0],
        needs_rows=True,
        loses_bare=True,
    ),
    "padding to several times its size": Operation(
        lambda b: [verl_protocol.pad_dataproto_to_divisor(b, 11)[0]],
        lambda n: (everything(n) * 3)[:11],
        needs_rows=True,
        loses_bare=True,
    ),
    "nothing to pad": Operation(lambda b: [verl_protocol.pad_dataproto_to_divisor(b, 2)[0]], everything),
    "pad and unpad_dataproto": Operation(unpadded, everything, needs_rows=True, loses_bare=True),
    "padding with the last": Operation(
        in_place(lambda b: b.padding(2, "last")), lambda n: [*range(n), n - 1, n - 1], needs_rows=True, loses_bare=True
    ),
    "padding with the first": Operation(
        in_place(lambda b: b.padding(1, "first")), lambda n: [*range(n), 0], needs_rows=True, loses_bare=True
    ),
    "pop": Operation(lambda b: [b.pop(non_tensor_batch_keys=["uid", RAW_COLUMN], meta_info_keys=["step"])], everything),
    "pop with tensors": Operation(
        lambda b: [b.pop(["number"], ["uid", RAW_COLUMN], ["step"])], everything, needs_tensors=True
    ),
    "pop of what stays": Operation(in_place(lambda b: b.pop(["rm_scores"])), everything, needs_tensors=True),
    "rename": Operation(in_place(lambda b: b.rename("rm_scores", "scores")), everything, needs_tensors=True),
    "to a device": Operation(lambda b: [b.to("cpu")], everything),
    "make_iterator": Operation(
        lambda b: list(b.make_iterator(2, 2)), lambda n: everything(n) * 2, True, True, loses_bare=True
    ),
    "make_iterator shuffled": Operation(shuffled, shuffled_picks, True, True, loses_bare=True),
    "pickle": Operation(lambda b: [pickle.loads(pickle.dumps(b))], everything),  # noqa: S301
    "cloudpickle": Operation(lambda b: [cloudpickle.loads(cloudpickle.dumps(b))], everything),
    "copy": Operation(lambda b: [copy.copy(b)], everything),
    "deepcopy": Operation(lambda b: [copy.deepcopy(b)], everything),
    "TensorDict and back": Operation(
        lambda b: [from_tensordict(b.to_tensordict())], everything, needs_tensors=True, loses_bare=True
    ),
    "a pickled TensorDict": Operation(
        lambda b: [from_tensordict(pickle.loads(pickle.dumps(b.to_tensordict())))],  # noqa: S301
        everything,
        needs_tensors=True,
        loses_bare=True,
    ),
    "a consolidated TensorDict": Operation(
        lambda b: [from_tensordict(contiguous(b.to_tensordict()).consolidate())],
        everything,
        needs_tensors=True,
        loses_bare=True,
    ),
    "an indexed TensorDict": Operation(
        lambda b: [from_tensordict(b.to_tensordict()[torch.tensor(backwards(len(b)))])],
        backwards,
        True,
        True,
        loses_bare=True,
    ),
    "TensorDicts as verl dispatches them": Operation(dispatched, everything, True, True, loses_bare=True),
    "fold_batch_dim and back": Operation(
        lambda b: [verl_protocol.unfold_batch_dim(verl_protocol.fold_batch_dim(b, 2))], everything, True, True
    ),
    "concat": Operation(lambda b: [DataProto.concat([b, b])], lambda n: everything(n) * 2, loses_bare=True),
    "BatchData": Operation(
        lambda b: [BatchData(BatchData(b).chunk(2)).concat()], everything, needs_rows=True, loses_bare=True
    ),
}

each_operation = pytest.mark.parametrize("name", OPERATIONS)
each_without_tensors = pytest.mark.parametrize("name", [n for n, op in OPERATIONS.items() if not op.needs_tensors])
each_without_rows = pytest.mark.parametrize("name", [n for n, op in OPERATIONS.items() if not op.needs_rows])


@BOTH
@each_operation
def test_a_raw_column_and_its_rows_stay_through(cls: type[DataProto], name: str) -> None:
    operation = OPERATIONS[name]
    results = operation.run(batch_of(cls))
    assert all(isinstance(batch, cls) for batch in results)
    assert_holds(results, operation.picks(len(ROWS)), ROWS)


@BOTH
@each_without_tensors
def test_the_same_holds_for_a_batch_without_tensors(cls: type[DataProto], name: str) -> None:
    operation = OPERATIONS[name]
    results = operation.run(batch_of(cls, tensors=False))
    assert all(isinstance(batch, cls) and batch.batch is None for batch in results)
    assert_holds(results, operation.picks(len(ROWS)), ROWS)


@BOTH
@each_without_rows
def test_the_same_holds_for_a_batch_of_0_rows(cls: type[DataProto], name: str) -> None:
    operation = OPERATIONS[name]
    results = operation.run(batch_of(cls, []))
    assert all(isinstance(batch, cls) and len(batch) == 0 for batch in results)
    assert_holds(results, operation.picks(0), [])


@BOTH
@each_operation
def test_the_same_holds_where_all_rows_are_alike(cls: type[DataProto], name: str) -> None:
    rows = [{"acc": 1.0}] * 4  # a TensorDict may make one value of equal ones
    operation = OPERATIONS[name]
    assert_holds(operation.run(batch_of(cls, rows)), operation.picks(4), rows)


@pytest.mark.usefixtures("stock_verl")
@each_operation
def test_a_bare_subclass_on_stock_verl_is_lost_exactly_where_we_have_a_handler(name: str) -> None:
    operation = OPERATIONS[name]
    results = operation.run(batch_of(DataProto, column=bare))
    assert_holds(results, operation.picks(4), ROWS, column=np.ndarray if operation.loses_bare else Bare)


class BareProto(DataProto):
    """What a batch class would be without overrides of its own."""


@pytest.mark.usefixtures("stock_verl")
def test_a_bare_batch_class_is_lost_in_pop_and_in_make_iterator() -> None:
    batch = batch_of(BareProto, column=bare)
    assert type(batch[1:]) is BareProto
    assert {type(mini_batch) for mini_batch in batch.make_iterator(2, 1)} == {DataProto}
    assert type(batch.pop(["number"])) is DataProto


@BOTH
def test_an_int_gives_the_item_with_its_own_row(cls: type[DataProto]) -> None:
    for number in (1, np.int64(1), -3):
        item = batch_of(cls)[number]
        assert type(item) is DataProtoItem
        assert item.non_tensor_batch == {"uid": "u1", RAW_COLUMN: ROWS[1]}
        assert item.non_tensor_batch[RAW_COLUMN] is ROWS[1]


@BOTH
def test_a_folded_column_is_still_one_and_has_two_dimensions(cls: type[DataProto]) -> None:
    folded = verl_protocol.fold_batch_dim(batch_of(cls), 2)
    column = folded.non_tensor_batch[RAW_COLUMN]
    assert type(column) is SparseNonTensor
    assert column.tolist() == [ROWS[:2], ROWS[2:]]
    assert folded[1:].non_tensor_batch[RAW_COLUMN].tolist() == [ROWS[2:]]
