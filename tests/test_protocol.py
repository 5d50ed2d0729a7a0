"""Batches that carry a raw column: verl's own operations on them, `finalize`, `concat`, `union`.

Every operation runs on verl's real classes, on a `SparseDataProto` and on a plain `DataProto` that carries a raw column
(the plugin is active then). Where a bare subclass of `np.ndarray` would be lost, a test shows the loss on stock verl.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import pytest

pytest.importorskip("verl")

import ray
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import alike, cuts, objects, pieces, reward_rows
from tensordict import TensorDict
from verl import DataProto
from verl import protocol as verl_protocol
from verl.protocol import BatchData, DataProtoFuture, DataProtoItem
from verl.utils.tensordict_utils import contiguous

from verl_ext import plugin
from verl_ext.column import MANAGER_FINALIZES, RAW_COLUMN, SparseNonTensor
from verl_ext.errors import BatchMismatchError, FieldCollisionError, RowError, UnfinalizedError
from verl_ext.plugin._site import holding
from verl_ext.protocol import SparseDataProto, as_sparse, attach_reward_extra_info, is_ours
from verl_ext.schema import assemble_reward_extra_info

ROWS: list[dict[str, Any] | None] = [{"acc": 1.0}, {"acc": 0.0, "pred": "42"}, None, {}]
BOTH = pytest.mark.parametrize("cls", [SparseDataProto, DataProto], ids=["SparseDataProto", "DataProto"])


class Bare(np.ndarray):
    """What a column type would be without handlers of its own."""


def bare(rows: Any) -> np.ndarray:
    return objects(rows).view(Bare)


def batch_of(
    cls: type[DataProto] = SparseDataProto,
    rows: Any = tuple(ROWS),
    *,
    column: Callable[[Any], np.ndarray] = SparseNonTensor,
    tensors: bool = True,
    first: int = 0,
    **columns: Any,
) -> DataProto:
    """A scored batch: tensors `number` and `rm_scores`, columns `uid` and the raw one, all counted from `first`."""
    numbers = torch.arange(first, first + len(rows))
    scores = torch.stack([numbers, -numbers], dim=1).float()
    return cls(
        batch=TensorDict({"number": numbers, "rm_scores": scores}, batch_size=len(rows)) if tensors else None,
        non_tensor_batch={"uid": objects(f"u{number}" for number in numbers), RAW_COLUMN: column(rows), **columns},
        meta_info={"step": 7},
    )


def scored(rows: Any, **kwargs: Any) -> DataProto:
    return batch_of(SparseDataProto, rows, **kwargs)


def finalized(rows: Any, keep_raw: bool = False, **kwargs: Any) -> DataProto:
    return scored(rows, **kwargs).finalize(keep_raw=keep_raw)


def plain(column: Any, **columns: Any) -> DataProto:
    """A stock batch of one tensor and these columns."""
    columns = {"uid": column, **columns}
    return DataProto(
        batch=TensorDict({"number": torch.arange(len(column))}, batch_size=len(column)),
        non_tensor_batch={name: objects(values) for name, values in columns.items()},
    )


def columns_of(batch: DataProto) -> dict[str, Any]:
    """Dtype and values of every column, in order."""
    return {name: (str(column.dtype), column.tolist()) for name, column in batch.non_tensor_batch.items()}


def snapshot(batch: DataProto) -> Any:
    """Everything that must not change behind a caller's back: the containers' contents, by identity."""
    tensors = None if batch.batch is None else {name: (id(t), t.tolist()) for name, t in batch.batch.items()}
    columns = {name: (id(column), copy.copy(column).tolist()) for name, column in batch.non_tensor_batch.items()}
    return tensors, columns, copy.deepcopy(batch.meta_info)


@pytest.fixture(autouse=True)
def active_plugin() -> Iterator[None]:
    plugin.activate()
    assert plugin.site_is_active("protocol")
    yield
    plugin.activate()


@pytest.fixture
def stock_verl(active_plugin: None) -> Iterator[None]:
    """verl's own functions, for the length of a test."""
    plugin.deactivate()
    yield
    plugin.activate()


# --- verl's operations -------------------------------------------------------------------------------------------


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


def everything(rows: int) -> list[int]:
    return list(range(rows))


def in_place(change: Callable[[DataProto], Any]) -> Callable[[DataProto], list[DataProto]]:
    def run(batch: DataProto) -> list[DataProto]:
        change(batch)
        return [batch]

    return run


def through_disk(batch: DataProto, folder: Path) -> DataProto:
    batch.save_to_disk(folder / "batch.pkl")
    return DataProto.load_from_disk(folder / "batch.pkl")


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


def assert_holds(results: list[DataProto], picks: list[int], rows: Any, column: type = SparseNonTensor) -> None:
    """All results together hold these rows, beside their tensors and ids, in columns of this class."""
    assert all(type(batch.non_tensor_batch[RAW_COLUMN]) is column for batch in results)
    assert all(batch.non_tensor_batch[RAW_COLUMN].dtype == object for batch in results)
    assert [row for batch in results for row in batch.non_tensor_batch[RAW_COLUMN].tolist()] == [rows[i] for i in picks]
    assert [uid for batch in results for uid in batch.non_tensor_batch["uid"]] == [f"u{i}" for i in picks]
    assert all(batch.meta_info == {"step": 7} for batch in results)
    for batch in results:
        batch.check_consistency()
        if batch.batch is not None and "number" in batch.batch.keys():
            assert [f"u{number}" for number in batch.batch["number"].tolist()] == batch.non_tensor_batch["uid"].tolist()


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


@pytest.mark.usefixtures("stock_verl")
def test_stock_verl_cannot_make_a_tensordict_of_0_rows_with_columns() -> None:
    with pytest.raises(IndexError):
        batch_of(DataProto, [], column=objects).to_tensordict()


@BOTH
def test_an_int_gives_the_item_with_its_own_row(cls: type[DataProto]) -> None:
    for number in (1, np.int64(1), -3):
        item = batch_of(cls)[number]
        assert type(item) is DataProtoItem
        assert item.non_tensor_batch == {"uid": "u1", RAW_COLUMN: ROWS[1]}
        assert item.non_tensor_batch[RAW_COLUMN] is ROWS[1]


