"""Writing into a column: rows by any index; nothing gets in that was not looked at."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from column_rows import ROWS, assert_column, plain

from verl_ext.column import SparseNonTensor
from verl_ext.errors import RowError


def test_rows_are_written_by_any_index(column: SparseNonTensor) -> None:
    row: dict[str, Any] = {"f1": 0.5}
    column[0] = row
    column[1:3] = [None, row]
    column[[3]] = row
    column[np.array([False, False, False, False, True])] = SparseNonTensor([row])
    assert_column(column, [row, None, row, row, row])
    column[...] = None
    assert_column(column, [None] * 5)
    column[:] = plain([row] * 5)
    assert_column(column, [row] * 5)
    folded = column[:4].reshape(2, 2)
    folded[0, 0] = {}
    folded[1] = [None, None]
    assert folded.tolist() == [[{}, row], [None, None]]


@pytest.mark.parametrize("value", ["acc", 5, 1.0, [{}], ({},), plain([{}]), plain([5]), np.array(5), object()])
def test_one_place_takes_one_row_and_nothing_else(column: SparseNonTensor, value: Any) -> None:
    with pytest.raises(RowError, match="row 0"):
        column[0] = value
    assert_column(column, ROWS)


@pytest.mark.parametrize(
    "value",
    ["acc", 5, [1, 2], [{}, 5], [[1], [1, 2]], np.arange(2), ({} for _ in range(2))],
)
def test_several_places_take_rows_and_nothing_else(column: SparseNonTensor, value: Any) -> None:
    for index in (slice(2), [0, 1], np.array([True, True, False, False, False])):
        with pytest.raises(RowError, match=r"row \d"):
            column[index] = value
    assert_column(column, ROWS)


@pytest.mark.filterwarnings("ignore:Shuffling a one dimensional array subclass")
@pytest.mark.parametrize("shuffle", [random.shuffle, np.random.default_rng(0).shuffle, np.random.shuffle])
def test_shuffling_in_place_keeps_the_rows(shuffle: Callable[[Any], None]) -> None:
    rows = [{"number": number} for number in range(20)]
    column = SparseNonTensor(rows)
    shuffle(column)
    assert all(any(row is original for original in rows) for row in column)
    assert sorted(row["number"] for row in column) == list(range(20))
    assert column.tolist() != rows


def sort_in_place(column: SparseNonTensor) -> None:
    column.sort()


def write_through_flat(column: SparseNonTensor) -> None:
    column.flat[0] = 5


def replace_flat(column: SparseNonTensor) -> None:
    column.flat = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("write", "error"),
    [
        (lambda column: column.fill(5), RowError),
        (lambda column: column.put([0], [5]), RowError),
        (lambda column: column.copy().resize(9, refcheck=False), RowError),
        (lambda column: column.setfield(5, object), RowError),
        (lambda column: np.copyto(column, 5), ValueError),
        (lambda column: np.put(column, [0], 5), ValueError),
        (lambda column: np.place(column, [True] * 5, [5]), ValueError),
        (lambda column: np.putmask(column, [True] * 5, 5), ValueError),
        (lambda column: np.put_along_axis(column, np.array([0]), 5, 0), ValueError),
        (lambda column: np.fill_diagonal(column[:4].reshape(2, 2), 5), ValueError),
        (lambda column: np.equal(column, column, out=column), ValueError),
        (lambda column: np.take(plain([5, 6]), [0] * 5, out=column), ValueError),
        (lambda column: np.compress([True] * 5, plain([5] * 5), out=column), ValueError),
        (lambda column: np.concatenate([column[:3], column[:2]], out=column), ValueError),
        (sort_in_place, TypeError),
        (write_through_flat, ValueError),
        (replace_flat, AttributeError),
    ],
)
def test_what_writes_without_looking_at_rows_is_refused(
    column: SparseNonTensor, write: Callable[[SparseNonTensor], None], error: type[Exception]
) -> None:
    with pytest.raises(error):
        write(column)
    if error is RowError:
        with pytest.raises(RowError, match=r"^write rows by assignment, column\[index\] = row"):
            write(column)
    assert_column(column, ROWS)
    column[0] = {}
    assert column[0] == {}  # and the refusal has not made it read-only
