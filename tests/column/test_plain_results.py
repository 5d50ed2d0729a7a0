"""What is no column any more: comparisons, computations and the plain view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from column_rows import ROWS, assert_column, assert_plain, plain

from verl_ext.column import SparseNonTensor


def test_a_plain_view_is_the_way_out(column: SparseNonTensor) -> None:
    for way in (column.view(np.ndarray), np.asarray(column)):
        assert_plain(way)
        assert np.shares_memory(way, column)
        assert way.flags.writeable
    assert_plain(np.array(column))
    assert_plain(np.copy(column))  # as np.array: NumPy's default is subok=False


def test_comparing_gives_plain_booleans(column: SparseNonTensor) -> None:
    for found, expected in [
        (column == column.copy(), [True] * 5),
        (column != column.copy(), [False] * 5),
        (column == plain([{"acc": 1.0}, {}, {}, {}, {}]), [True, False, False, True, False]),
        (column == {"acc": 1.0}, [True, False, False, False, False]),
        (plain([{"acc": 1.0}]) == column, [True, False, False, False, False]),
        (np.equal(column, None), [False, False, True, False, False]),
        (np.isin(column, [None, {}]), [False, False, True, True, False]),
    ]:
        assert_plain(found)
        assert found.astype(bool).tolist() == expected
    assert np.array_equal(column, column.copy())
    assert not np.array_equal(column, column[::-1])


@pytest.mark.parametrize(
    "compute",
    [
        lambda column: np.where([True, False, True, False, True], column, 5),
        lambda column: np.full_like(column, 5),
        lambda column: np.ones_like(column),
        lambda column: np.zeros_like(column),
        lambda column: np.full(5, column),
        lambda column: np.select([[True] * 5], [column], 5),
        lambda column: np.piecewise(column, [[True] * 5], [5]),
        lambda column: np.pad(column, 1),
        lambda column: np.nan_to_num(column),
        lambda column: np.broadcast_to(column, (2, 5)),
        lambda column: np.dstack([column, column]),
        lambda column: np.block([column, column]),
        lambda column: np.resize(column[:0], 2),
        lambda column: np.argsort(column[:1]),
        lambda column: np.sort(column[:1]),
        lambda column: np.frompyfunc(len, 1, 1)(column[:2]),
        lambda column: np.vectorize(bool)(column),
        lambda column: np.nonzero(column)[0],
        lambda column: np.logical_not(column),
        lambda column: column[:2] | column[:2],
        lambda column: column[:1].cumsum(),
        lambda column: column.astype(str),
        lambda column: column.astype("U3"),
        lambda column: column[2:3].astype(float),
        lambda column: column.astype(bool),
    ],
)
def test_a_function_that_is_not_about_rows_gives_a_plain_array(
    column: SparseNonTensor, compute: Callable[[SparseNonTensor], Any]
) -> None:
    assert_plain(compute(column))
    assert_column(column, ROWS)