@BOTH
@pytest.mark.parametrize(
    ("method", "rows", "tensors"),
    [
        (None, ROWS, True),
        (None, ROWS, False),
        (None, [], True),
        (None, [], False),
        ("numpy", ROWS, True),
        ("numpy", ROWS, False),
        ("numpy", [], False),  # (verl's "numpy" method cannot read tensors of 0 rows)
    ],
)
def test_both_serialization_methods_and_the_disk_keep_the_column(
    cls: type[DataProto], method: str | None, rows: Any, tensors: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("VERL_DATAPROTO_SERIALIZATION_METHOD", raising=False)
    if method is not None:
        monkeypatch.setenv("VERL_DATAPROTO_SERIALIZATION_METHOD", method)
    batch = batch_of(cls, rows, tensors=tensors)
    results = [pickle.loads(pickle.dumps(batch)), through_disk(batch, tmp_path)]  # noqa: S301
    assert all(type(result) is cls for result in results)
    assert_holds(results, everything(len(rows)) * 2, rows)


@BOTH
def test_a_folded_column_is_still_one_and_has_two_dimensions(cls: type[DataProto]) -> None:
    folded = verl_protocol.fold_batch_dim(batch_of(cls), 2)
    column = folded.non_tensor_batch[RAW_COLUMN]
    assert type(column) is SparseNonTensor
    assert column.tolist() == [ROWS[:2], ROWS[2:]]
    assert folded[1:].non_tensor_batch[RAW_COLUMN].tolist() == [ROWS[2:]]


@BOTH
@pytest.mark.parametrize("rows", [ROWS, []], ids=["4 rows", "0 rows"])
def test_what_verl_prints_about_a_batch_knows_the_column(
    cls: type[DataProto], rows: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = batch_of(cls, rows)
    batch.print_size("rollout")
    assert capsys.readouterr().out.startswith("rollout, Size of tensordict: ")
    assert f"  {RAW_COLUMN}: ndarray({len(rows)},) (object)" in batch.get_data_info().splitlines()


@BOTH
def test_a_batch_can_be_made_by_verls_constructors(cls: type[DataProto]) -> None:
    for batch in (
        cls.from_dict(tensors={"number": torch.arange(4)}, non_tensors={RAW_COLUMN: SparseNonTensor(ROWS)}),
        cls.from_single_dict({"number": torch.arange(4), RAW_COLUMN: SparseNonTensor(ROWS)}),
    ):
        assert type(batch) is cls
        assert type(batch.non_tensor_batch[RAW_COLUMN]) is SparseNonTensor


def test_a_batch_is_ours_by_what_it_holds_or_by_its_class() -> None:
    assert is_ours(SparseDataProto())
    assert is_ours(batch_of(DataProto))
    assert is_ours(batch_of(DataProto, column=objects))
    assert is_ours(DataProto(meta_info={"reward_extra_keys": []}))
    assert not is_ours(plain(["u0"], metrics=[{"acc": 1.0}]))
    assert not is_ours([{}])


def test_as_sparse_shares_what_a_batch_holds() -> None:
    plain_batch = batch_of(DataProto)
    ours = as_sparse(plain_batch)
    assert type(ours) is SparseDataProto
    assert ours.non_tensor_batch is plain_batch.non_tensor_batch
    assert ours.meta_info is plain_batch.meta_info
    assert as_sparse(ours) is ours


def test_attaching_reward_dicts_gives_a_raw_batch_and_leaves_the_output_as_it_was() -> None:
    output = plain(["u0", "u1"], multi_modal_inputs=[{}, {}], turn_scores=[[1.0], []])
    before = snapshot(output)
    rows = [{"acc": 1.0}, None]
    with holding(MANAGER_FINALIZES, True):
        batch = attach_reward_extra_info(output, iter(rows))
    assert snapshot(output) == before
    assert type(batch) is SparseDataProto
    assert batch.batch is output.batch
    assert batch.meta_info is output.meta_info
    assert list(batch.non_tensor_batch) == ["uid", RAW_COLUMN, "multi_modal_inputs", "turn_scores"]
    assert batch.non_tensor_batch[RAW_COLUMN].tolist() == rows
    with holding(MANAGER_FINALIZES, True):
        assert list(attach_reward_extra_info(plain(["u0"], a=[1]), [{}]).non_tensor_batch) == ["uid", "a", RAW_COLUMN]
    with pytest.raises(RowError, match="row 1 "):
        attach_reward_extra_info(output, [{}, 5])  # type: ignore[list-item]


# --- TensorDict, the details -------------------------------------------------------------------------------------


@BOTH
def test_a_tensordict_that_lost_the_raw_column_on_its_way_still_becomes_a_batch(cls: type[DataProto]) -> None:
    batch = cls.from_tensordict(batch_of(cls).to_tensordict().exclude(RAW_COLUMN))
    assert list(batch.non_tensor_batch) == ["uid"]
    assert batch.meta_info == {"step": 7}


def test_a_tensordict_that_stock_made_becomes_a_batch_of_ours_with_what_the_caller_adds_to_meta_info() -> None:
    made = batch_of(DataProto, column=objects).select(non_tensor_batch_keys=["uid"]).to_tensordict()
    for batch in (
        SparseDataProto.from_tensordict(made, {"added": 1}),
        SparseDataProto.from_tensordict(made, meta_info={"added": 1}),
    ):
        assert type(batch) is SparseDataProto
        assert batch.non_tensor_batch["uid"].tolist() == ["u0", "u1", "u2", "u3"]
        assert batch.meta_info == {"step": 7, "added": 1}


@pytest.mark.parametrize("key", [1, None, True, b"acc", 0.5, (), ("acc", 1), 10**5000], ids=type)
@BOTH
def test_a_column_whose_name_is_no_text_is_refused_by_name_where_verl_makes_a_tensordict(
    cls: type[DataProto], key: Any, stock: Callable[[], Any]
) -> None:
    raw = batch_of(rows=[{"acc": 1.0, key: 2.0}] * 2)
    back = DataProto.from_tensordict(raw.to_tensordict())
    assert back.non_tensor_batch[RAW_COLUMN].tolist() == [{"acc": 1.0, key: 2.0}] * 2, "in a row it is no name yet"
    aligned = raw.finalize()
    batch = cls(batch=aligned.batch, non_tensor_batch=aligned.non_tensor_batch, meta_info=aligned.meta_info)
    before = snapshot(batch)
    with pytest.raises(RowError, match=rf"^the reward key .* is of type {type(key).__name__}, .* takes only str"):
        batch.to_tensordict()
    assert snapshot(batch) == before
    with stock(), pytest.raises((IndexError, ValueError, TypeError, RuntimeError)):
        DataProto(batch=batch.batch, non_tensor_batch={key: aligned.non_tensor_batch[key]}).to_tensordict()


def test_a_tuple_of_text_names_a_column_within_a_column_as_on_stock(stock: Callable[[], Any]) -> None:
    aligned = finalized([{("judge", "acc"): 1.0}, {("judge", "acc"): 0.5}])
    ours = as_plain(aligned).to_tensordict()
    with stock():
        assert str(as_plain(aligned).to_tensordict()) == str(ours)
    assert list(ours["judge", "acc"]) == [1.0, 0.5]


def as_plain(batch: DataProto) -> DataProto:
    return DataProto(batch=batch.batch, non_tensor_batch=batch.non_tensor_batch, meta_info=batch.meta_info)


def test_what_to_tensordict_remembers_is_not_left_in_meta_info_on_either_side() -> None:
    batch = batch_of()
    meta: dict[str, Any] = {"given": 1}
    back = DataProto.from_tensordict(batch.to_tensordict(), meta_info=meta)
    assert batch.meta_info == {"step": 7}
    assert back.meta_info == {"given": 1, "step": 7}


@pytest.mark.parametrize(
    "values",
    [
        [[1, 2], [3, 4]],
        [[1], []],
        [np.ones((2, 3)), np.ones((2, 4))],
        [(1, 2), (3, 4)],
        [{"a": torch.ones(2)}, {}],
        [None, None],
    ],
    ids=["lists of one length", "ragged lists", "ragged arrays", "tuples", "dicts of tensors", "None"],
)
def test_one_value_per_row_comes_back_from_a_tensordict_as_it_was(values: list[Any]) -> None:
    batch = batch_of(rows=ROWS[:2], values=objects(values))
    column = DataProto.from_tensordict(batch.to_tensordict()).non_tensor_batch["values"]
    assert column.shape == (2,)
    for found, value in zip(column, values, strict=True):
        assert type(found) is type(value)
        assert str(found) == str(value)


def test_several_raw_columns_come_back_from_a_tensordict_in_their_order() -> None:
    batch = batch_of(tool_info=SparseNonTensor([{"calls": n} for n in range(4)]))
    back = DataProto.from_tensordict(batch.to_tensordict())
    assert {name: type(column) for name, column in back.non_tensor_batch.items()} == {
        "uid": np.ndarray,
        RAW_COLUMN: SparseNonTensor,
        "tool_info": SparseNonTensor,
    }


@pytest.mark.usefixtures("stock_verl")
def test_a_batch_of_ours_without_raw_columns_makes_the_tensordict_that_stock_makes() -> None:
    stock = batch_of(DataProto, column=objects).to_tensordict()
    ours = batch_of(column=objects).to_tensordict()
    assert list(ours.keys()) == list(stock.keys())
    assert ours.batch_size == stock.batch_size


# --- futures and process groups ----------------------------------------------------------------------------------


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
@BOTH
def test_a_future_of_remote_chunks_gives_the_whole_batch_and_its_chunks(cls: type[DataProto]) -> None:
    future = DataProtoFuture.concat([ray.put(chunk) for chunk in batch_of(cls).chunk(2)])
    assert_holds([future.get()], everything(4), ROWS)
    assert_holds([part.get() for part in future.chunk(4)], everything(4), ROWS)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
@BOTH
def test_a_future_takes_chunks_of_unequal_schemas_and_states(cls: type[DataProto]) -> None:
    chunks = [finalized([{"acc": 1.0}]), batch_of(cls, [{"pred": "42"}], first=1)]
    batch = DataProtoFuture.concat([ray.put(chunk) for chunk in chunks]).get()
    assert columns_of(batch)["acc"] == ("object", [1.0, None])
    assert columns_of(batch)["pred"] == ("object", [None, "42"])


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session", "stock_verl")
def test_a_future_on_stock_verl_loses_a_bare_subclass_and_refuses_unequal_schemas() -> None:
    chunks = batch_of(DataProto, column=bare).chunk(2)
    whole = DataProtoFuture.concat(list(map(ray.put, chunks))).get()
    assert type(whole.non_tensor_batch[RAW_COLUMN]) is np.ndarray
    chunks = [plain(["u0"], acc=[1.0]), plain(["u1"], pred=["42"])]
    with pytest.raises(AssertionError, match="keys of the first dictionary"):
        DataProtoFuture.concat(list(map(ray.put, chunks))).get()


@pytest.fixture
def process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A real gloo group of one process. The device id is a double: verl asks for an accelerator's, a CPU has none."""

    def device_id_double() -> str:
        return "cpu"

    monkeypatch.setattr(verl_protocol, "get_device_id", device_id_double)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


@BOTH
@pytest.mark.parametrize("rows", [ROWS, []], ids=["4 rows", "0 rows"])
def test_all_gather_keeps_the_column(cls: type[DataProto], rows: Any, process_group: Any) -> None:
    batch = batch_of(cls, rows)
    verl_protocol.all_gather_data_proto(batch, process_group)
    assert_holds([batch], everything(len(rows)), rows)


@pytest.mark.usefixtures("stock_verl")
def test_all_gather_loses_a_bare_subclass(process_group: Any) -> None:
    batch = batch_of(DataProto, column=bare)
    verl_protocol.all_gather_data_proto(batch, process_group)
    assert_holds([batch], everything(4), ROWS, column=np.ndarray)


# --- finalize ----------------------------------------------------------------------------------------------------


def test_finalize_aligns_the_columns_in_place_and_names_them_in_meta_info() -> None:
    batch = batch_of()
    assert batch.finalize() is batch
    assert columns_of(batch) == {
        "uid": ("object", ["u0", "u1", "u2", "u3"]),
        "acc": ("object", [1.0, 0.0, None, None]),
        "pred": ("object", [None, "42", None, None]),
        RAW_COLUMN: ("object", ROWS),
    }
    assert type(batch.non_tensor_batch[RAW_COLUMN]) is np.ndarray
    assert batch.meta_info == {"step": 7, "reward_extra_keys": ["acc", "pred"]}


def test_finalize_leaves_the_dicts_behind_as_the_same_objects_or_not_at_all() -> None:
    kept = batch_of().finalize(keep_raw=True).non_tensor_batch[RAW_COLUMN]
    assert all(row is original for row, original in zip(kept, ROWS, strict=True))
    assert RAW_COLUMN not in batch_of().finalize(keep_raw=False).non_tensor_batch


def test_finalizing_again_changes_nothing() -> None:
    batch = batch_of().finalize()
    before = snapshot(batch)
    for keep_raw in (True, False):
        assert batch.finalize(keep_raw=keep_raw) is batch
        assert snapshot(batch) == before


def test_finalizing_again_with_a_name_that_was_not_reserved_before_refuses_it() -> None:
    batch = batch_of().finalize()
    before = snapshot(batch)
    with pytest.raises(FieldCollisionError, match="'acc' is already a column of the prompts"):
        batch.finalize(reserved={"acc": "a column of the prompts", "uid": "another"})
    assert snapshot(batch) == before


def test_a_batch_without_raw_columns_is_finalized_already() -> None:
    batch = SparseDataProto(non_tensor_batch={"uid": objects("ab")}, meta_info={"step": 7})
    before = snapshot(batch)
    assert snapshot(batch.finalize()) == before


def test_reward_extra_keys_are_named_only_where_there_are_scores() -> None:
    for batch in (batch_of(tensors=False), batch_of()):
        if batch.batch is not None:
            batch.pop(["rm_scores"])
        batch.finalize()
        assert "acc" in batch.non_tensor_batch
        assert batch.meta_info == {"step": 7}


def test_a_batch_whose_only_raw_column_is_no_reward_names_no_reward_extra_keys() -> None:
    batch = batch_of(column=objects, tool_info=SparseNonTensor([{"calls": 1}] * 4)).finalize()
    assert columns_of(batch)["tool_info/calls"] == ("int64", [1, 1, 1, 1])
    assert batch.meta_info == {"step": 7}


def test_reward_extra_keys_that_were_there_stay_first() -> None:
    batch = batch_of()
    batch.meta_info["reward_extra_keys"] = ["earlier", "acc"]
    assert batch.finalize().meta_info["reward_extra_keys"] == ["earlier", "acc", "pred"]
    assert scored([{}, None]).finalize().meta_info["reward_extra_keys"] == []


def test_0_rows_finalize_to_no_reward_columns() -> None:
    batch = scored([]).finalize(keep_raw=False)
    assert columns_of(batch) == {"uid": ("object", [])}
    assert batch.meta_info == {"step": 7, "reward_extra_keys": []}


def test_a_raw_column_of_another_name_flattens_under_its_name_and_is_no_reward() -> None:
    batch = batch_of(tool_info=SparseNonTensor([{"calls": 1}, {"calls": 2, "acc": 1}, {"calls": 3}, {"calls": 4}]))
    batch.finalize(keep_raw=False)
    assert columns_of(batch) == {
        "uid": ("object", ["u0", "u1", "u2", "u3"]),
        "acc": ("object", [1.0, 0.0, None, None]),
        "pred": ("object", [None, "42", None, None]),
        "tool_info/calls": ("int64", [1, 2, 3, 4]),
        "tool_info/acc": ("object", [None, 1, None, None]),
    }
    assert batch.meta_info["reward_extra_keys"] == ["acc", "pred"]


def test_chunks_and_selections_that_share_dicts_are_not_changed_behind_their_back() -> None:
    batch = batch_of()
    relatives = [batch.select(), batch[:2], *batch.chunk(2), copy.copy(batch)]
    before = [snapshot(relative) for relative in relatives]
    batch.finalize(keep_raw=False)
    assert [snapshot(relative) for relative in relatives] == before
    assert all(type(relative.non_tensor_batch[RAW_COLUMN]) is SparseNonTensor for relative in relatives)
    assert all("reward_extra_keys" not in relative.meta_info for relative in relatives)


def test_a_folded_batch_must_be_unfolded_first() -> None:
    folded = verl_protocol.fold_batch_dim(batch_of(), 2)
    before = snapshot(folded)
    with pytest.raises(UnfinalizedError, match=r"'reward_extra_info' is folded to shape \(2, 2\): unfold_batch_dim"):
        folded.finalize()
    assert snapshot(folded) == before
    assert "acc" in verl_protocol.unfold_batch_dim(folded).finalize().non_tensor_batch


def test_an_error_while_aligning_leaves_the_batch_as_it_was() -> None:
    batch = scored([{"acc": 1.0}, {"acc": 0.0}], other=SparseNonTensor([{"a": 1}, {"a": 2}]))
    batch.non_tensor_batch[RAW_COLUMN].view(np.ndarray)[1] = "written past the column's own check"
    before = snapshot(batch)
    with pytest.raises(RowError, match="row 1 of the raw column is a str"):
        batch.finalize()
    assert snapshot(batch) == before


def cases(name: str) -> list[dict[str, Any]]:
    """Small inputs, from beside the checkout where they are, else the copy."""
    here = Path(__file__).parent
    shared = here.parents[1] / "shared" / "cases" / name
    return json.loads((shared if shared.exists() else here / "data" / name).read_text())


COLLISIONS = [
    pytest.param(case["key"], case["where"], id=case["name"])
    for case in cases("collisions.json")
    if case["key"] != RAW_COLUMN  # is carried: see "a reward key that is called as the raw column"
]
OUTPUT = dict.fromkeys(("__num_turns__", "turn_scores", RAW_COLUMN), "a column that the agent loop writes")
PROMPTS = dict.fromkeys(("data_source", "reward_model", "extra_info", "uid"), "a column of the prompts")


@pytest.mark.parametrize(("key", "where"), COLLISIONS)
def test_a_reward_key_is_refused_by_name_where_it_would_overwrite_something(key: str, where: str) -> None:
    batch = scored([{"acc": 1.0}, {key: "x"}])
    del batch.non_tensor_batch["uid"]
    batch.batch["responses"] = torch.zeros(2, 3)
    before = snapshot(batch)
    if where == "allowed":
        assert columns_of(batch.finalize(reserved={**OUTPUT, **PROMPTS}))[key] == ("object", [None, "x"])
        return
    with pytest.raises(FieldCollisionError, match=rf"'{key}' \(first in row 1\) is already ") as caught:
        batch.finalize(reserved={**OUTPUT, **PROMPTS})
    place = {"batch": "a tensor of this batch", "prompts": PROMPTS.get(key), "output": OUTPUT.get(key)}[where]
    assert caught.value.collisions == {key: place}
    assert snapshot(batch) == before


@pytest.mark.parametrize("keep_raw", [True, False])
def test_all_collisions_are_named_at_once_with_the_row_and_the_data_source(keep_raw: bool) -> None:
    sources = objects(["openai/gsm8k", "math_dapo", "math_dapo", "x\x1b"])
    rows = [{"acc": 1}, {"rm_scores": 1, "uid": 2}, {"reserved": 3, "tool": 4}, {"data_source": 5}]
    batch = scored(rows, data_source=sources, tool=SparseNonTensor([{}] * 4))
    before = snapshot(batch)
    with pytest.raises(FieldCollisionError) as caught:
        batch.finalize(reserved=iter(["reserved", "unused"]), keep_raw=keep_raw)
    assert caught.value.collisions == {
        "rm_scores": "a tensor of this batch",
        "uid": "a column of this batch",
        "reserved": "a reserved name",
        "tool": "the raw column itself",
        "data_source": "a column of this batch",
    }
    assert "'rm_scores' (first in row 1, data source 'math_dapo')" in str(caught.value)
    assert r"'data_source' (first in row 3, data source 'x\x1b')" in str(caught.value)
    assert snapshot(batch) == before


def test_a_reserved_mapping_says_where_and_an_iterable_only_that() -> None:
    with pytest.raises(FieldCollisionError, match=r"'acc' .* is already a column of the prompts"):
        batch_of().finalize(reserved={"acc": "a column of the prompts"})
    for reserved in (["acc"], {"acc"}, ("acc",), (name for name in ["acc"])):
        with pytest.raises(FieldCollisionError, match=r"'acc' .* is already a reserved name"):
            batch_of().finalize(reserved=reserved)
    with pytest.raises(TypeError, match="single str 'acc'"):
        batch_of().finalize(reserved="acc")


def test_two_raw_columns_that_flatten_to_one_name_are_refused_in_either_order() -> None:
    rewards = SparseNonTensor([{"tool/calls": 1}])
    tools = SparseNonTensor([{"calls": 2}])
    for columns in ({RAW_COLUMN: rewards, "tool": tools}, {"tool": tools, RAW_COLUMN: rewards}):
        with pytest.raises(FieldCollisionError, match=r"'tool/calls' .* is already a key of the raw column"):
            SparseDataProto(non_tensor_batch=columns).finalize()


def test_a_key_that_only_a_flattened_name_shares_is_no_collision() -> None:
    batch = SparseDataProto(
        non_tensor_batch={"acc": objects([1]), "tool": SparseNonTensor([{"acc": 2, "tool": 3, "uid": 4}])}
    )
    assert list(batch.finalize(keep_raw=False).non_tensor_batch) == ["acc", "tool/acc", "tool/tool", "tool/uid"]


# --- concat ------------------------------------------------------------------------------------------------------

CONCATS = pytest.mark.parametrize(
    "concat", [SparseDataProto.concat, lambda data: DataProto.concat(data)], ids=["ours", "by verl's name"]
)


@CONCATS
@BOTH
def test_raw_chunks_of_unequal_schemas_become_one_raw_batch(cls: type[DataProto], concat: Any) -> None:
    chunks = [batch_of(cls, [row], first=number) for number, row in enumerate(ROWS)]
    whole = concat(chunks)
    assert type(whole) is SparseDataProto
    assert_holds([whole], everything(4), ROWS)
    assert all(row is original for row, original in zip(whole.non_tensor_batch[RAW_COLUMN], ROWS, strict=True))


@pytest.mark.usefixtures("stock_verl")
def test_stock_verl_refuses_chunks_of_unequal_schemas() -> None:
    with pytest.raises(AssertionError, match="keys of the first dictionary"):
        DataProto.concat([plain(["u0"], acc=[1.0]), plain(["u1"], acc=[1.0], pred=["42"])])
    chunks = [plain(["u0"]), plain(["u1"])]
    chunks[0].meta_info["reward_extra_keys"], chunks[1].meta_info["reward_extra_keys"] = ["acc"], ["pred"]
    with pytest.raises(AssertionError, match="Conflicting values for meta_info key 'reward_extra_keys'"):
        DataProto.concat(chunks)


STATES: dict[str, Callable[..., DataProto]] = {
    "raw": scored,
    "raw in a plain batch": lambda rows, **kwargs: batch_of(DataProto, rows, **kwargs),
    "finalized": finalized,
    "finalized, with the dicts": lambda rows, **kwargs: finalized(rows, keep_raw=True, **kwargs),
}
each_state = pytest.mark.parametrize("states", [(a, b) for a in STATES for b in STATES], ids=" then ".join)


@CONCATS
@each_state
def test_any_mix_of_raw_and_finalized_chunks_gives_what_the_whole_gives(states: tuple[str, str], concat: Any) -> None:
    rows = [{"acc": 1.0}, {"acc": True, "pred": "42"}, {"acc": 2, "score": 1}]
    chunks = [STATES[states[0]](rows[:1]), STATES[states[1]](rows[1:], first=1)]
    before = [snapshot(chunk) for chunk in chunks]
    whole = as_sparse(concat(chunks)).finalize()
    assert [snapshot(chunk) for chunk in chunks] == before
    assert type(whole) is SparseDataProto
    found = columns_of(whole)
    expected = columns_of(finalized(rows))
    assert {name: found[name] for name in expected} == expected
    assert whole.meta_info == {"step": 7, "reward_extra_keys": ["acc", "pred", "score"]}
    assert whole.batch["number"].tolist() == [0, 1, 2]


def test_the_dicts_that_only_some_chunks_still_hold_stay_where_they_are() -> None:
    whole = DataProto.concat([finalized([{"acc": 1.0}]), finalized([{"acc": 0.0}], first=1, keep_raw=True)])
    assert columns_of(whole)[RAW_COLUMN] == ("object", [None, {"acc": 0.0}])
    assert columns_of(whole)["acc"] == ("float64", [1.0, 0.0])


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)], ids=str)
def test_one_sparse_batch_anywhere_makes_a_concat_of_plain_ones_ours(order: tuple[int, ...]) -> None:
    chunks = [
        batch_of(DataProto, [{"acc": 1.0}, {"pred": "42"}]).pop(["number"], ["uid", RAW_COLUMN]),
        plain(["u2"], acc=[0.5]),
        plain(["u3"], length=[3]),
    ]
    whole = DataProto.concat([chunks[number] for number in order])
    assert type(whole) is SparseDataProto
    values = [[("u0", 1.0, None, None), ("u1", None, "42", None)], [("u2", 0.5, None, None)], [("u3", None, None, 3)]]
    held = [whole.non_tensor_batch[name].tolist() for name in ("uid", "acc", "pred", "length")]
    assert list(zip(*held, strict=True)) == [row for number in order for row in values[number]]


