"""Numbers of dtypes that others register with NumPy, as `ml_dtypes` does: no column ever has such a dtype.

A process that has not imported `ml_dtypes` does not know them. So the same rows would come out as one column here and
as another there.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from strategies import alike, every_cut, pieces

from verl_ext.schema import assemble_reward_extra_info, merge_columns, object_column, same_value

ml_dtypes = pytest.importorskip("ml_dtypes", reason="it comes with the extra `test`, and is all that this is about")

KINDS = [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, ml_dtypes.uint4]
MADE = {
    "scalars": lambda kind, number: kind(number),
    "0-d arrays": lambda kind, number: np.array(number, kind),
    "arrays": lambda kind, number: np.array([number, 1], kind),
    "lists": lambda kind, number: [kind(number), kind(1)],
    "lists of 0-d arrays": lambda kind, number: [np.array(number, kind)],
    "lists of arrays": lambda kind, number: [np.array([number], kind), np.array([1], kind)],
    "empty arrays": lambda kind, number: np.array([], kind),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_numbers_of_a_dtype_that_numpy_does_not_ship_are_pythons_in_a_column(kind, made):
    values = [made(kind, number) for number in (0, 1, 2)]
    rows = [{"key": value} for value in values]
    column = assemble_reward_extra_info(rows)["key"]
    integers = "int" in kind.__name__ and column.size
    assert column.dtype == (np.int64 if integers else np.float64)
    assert all(map(alike, column, values))
    assert all(map(same_value, column, values))
    for cut in every_cut(3, 2):
        parts = [assemble_reward_extra_info(piece).get("key", 0) for piece in pieces(rows, cut)]
        merged = merge_columns(parts)
        assert (merged.dtype, merged.tolist()) == (column.dtype, column.tolist())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_beside_other_numbers_they_count_as_pythons(kind):
    for other in (0.5, np.float32(0.5), torch.tensor(0.5)):
        column = assemble_reward_extra_info([{"key": kind(1)}, {"key": other}])["key"]
        assert (column.dtype, column.tolist()) == (np.float64, [1.0, 0.5])
    array = assemble_reward_extra_info([{"key": np.ones(2, kind)}, {"key": np.ones(2, np.float32)}])["key"]
    assert (array.dtype, array.tolist()) == (np.float64, [[1.0, 1.0], [1.0, 1.0]])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_columns_of_objects_hold_them_as_pythons_numbers(kind):
    for number in (kind(1), np.array(1, kind)):
        for rest in ({}, {"key": "text"}, {"key": None}):
            (value, _) = assemble_reward_extra_info([{"key": number}, rest])["key"]
            assert type(value) in (int, float)
            assert value == 1


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_columns_that_stock_verl_made_of_them_are_merged_as_numbers(kind):
    column = merge_columns([np.array([0, 1], kind), np.array([2], kind)])
    assert column.dtype in (np.int64, np.float64)
    assert column.tolist() == [0, 1, 2]
    assert merge_columns([np.array([1], kind), object_column(["text"])]).tolist() == [1, "text"]


def test_importing_ml_dtypes_changes_no_column():
    script = """
        import numpy, sys, torch
        from verl_ext import assemble_reward_extra_info

        def columns():
            half = torch.tensor(0.5, dtype=torch.bfloat16)
            values = [half, [half], half.reshape(1), [half.reshape(1)]]
            made = [assemble_reward_extra_info([{"key": value}] * 2)["key"] for value in values]
            return [(column.dtype, column.shape) for column in made]

        before = columns()
        assert "ml_dtypes" not in sys.modules
        import ml_dtypes
        assert numpy.dtype("bfloat16")
        assert columns() == before == [(numpy.dtype("f8"), (2,) + (1,) * axes) for axes in (0, 1, 1, 2)]
    """
    lines = "\n".join(line[8:] for line in script.splitlines())
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
