"""A batch as a TensorDict and back: raw columns, names that are no text, one value per row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from batches import BOTH, ROWS, as_plain, batch_of, finalized, snapshot
from strategies import objects
from verl import DataProto

from verl_ext.column import RAW_COLUMN, SparseNonTensor
from verl_ext.errors import RowError
from verl_ext.protocol import SparseDataProto


@pytest.mark.usefixtures("stock_verl")
def test_stock_verl_cannot_make_a_tensordict_of_0_rows_with_columns() -> None:
    with pytest.raises(IndexError):
        batch_of(DataProto, [], column=objects).to_tensordict()


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