def test_plain_batches_only_give_what_stock_gives() -> None:
    def chunks() -> list[DataProto]:
        batches = [batch_of(DataProto, ROWS, column=objects), batch_of(DataProto, ROWS, column=objects, first=4)]
        for batch in batches:
            batch.non_tensor_batch["width"] = np.arange(4, dtype=np.int32)
            batch.meta_info["metrics"] = [{"loss": 1.0}]
        return batches

    ours, named = SparseDataProto.concat(chunks()), DataProto.concat(chunks())
    plugin.deactivate()
    stock = DataProto.concat(chunks())
    for found in (ours, named):
        assert type(found) is DataProto
        assert columns_of(found) == columns_of(stock)
        assert found.meta_info == stock.meta_info == {"step": 7, "metrics": {"loss": [1.0, 1.0]}}
        for name, tensor in stock.batch.items():
            assert torch.equal(found.batch[name], tensor)


def test_a_concat_of_plain_batches_runs_verls_own_code(stock_verl: None) -> None:
    calls = []
    stock = DataProto.concat

    def spy(data: list[DataProto]) -> DataProto:
        calls.append(len(data))
        return stock(data)

    try:
        DataProto.concat = staticmethod(spy)
        plugin.activate()
        calls.clear()  # the trials of the agent loop, where that is imported
        assert type(DataProto.concat([plain(["u0"]), plain(["u1"])])) is DataProto
        assert calls == [2]
        DataProto.concat([plain(["u0"]), scored([{}])[:0]])
        assert calls == [2]
    finally:
        plugin.deactivate()
        DataProto.concat = staticmethod(stock)


