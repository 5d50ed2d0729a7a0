"""The dtype rules one by one: stock verl's column where NumPy is right, and every value as it is where NumPy is not."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from assembled import assert_same_column, column_of
from dtype_table import AS_STOCK, LONG, WHERE_STOCK_BENDS, nested
from strategies import (
    alike,
)

from verl_ext import schema
from verl_ext.schema import assemble_reward_extra_info


@pytest.mark.parametrize("values", AS_STOCK.values(), ids=AS_STOCK)
def test_where_numpy_is_right_the_column_is_stock_verls(values):
    stock = np.array(values)
    column = column_of(values)
    assert (column.dtype, column.shape) == (stock.dtype, stock.shape)
    assert all(map(alike, column, stock))
    assert all(map(alike, column, values))


@pytest.mark.parametrize(("values", "dtype"), WHERE_STOCK_BENDS.values(), ids=WHERE_STOCK_BENDS)
def test_where_numpy_bends_refuses_or_flattens_every_value_stays_as_it_is(values, dtype):
    column = column_of(values)
    assert_same_column(column, dtype, values)
    if dtype is object:
        assert column.shape == (len(values),)


def test_lists_are_opened_down_to_the_sixteenth_level():
    assert column_of([nested(16), nested(16)]).shape == (2,) + (1,) * 16


MEBIBYTE_OF_16 = "x" * (2**20 // 4 // 16)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (["ab"] * 15 + [MEBIBYTE_OF_16], "<U16384"),
        (["ab"] * 15 + [MEBIBYTE_OF_16 + "x"], object),
        (["ab"] * 100 + [LONG], object),
        ([LONG] * 100, "<U20000"),
        ([LONG] * 2 + [""] * 14, "<U20000"),
        ([LONG] * 2 + [""] * 15, object),
        ([["ab", LONG]] * 2 + [["ab", "ab"]] * 100, object),
    ],
    ids=["1 MiB", "more than 1 MiB", "a long outlier", "all long", "8 times padded", "more", "in lists"],
)
def test_text_is_padded_to_one_width_only_where_that_takes_little_memory(values, dtype):
    assert_same_column(column_of(values), dtype, values)


def test_a_key_that_some_rows_lack_is_none_there_in_an_object_column():
    columns = assemble_reward_extra_info([{"acc": 1.0}, {"acc": 2.0, "steps": [1, 2]}, {}, None])
    assert list(columns) == ["acc", "steps"]
    assert_same_column(columns["acc"], object, [1.0, 2.0, None, None])
    assert_same_column(columns["steps"], object, [None, [1, 2], None, None])


@pytest.mark.parametrize("times", [1, 9])  # 9 ** 16 looks, if each were looked into again
def test_a_list_that_holds_itself_is_one_value(times):
    endless: list = []
    endless.extend([endless] * times)
    column = column_of([endless, endless])
    assert column.dtype == object
    assert column[0] is endless


@pytest.mark.parametrize("bottom", [[1.0], []], ids=["numbers", "nothing"])
def test_a_few_lists_that_are_within_each_other_again_and_again_are_one_value(bottom, monkeypatch):
    monkeypatch.setattr(schema, "_LARGEST", 1000)
    value = bottom
    for _ in range(15):  # 9 ** 15 leaves, or lists without any
        value = [value] * 9
    column = column_of([value, value])
    assert column.dtype == object
    assert column[1] is value


def test_very_deep_lists_are_one_value_each():
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    column = column_of([deep, deep])
    assert column.dtype == object
    assert column[1] is deep


def test_numpy_is_all_that_the_dtype_rules_import():
    script = "import sys, verl_ext.schema; sys.exit(bool({'torch', 'verl', 'tensordict'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


@pytest.mark.parametrize("dtype", [np.int8, np.float32, np.bool_, np.uint16])
def test_arrays_without_axes_that_all_bring_one_narrow_dtype_keep_it_as_numpys_scalars_do(dtype):
    column = column_of([np.array(1, dtype), dtype(0), np.array(1, dtype)])
    assert_same_column(column, dtype, [1, 0, 1])
