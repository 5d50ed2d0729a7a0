"""Concatenating, stacking, appending and inserting: with columns and plain rows, with nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from column_rows import ROWS, assert_column, plain

from verl_ext.column import SparseNonTensor
from verl_ext.errors import RowError

NEW: list[dict[str, Any] | None] = [{"f1": 0.5}, None]


@pytest.mark.parametrize(
    "other", [SparseNonTensor(NEW), plain(NEW), NEW, tuple(NEW)], ids=["column", "object array", "list", "tuple"]
)
def test_columns_join_with_columns_and_with_plain_rows(column: SparseNonTensor, other: Any) -> None:
    assert_column(np.concatenate([column, other]), [*ROWS, *NEW])
    assert_column(np.concatenate((other, column), axis=0), [*NEW, *ROWS])
    assert_column(np.hstack([column, other]), [*ROWS, *NEW])
    assert_column(np.stack([column[:2], other]), [*ROWS[:2], *NEW], (2, 2))
    assert_column(np.stack([column[:2], other], axis=1), [ROWS[0], NEW[0], ROWS[1], NEW[1]], (2, 2))
    assert_column(np.vstack([column[:2], other]), [*ROWS[:2], *NEW], (2, 2))
    assert_column(np.append(column, other), [*ROWS, *NEW])
    assert_column(np.append(arr=other, values=column), [*NEW, *ROWS])
    assert_column(np.append(column, other, axis=0), [*ROWS, *NEW])
    assert_column(np.insert(column, 1, other), [ROWS[0], *NEW, *ROWS[1:]])
    assert_column(np.insert(arr=column, obj=[0, 5], values=other), [NEW[0], *ROWS, NEW[1]])
    assert_column(np.concatenate([column, SparseNonTensor(), plain([])]), ROWS)


def test_one_row_can_be_appended_and_inserted(column: SparseNonTensor) -> None:
    row = {"f1": 0.5}
    assert_column(np.append(column, row), [*ROWS, row])
    assert_column(np.append(column, None), [*ROWS, None])
    assert_column(np.insert(column, 2, row), [*ROWS[:2], row, *ROWS[2:]])
    assert_column(np.insert(column, 0, None), [None, *ROWS])


def test_folded_columns_join_along_either_axis(column: SparseNonTensor) -> None:
    folded = column[:4].reshape(2, 2)
    assert np.concatenate([folded, folded], axis=1).shape == np.append(folded, folded, axis=1).shape == (2, 4)
    assert_column(np.append(folded, folded, axis=1)[0], [ROWS[0], ROWS[1]] * 2)
    assert_column(np.insert(folded, 0, column[:2], axis=1)[0], [ROWS[0], ROWS[0], ROWS[1]])


def test_a_joined_column_has_memory_of_its_own(column: SparseNonTensor) -> None:
    for joined in (np.concatenate([column, column[:0]]), np.insert(column, 0, {}), np.append(column, {})):
        joined[:] = None
    assert_column(column, ROWS)


@pytest.mark.parametrize(
    "other",
    [np.arange(2), np.array(["a", "b"]), plain(["a", {}]), plain([[{}], {}]), [1.0], ["a"]],
    ids=["int64", "text", "a str among dicts", "a list among dicts", "list", "list of text"],
)
@pytest.mark.parametrize(
    "join",
    [
        lambda column, other: np.concatenate([column, other]),
        lambda column, other: np.concatenate([other, column]),
        lambda column, other: np.hstack([column, other]),
        lambda column, other: np.stack([column[: len(other)], other]),
        lambda column, other: np.append(column, other),
        lambda column, other: np.append(other, column),
        lambda column, other: np.insert(column, 0, other),
        lambda column, other: np.insert(column, range(len(other)), other),
    ],
    ids=["after", "before", "hstack", "stack", "append", "append to", "insert", "insert many"],
)
def test_a_join_with_anything_but_rows_is_refused(
    column: SparseNonTensor, other: Any, join: Callable[[Any, Any], Any]
) -> None:
    with pytest.raises(RowError, match=r"^row \d "):
        join(column, other)
    assert_column(column, ROWS)


def test_the_refused_row_of_a_join_is_counted_through_all_parts(column: SparseNonTensor) -> None:
    with pytest.raises(RowError, match=r"^row 7 of the raw column is a str \('a'\)"):
        np.concatenate([column, plain([{}, None, "a"])])