def test_a_plain_conflict_is_still_verls_assertion() -> None:
    with pytest.raises(AssertionError, match="keys of the first dictionary"):
        DataProto.concat([plain(["u0"], acc=[1.0]), plain(["u1"], pred=["42"])])
    with pytest.raises(IndexError):
        DataProto.concat([])


def test_a_column_that_a_chunk_lacks_is_none_there_and_multi_modal_inputs_are_empty() -> None:
    pixels = torch.zeros(2)
    whole = SparseDataProto.concat(
        [
            scored([{}, {}], length=np.array([3, 4])),
            scored([{}, {}], first=2, multi_modal_inputs=objects([{"pixels": pixels}, {}])),
            scored([{}], first=4, length=np.array([5])),
        ]
    )
    assert columns_of(whole)["length"] == ("object", [3, 4, None, None, 5])
    inputs = whole.non_tensor_batch["multi_modal_inputs"]
    assert inputs.tolist() == [{}, {}, {"pixels": pixels}, {}, {}]
    inputs[0]["pixels"] = 1
    assert inputs[1] == inputs[4] == {}


def test_a_reward_column_is_decided_anew_from_all_values_even_where_the_dtypes_agree() -> None:
    mixed = finalized([{"acc": 1.0}, {"acc": 0.5}, {}])
    assert columns_of(mixed)["acc"][0] == columns_of(mixed[:1])["acc"][0] == "object"
    assert columns_of(SparseDataProto.concat([mixed[:1], mixed[1:2]]))["acc"] == ("float64", [1.0, 0.5])

    answers = ["x" * 40_000], ["7"] * 100
    chunks = [finalized([{"pred": answer} for answer in part]) for part in answers]
    assert [chunk.non_tensor_batch["pred"].dtype.kind for chunk in chunks] == ["U", "U"]
    column = SparseDataProto.concat(chunks).non_tensor_batch["pred"]
    assert column.dtype == object  # as <U40000 it would take 16 MB
    assert column.tolist() == [*answers[0], *answers[1]]


