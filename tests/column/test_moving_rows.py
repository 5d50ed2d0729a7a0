"""What selects, repeats, reshapes or copies rows: NumPy's result of the same row objects, still a column."""

from __future__ import annotations

import copy
import tracemalloc
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from column_rows import ROWS, assert_column, plain

from verl_ext.column import SparseNonTensor


@pytest.mark.parametrize(
    "move",
    [
        lambda rows: rows[1:4],
        lambda rows: rows[::-2],
        lambda rows: rows[:0],
        lambda rows: rows[...],
        lambda rows: rows[[4, 0, 0]],
        lambda rows: rows[np.array([], dtype=int)],
        lambda rows: rows[np.array([3, -1], dtype=np.int32)],
        lambda rows: rows[np.array([True, False, True, False, True])],
        lambda rows: rows[None],
        lambda rows: rows.reshape(5, 1),
        lambda rows: rows[:4].reshape(2, 2).reshape(4),
        lambda rows: rows[:4].reshape(2, -1).T,
        lambda rows: rows[:4].reshape(2, 2)[1],
        lambda rows: rows.reshape(5, 1).squeeze(),
        lambda rows: rows.reshape(5, 1).ravel(),
        lambda rows: rows.reshape(5, 1).flatten(),
        lambda rows: rows.repeat(2),
        lambda rows: rows.take([1, 1]),
        lambda rows: rows.compress([True, True]),
        lambda rows: rows.copy(),
        lambda rows: rows.astype(object),
        lambda rows: copy.copy(rows),
        lambda rows: np.repeat(rows, 3, axis=0),
        lambda rows: np.repeat(rows, [0, 1, 2, 0, 3], axis=0),
        lambda rows: np.tile(rows, 2),
        lambda rows: np.tile(rows, (2,)),
        lambda rows: np.take(rows, [2, 0]),
        lambda rows: np.compress([False, True], rows),
        lambda rows: np.delete(rows, [0, 1]),
        lambda rows: np.resize(rows, 7),
        lambda rows: np.copy(rows, subok=True),
        lambda rows: np.roll(rows, 2),
        lambda rows: np.flip(rows),
        lambda rows: np.reshape(rows, (5, 1)),
        lambda rows: np.ravel(np.expand_dims(rows, 0)),
        lambda rows: np.squeeze(np.atleast_2d(rows)),
        lambda rows: np.atleast_1d(rows),
        lambda rows: np.transpose(rows.reshape(5, 1)),
        lambda rows: np.swapaxes(rows.reshape(5, 1), 0, 1),
        lambda rows: np.moveaxis(rows.reshape(5, 1), 0, 1),
        lambda rows: np.broadcast_to(rows, (2, 5), subok=True),
        lambda rows: np.array(rows, subok=True),
        lambda rows: np.asanyarray(rows),
    ],
)
def test_what_moves_rows_moves_the_same_rows_as_in_a_plain_array_and_gives_a_column(
    column: SparseNonTensor, move: Callable[[np.ndarray], np.ndarray]
) -> None:
    expected = move(plain(ROWS))
    assert_column(move(column), expected.ravel().tolist(), expected.shape)


@pytest.mark.parametrize("split", [np.array_split, np.split], ids=["array_split", "split"])
@pytest.mark.parametrize("sections", [[2], [1, 1, 4], 5])
def test_splitting_gives_columns(column: SparseNonTensor, split: Callable[..., Any], sections: Any) -> None:
    parts = split(column, sections)
    for part, expected in zip(parts, split(plain(ROWS), sections), strict=True):
        assert_column(part, expected.tolist())


def test_one_index_gives_the_row_itself(column: SparseNonTensor) -> None:
    assert column[1] is ROWS[1]
    assert column[np.int64(-1)] is ROWS[-1]
    assert column.item(0) is ROWS[0]
    assert [id(row) for row in column] == list(map(id, ROWS))


def test_deepcopy_copies_the_rows_too(column: SparseNonTensor) -> None:
    deep = copy.deepcopy({"reward_extra_info": column})["reward_extra_info"]
    assert type(deep) is SparseNonTensor
    assert deep.tolist() == ROWS
    deep[0]["acc"] = 5
    assert column[0] == {"acc": 1.0}


def test_astype_hands_on_what_else_it_is_given(column: SparseNonTensor) -> None:
    assert np.shares_memory(column.astype(object, copy=False), column)
    assert np.shares_memory(column.astype(object, "K", "unsafe", True, False), column)
    assert not np.shares_memory(column.astype(object), column)


def test_a_named_tuple_among_the_arguments_of_a_numpy_function_stays_one(column: SparseNonTensor) -> None:
    axes = namedtuple("axes", "one other")(0, 1)
    assert np.rot90(column[:4].reshape(2, 2), 2, axes).tolist() == [ROWS[3:1:-1], ROWS[1::-1]]


def test_a_slice_of_a_large_column_copies_nothing() -> None:
    column = SparseNonTensor([{"acc": 1.0}] * 100_000)
    tracemalloc.start()
    try:
        part = column[10:90_000]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert np.shares_memory(part, column)
    assert peak < 10_000
