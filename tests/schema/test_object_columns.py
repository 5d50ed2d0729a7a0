"""What an object column holds: Python numbers where NumPy ones came in, and the very object for anything else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from assembled import assert_same_column, column_of
from dtype_table import THIRD
from strategies import (
    Level,
    Points,
    Span,
    Verdict,
    alike,
)

from verl_ext.schema import assemble_reward_extra_info

NUMPY_NUMBERS = [
    np.float32(0.5),
    np.float64(0.1),
    np.longdouble(0.5),
    np.int8(3),
    np.uint64(2**63),
    np.bool_(True),
    np.complex64(1j),
    np.array(0.5),
    np.array(True),
    torch.tensor(0.5),
    torch.tensor(0.5, requires_grad=True),
    torch.tensor(0.5, dtype=torch.bfloat16),
    torch.tensor(3),
    torch.tensor(True),
]


@pytest.mark.parametrize("number", NUMPY_NUMBERS, ids=repr)
@pytest.mark.parametrize("rows", [lambda n: [{"key": n}, {}], lambda n: [{"key": n}, {"key": "text"}]])
def test_every_object_column_holds_python_numbers_where_numpy_ones_came_in(number, rows):
    value = assemble_reward_extra_info(rows(number))["key"][0]
    assert type(value) in (bool, int, float, complex)
    assert alike(value, number)
    assert (type(value) is bool) == (getattr(number, "dtype", None) in (np.bool_, torch.bool))


def test_a_long_double_that_no_python_number_holds_stays_itself_in_an_object_column():
    assert_same_column(column_of([THIRD, None]), object, [THIRD, None])


KEPT = [
    [np.float32(0.5)],
    {"a": np.float32(0.5)},
    np.array([1, 2]),
    np.array("text"),
    np.str_("a"),
    np.datetime64(1, "ns"),
    np.timedelta64(1, "s"),
    torch.ones(2),
    torch.tensor(1.0, device="meta"),
    Verdict.RIGHT,
    Level.LOW,
    Points(0.5),
    b"a",
    range(3),
    Span(0, 1),
]


@pytest.mark.parametrize("value", KEPT, ids=repr)
def test_an_object_column_shares_everything_that_is_no_numpy_number(value):
    assert column_of([value, None])[0] is value


def test_long_complex_numbers_in_a_column_of_objects_are_pythons_where_python_holds_them():
    column = column_of([np.clongdouble(1 + 2j), "text"])
    assert type(column[0]) is complex
    assert column[0] == 1 + 2j