def test_other_columns_are_concatenated_as_stock_does_where_all_have_them() -> None:
    def chunk(rows: Any, values: Any) -> DataProto:
        return scored(rows, values=values)

    for one, other in [
        (np.array([1, 2], np.int8), np.array([3], np.int64)),
        (np.array([1, 2], np.float32), np.array([3], np.float32)),
        (np.array(["a", "b"]), np.array(["long text"])),
        (objects([1, None]), np.array([2.5])),
        (np.zeros((2, 3)), np.ones((1, 3))),
        (objects([[1], [2, 3]]), objects([[4]])),
    ]:
        column = SparseDataProto.concat([chunk([{}, {}], one), chunk([{}], other)]).non_tensor_batch["values"]
        expected = np.concatenate([one, other])
        assert column.dtype == expected.dtype
        assert column.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("one", "other", "dtype", "values"),
    [
        (np.array([1]), np.array(["a"]), "object", [1, "a"]),
        (np.array([2**63], np.uint64), np.array([-1]), "object", [2**63, -1]),
        (np.array([2**53 + 1]), np.array([0.5]), "object", [2**53 + 1, 0.5]),
        (np.zeros((1, 2)), np.zeros((1, 3)), "object", [[0.0, 0.0], [0.0, 0.0, 0.0]]),
        (np.zeros((1, 2)), np.zeros(1), "object", [[0.0, 0.0], 0.0]),
    ],
    ids=["number and text", "uint64 and int64", "a large integer and a float", "widths", "dimensions"],
)
def test_other_columns_that_numpy_would_bend_or_refuse_keep_their_values(
    one: np.ndarray, other: np.ndarray, dtype: str, values: list[Any]
) -> None:
    whole = SparseDataProto.concat([scored([{}], values=one), scored([{}], first=1, values=other)])
    assert columns_of(whole)["values"] == (dtype, values)


