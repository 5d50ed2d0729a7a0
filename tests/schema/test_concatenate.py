"""`concatenate`: other columns are joined as on stock, unless NumPy would bend a value."""

from __future__ import annotations

import numpy as np
import pytest
from assembled import assert_same_column

from verl_ext.schema import concatenate, object_column

AS_NUMPY_JOINS = {
    "numbers of one dtype": [np.array([1.0]), np.array([2.0])],
    "floats of two widths": [np.array([0.1], "f4"), np.array([0.1])],
    "integers of two widths": [np.array([1], "i1"), np.array([300], "i2")],
    "small integers beside float32": [np.array([1], "i1"), np.array([0.1], "f4")],
    "bools beside integers": [np.array([True]), np.array([2], "i1")],
    "bools beside floats": [np.array([True]), np.array([0.5], "f4")],
    "signed beside unsigned integers that fit": [np.array([1], "u4"), np.array([-1], "i4")],
    "int64 that float64 holds beside floats": [np.array([2**53]), np.array([0.5])],
    "texts of two widths": [np.array(["a"]), np.array(["abc"])],
    "objects": [np.array([None, "a"]), np.array([{}, 1])],
    "objects that are numbers beside numbers": [object_column([1, 2]), np.array([3])],
    "objects beside numbers": [np.array([None, "a"]), np.array([1, 2])],
    "objects beside text": [np.array([None, 1]), np.array(["a"])],
    "datetimes": [np.array([1], "M8[ns]"), np.array([2], "M8[ns]")],
    "rows of one shape": [np.array([[1, 2]]), np.array([[3, 4], [5, 6]])],
}


@pytest.mark.parametrize("parts", AS_NUMPY_JOINS.values(), ids=AS_NUMPY_JOINS)
def test_other_columns_are_joined_as_on_stock_where_numpy_bends_nothing(parts):
    stock, column = np.concatenate(parts), concatenate(parts)
    assert (column.dtype, column.shape, column.tolist()) == (stock.dtype, stock.shape, stock.tolist())


WHERE_NUMPY_BENDS = {
    "text beside numbers": ([np.array(["7"]), np.array([7])], object, ["7", 7]),
    "text beside bytes": ([np.array(["7"]), np.array([b"7"])], object, ["7", b"7"]),
    "int64 that float64 cannot hold": ([np.array([2**53 + 1]), np.array([0.5])], object, [2**53 + 1, 0.5]),
    "int64 beside uint64": ([np.array([-1]), np.array([1], "u8")], np.int64, [-1, 1]),
    "bools beside int64 beside uint64": ([np.array([True]), np.array([2]), np.array([3], "u8")], np.int64, [1, 2, 3]),
    "int64 beside large uint64": ([np.array([-1]), np.array([2**63], "u8")], object, [-1, 2**63]),
    "rows of two shapes": ([np.array([[1, 2]]), np.array([[3]])], object, [[1, 2], [3]]),
    "n-d rows beside flat ones": ([np.array([[1, 2]]), np.array([3])], object, [[1, 2], 3]),
    "datetimes beside objects": (
        [np.array([1], "M8[ns]"), np.array([None])],
        object,
        [np.datetime64(1, "ns"), None],
    ),
    "datetimes beside numbers": ([np.array([1], "M8[ns]"), np.array([1])], object, [np.datetime64(1, "ns"), 1]),
}


@pytest.mark.parametrize(("parts", "dtype", "values"), WHERE_NUMPY_BENDS.values(), ids=WHERE_NUMPY_BENDS)
def test_other_columns_keep_their_values_where_numpy_would_bend_one(parts, dtype, values):
    assert_same_column(concatenate(parts), dtype, values)
    assert_same_column(concatenate(parts[::-1]), dtype, values[::-1])