@pytest.mark.parametrize("states", [("raw", "raw"), ("raw", "finalized"), ("finalized", "raw")], ids=" then ".join)
def test_a_plain_list_is_accepted_as_a_column(states: tuple[str, str]) -> None:
    chunks = [STATES[state]([{"acc": 1.0}], first=number) for number, state in enumerate(states)]
    for number, chunk in enumerate(chunks):  # as verl's fully-async `addition_process` sets them
        chunk.non_tensor_batch["processing_times"] = [0.5 + number]
    chunks[1].non_tensor_batch["tool_calls"] = [[1, 2]]
    before = [snapshot(SimpleNamespace(**{**vars(chunk), "non_tensor_batch": {}})) for chunk in chunks]
    whole = DataProto.concat(chunks)
    assert columns_of(whole)["processing_times"] == ("float64", [0.5, 1.5])
    assert columns_of(whole)["tool_calls"] == ("object", [None, [1, 2]])
    assert [chunk.non_tensor_batch["processing_times"] for chunk in chunks] == [[0.5], [1.5]]
    assert [snapshot(SimpleNamespace(**{**vars(chunk), "non_tensor_batch": {}})) for chunk in chunks] == before


def test_a_tensor_that_a_chunk_lacks_is_a_named_error() -> None:
    chunks = [scored([{}]) for _ in range(12)]
    for chunk in chunks[1:]:
        chunk.pop(["rm_scores"])
    with pytest.raises(
        BatchMismatchError, match=r"'rm_scores' is missing in batch\(es\) 1, 2, 3, 4, 5, 6, 7, 8, \.\.\."
    ):
        SparseDataProto.concat(chunks)
    with pytest.raises(BatchMismatchError, match=r"'rm_scores' is missing in batch\(es\) 1, 2, 3, 4, 5, 6, 7, 8 \("):
        SparseDataProto.concat(chunks[:9])
    with pytest.raises(BatchMismatchError, match=r"1, 2, 3, 4, 5, 6, 7, 8, \.\.\. \("):
        SparseDataProto.concat(chunks[:10])  # of nine batches, eight are named
    hint = (
        r"\(counting from 0\)\. Tensors have no fill value: make every worker return it "
        r"\(is a score None for some samples\?\)$"
    )
    with pytest.raises(BatchMismatchError, match=hint):
        SparseDataProto.concat(chunks)
    with pytest.raises(
        BatchMismatchError, match=r"'number' is missing in batch\(es\) 0 \(counting from 0\).* return it$"
    ):
        SparseDataProto.concat([scored([{}], tensors=False), scored([{}])])


@pytest.mark.parametrize("key", ["acc", "format/acc"])
def test_the_columns_of_a_second_raw_column_are_decided_anew_where_their_dicts_are_left(key: str) -> None:
    chunks = []
    for first, value in enumerate((np.int8(1), np.int16(300))):
        chunk = scored([{}], first=first)
        chunk.non_tensor_batch["judge"] = SparseNonTensor([{key: value}])
        chunks.append(chunk.finalize())
    column = SparseDataProto.concat(chunks).non_tensor_batch[f"judge/{key}"]
    assert (column.dtype, column.tolist()) == (np.int64, [1, 300])  # stock's concat would leave int16


def test_two_raw_columns_that_flatten_to_one_name_are_told_apart_in_the_message() -> None:
    batch = scored([{"judge/acc": 1}])
    batch.non_tensor_batch["judge"] = SparseNonTensor([{"acc": 2}])
    with pytest.raises(FieldCollisionError, match="is already a key of the raw column 'reward_extra_info'"):
        batch.finalize()


def test_batches_without_tensors_join_raw_beside_finalized() -> None:
    chunks = [scored([{"acc": 1}], tensors=False), finalized([{"acc": 0.5, "pred": "7"}], first=1, tensors=False)]
    batch = SparseDataProto.concat(chunks)
    assert batch.batch is None
    assert batch.non_tensor_batch["acc"].tolist() == [1.0, 0.5]
    assert batch.non_tensor_batch["pred"].tolist() == [None, "7"]


def test_a_batch_whose_tensors_were_all_popped_joins_one_that_never_had_any() -> None:
    popped = scored([{}])
    popped.pop(["number", "rm_scores"])
    for chunks in ([popped, scored([{}], tensors=False)], [scored([{}], tensors=False), popped]):
        assert SparseDataProto.concat(chunks).non_tensor_batch[RAW_COLUMN].tolist() == [{}, {}]


def test_contradicting_meta_info_is_refused_by_its_key_and_both_values() -> None:
    chunks = [scored([{}]), scored([{}])]
    chunks[1].meta_info["step"] = 8
    with pytest.raises(BatchMismatchError, match=r"meta_info\['step'\] is 7 in one batch and 8 in another"):
        SparseDataProto.concat(chunks)
    chunks[1].meta_info["step"] = "\x1b" + "x" * 1_000_000
    with pytest.raises(BatchMismatchError) as caught:
        SparseDataProto.concat(chunks)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_meta_info_merges_by_value_and_keeps_the_order_of_first_appearance() -> None:
    chunks = [scored([{}]), scored([{}])]
    chunks[0].meta_info.update(nan=float("nan"), array=np.arange(3), only=1)
    chunks[1].meta_info.update(last=2, nan=float("nan"), array=np.arange(3))
    merged = SparseDataProto.concat(chunks).meta_info
    assert list(merged) == ["step", "nan", "array", "only", "last"]
    assert (merged["only"], merged["last"]) == (1, 2)


def test_metrics_with_unequal_keys_align_and_equal_ones_are_as_on_stock() -> None:
    chunks = [scored([{}]) for _ in range(4)]
    for chunk, metrics in zip(chunks, ({"loss": 1.0}, [{"loss": 2.0, "kl": 0.1}, {"kl": 0.2}], None, []), strict=True):
        chunk.meta_info["metrics"] = metrics
    assert SparseDataProto.concat(chunks).meta_info["metrics"] == {
        "loss": [1.0, 2.0, None],
        "kl": [None, 0.1, 0.2],
    }
    assert "metrics" not in SparseDataProto.concat(chunks[2:]).meta_info


def test_reward_extra_keys_merge_by_ordered_union() -> None:
    chunks = [finalized([{"b": 1, "a": 1}]), finalized([{"c": 1, "a": 1}]), finalized([{"a": 1}])]
    assert SparseDataProto.concat(chunks).meta_info["reward_extra_keys"] == ["b", "a", "c"]
    assert chunks[0].meta_info["reward_extra_keys"] == ["b", "a"]


@each_state
def test_0_row_chunks_contribute_neither_keys_nor_dtypes(states: tuple[str, str]) -> None:
    state, empty = states
    nothing = STATES[empty]([], other=np.array([], dtype="U1"))
    nothing.meta_info["reward_extra_keys"] = ["gone"]
    for chunks in ([nothing, STATES[state]([{"acc": 1}])], [STATES[state]([{"acc": 1}]), nothing]):
        whole = as_sparse(DataProto.concat(chunks)).finalize(keep_raw=False)
        assert {name: columns_of(whole)[name] for name in ("uid", "acc")} == {
            "uid": ("object", ["u0"]),
            "acc": ("int64", [1]),
        }
        assert "other" not in whole.non_tensor_batch
        assert whole.meta_info == {"step": 7, "reward_extra_keys": ["acc"]}
        assert whole.batch["number"].tolist() == [0]


def test_0_row_chunks_need_no_tensors_but_their_meta_info_counts() -> None:
    nothing = scored([], tensors=False)
    nothing.meta_info["only"] = 1
    assert SparseDataProto.concat([nothing, scored([{}])]).meta_info == {"step": 7, "only": 1}
    nothing.meta_info["step"] = 8
    with pytest.raises(BatchMismatchError, match="step"):
        SparseDataProto.concat([nothing, scored([{}])])


def test_chunks_of_0_rows_alone_give_0_rows() -> None:
    for chunks in ([scored([]), scored([])], [scored([]), finalized([])], [scored([])]):
        whole = as_sparse(DataProto.concat(chunks)).finalize()
        assert len(whole) == 0
        assert columns_of(whole) == {"uid": ("object", []), RAW_COLUMN: ("object", [])}
        assert whole.batch["rm_scores"].shape == (0, 2)


def test_a_mixed_concat_whose_keys_collide_is_refused_and_changes_nothing() -> None:
    chunks = [finalized([{"acc": 1.0}]), scored([{"uid": "x"}], first=1)]
    before = [snapshot(chunk) for chunk in chunks]
    with pytest.raises(FieldCollisionError, match="'uid'"):
        DataProto.concat(chunks)
    assert [snapshot(chunk) for chunk in chunks] == before


def test_the_result_shares_no_containers_with_its_chunks() -> None:
    for chunks in ([scored(ROWS)], [scored(ROWS), finalized([{"acc": 1.0}], first=4)]):
        before = [snapshot(chunk) for chunk in chunks]
        whole = DataProto.concat(chunks)
        whole.meta_info["new"] = 1
        for column in whole.non_tensor_batch.values():
            column[:1] = None
        whole.batch["rm_scores"][:] = -1
        assert [snapshot(chunk) for chunk in chunks] == before


def test_a_subclass_of_ours_stays_itself() -> None:
    class Mine(SparseDataProto):
        pass

    batch = batch_of(Mine)
    assert type(DataProto.concat([batch_of(), batch])) is SparseDataProto
    assert type(DataProto.concat([batch_of(DataProto), batch])) is Mine
    assert type(batch.pop(["number"])) is Mine
    assert {type(mini_batch) for mini_batch in batch_of(Mine).make_iterator(2, 1)} == {Mine}


@given(st.data())
@settings(max_examples=60)
def test_the_split_does_not_matter_nor_which_chunks_were_finalized_before(data: st.DataObject) -> None:
    rows = data.draw(reward_rows())
    cut = data.draw(cuts(len(rows)))
    states = data.draw(st.lists(st.sampled_from(list(STATES)), min_size=len(cut), max_size=len(cut)))
    starts = np.cumsum([0, *cut])
    parts = zip(pieces(rows, cut), states, starts, strict=False)
    whole = as_sparse(DataProto.concat([STATES[state](part, first=int(start)) for part, state, start in parts]))
    whole.finalize(keep_raw=False)
    expected = assemble_reward_extra_info(rows)
    assert whole.meta_info.get("reward_extra_keys", []) == list(expected)
    assert [name for name in whole.non_tensor_batch if name in expected] == list(expected)
    for key, column in expected.items():
        found = whole.non_tensor_batch[key]
        assert found.dtype == column.dtype
        assert found.shape == column.shape
        assert all(map(alike, found, column))


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in cases("reward_rows.json")])
@pytest.mark.parametrize("state", STATES)
def test_the_reported_batches_come_out_whole_cut_into_single_samples(case: dict[str, Any], state: str) -> None:
    rows = case["rows"]
    whole = as_sparse(DataProto.concat([STATES[state]([row], first=n) for n, row in enumerate(rows)] or [scored([])]))
    found = columns_of(whole.finalize(keep_raw=False))
    assert {key: list(found[key]) for key in case["columns"]} == case["columns"]
    assert whole.meta_info["reward_extra_keys"] == list(case["columns"])


# --- union -------------------------------------------------------------------------------------------------------


def prompts(**columns: Any) -> DataProto:
    """The batch that the trainer unions with: four rows, none of the tensors of a scored batch."""
    return DataProto(
        batch=TensorDict({"prompts": torch.arange(8).reshape(4, 2)}, batch_size=4),
        non_tensor_batch={"uid": objects(f"u{number}" for number in range(4)), **columns},
        meta_info={"step": 7},
    )


@BOTH
@pytest.mark.parametrize("swapped", [False, True], ids=["raw on the right", "raw on the left"])
def test_union_finalizes_a_raw_column_on_either_side(cls: type[DataProto], swapped: bool) -> None:
    one, other = (batch_of(cls), prompts()) if swapped else (prompts(), batch_of(cls))
    before = snapshot(other)
    united = one.union(other)
    assert united is one
    assert snapshot(other) == before
    found = columns_of(united)
    assert found["acc"] == ("object", [1.0, 0.0, None, None])
    assert found["pred"] == ("object", [None, "42", None, None])
    assert found[RAW_COLUMN] == ("object", ROWS)
    assert type(united.non_tensor_batch[RAW_COLUMN]) is np.ndarray
    assert set(united.batch.keys()) == {"prompts", "number", "rm_scores"}
    assert united.meta_info == {"step": 7, "reward_extra_keys": ["acc", "pred"]}


def test_union_of_a_batch_with_what_was_popped_from_it_restores_it() -> None:
    batch = batch_of()
    expected = columns_of(batch_of().finalize())
    popped = batch.pop(["rm_scores"], [RAW_COLUMN])
    assert type(popped) is SparseDataProto
    assert {**columns_of(batch.union(popped))} == expected


@pytest.mark.usefixtures("stock_verl")
def test_union_on_stock_lets_a_column_take_a_tensors_name_without_a_word() -> None:
    one, other = prompts(), plain([f"u{n}" for n in range(4)], prompts=[1, 2, 3, 4])
    united = one.union(other)
    assert "prompts" in united.batch.keys()
    assert "prompts" in united.non_tensor_batch


@BOTH
@pytest.mark.parametrize("make", [batch_of, lambda cls, rows: as_sparse(batch_of(cls, rows)).finalize()])
@pytest.mark.parametrize("swapped", [False, True], ids=["rewards on the right", "rewards on the left"])
def test_union_refuses_a_reward_key_that_is_taken_before_anything_changes(
    cls: type[DataProto], make: Callable[..., DataProto], swapped: bool
) -> None:
    rewards = make(cls, [{"prompts": 1, "data_source": "mine", "acc": 1.0}] * 4)
    batch = prompts(data_source=objects("abcd"))
    one, other = (rewards, batch) if swapped else (batch, rewards)
    before = snapshot(one), snapshot(other)
    with pytest.raises(FieldCollisionError, match="2 reward key") as caught:
        one.union(other)
    assert caught.value.collisions == {
        "prompts": "a tensor of the batch it is united with",
        "data_source": "a column of the batch it is united with, with other values",
    }
    assert (snapshot(one), snapshot(other)) == before


@pytest.mark.parametrize("swapped", [False, True], ids=["without tensors on the right", "without tensors on the left"])
def test_union_names_a_taken_key_also_where_a_side_has_no_tensors(swapped: bool) -> None:
    rewards, batch = batch_of(), DataProto(non_tensor_batch={"acc": objects("abcd")})
    one, other = (batch, rewards) if swapped else (rewards, batch)
    with pytest.raises(FieldCollisionError, match="1 reward key"):
        one.union(other)


def test_union_takes_equal_values_in_different_dtypes_for_equal_and_keeps_the_left_column() -> None:
    rows = [{"acc": 1.0, "nan": float("nan"), "list": [1, 2]}] * 4
    for left, right in [(finalized, scored), (scored, finalized)]:
        one, other = left(rows), right(rows)
        if left is finalized:
            one.non_tensor_batch["acc"] = objects([1.0] * 4)
        else:
            other.non_tensor_batch["acc"] = objects([1.0] * 4)
        united = one.union(other)
        assert columns_of(united)["acc"] == ("object" if left is finalized else "float64", [1.0] * 4)
        assert united.meta_info["reward_extra_keys"] == ["acc", "nan", "list"]


def test_union_compares_the_dicts_left_behind_by_value() -> None:
    def batch() -> DataProto:
        return scored([{"nan": float("nan"), "array": np.arange(2)} for _ in range(2)], tool=SparseNonTensor([{}, {}]))

    for one, other in [(batch(), batch()), (batch().finalize(), batch()), (batch(), batch().finalize())]:
        united = one.union(other)
        assert list(united.non_tensor_batch) == ["uid", "nan", "array", RAW_COLUMN, "tool"]


def test_union_merges_reward_extra_keys_by_ordered_union_and_leaves_the_inputs() -> None:
    one = batch_of(rows=[{"b": 1, "a": 1}] * 4).finalize(keep_raw=False)
    other = batch_of(rows=[{"c": 1, "a": 1}] * 4).finalize(keep_raw=False)
    before = snapshot(other)
    assert one.union(other).meta_info["reward_extra_keys"] == ["b", "a", "c"]
    assert snapshot(other) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda batch: batch.batch.set_("prompts", batch.batch["prompts"] + 1), "prompts in tensor_dict1"),
        (lambda batch: batch.non_tensor_batch.update(uid=objects("abcd")), "`uid` in tensor_dict1"),
        (lambda batch: batch.meta_info.update(step=8), "step"),
        (lambda batch: batch.reorder(torch.tensor([0, 1])), "identical batch size"),
    ],
    ids=["tensor", "column", "meta_info", "rows"],
)
@pytest.mark.parametrize("swapped", [False, True], ids=["raw on the right", "raw on the left"])
def test_any_other_conflict_of_a_union_is_verls_own_assertion_and_changes_nothing(
    change: Callable[[DataProto], Any], message: str, swapped: bool
) -> None:
    batch, rewards = prompts(), batch_of()
    rewards.batch["prompts"] = prompts().batch["prompts"]
    change(batch)
    one, other = (rewards, batch) if swapped else (batch, rewards)
    before = snapshot(one), snapshot(other)
    with pytest.raises(AssertionError, match=message):
        one.union(other)
    assert (snapshot(one), snapshot(other)) == before


def test_union_of_plain_batches_runs_verls_own_code_and_changes_the_batch_in_place() -> None:
    one, other = prompts(), plain([f"u{n}" for n in range(4)], length=[1, 2, 3, 4])
    tensors, columns = one.batch, one.non_tensor_batch
    united = one.union(other)
    assert united.batch is tensors
    assert united.non_tensor_batch is columns
    assert type(united) is DataProto


@pytest.mark.parametrize("swapped", [False, True])
def test_union_of_0_rows(swapped: bool) -> None:
    batches = [scored([]), DataProto(batch=TensorDict({"prompts": torch.zeros(0, 2)}, batch_size=0))]
    one, other = batches[::-1] if swapped else batches
    united = one.union(other)
    assert len(united) == 0
    assert columns_of(united) == {"uid": ("object", []), RAW_COLUMN: ("object", [])}


def test_union_accepts_a_plain_list_as_a_column() -> None:
    rewards = batch_of()
    rewards.non_tensor_batch["processing_times"] = [1.0, 2.0, 3.0, 4.0]
    assert columns_of(prompts().union(rewards))["processing_times"] == ("float64", [1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize("infos", [[], [{"acc": 1.0}], [{}] * 3])
def test_attaching_more_or_fewer_reward_dicts_than_samples_is_a_named_error(infos):
    output = DataProto.from_dict(tensors={"responses": torch.zeros(2, 1)})
    with pytest.raises(RowError, match=rf"{len(infos)} reward dict\(s\) for 2 sample\(s\)"):
        attach_reward_extra_info(output, infos)
    assert output.non_tensor_batch == {}
