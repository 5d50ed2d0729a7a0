"""`merge_columns`: reward columns of chunks become the column that all their rows together ask for."""

from __future__ import annotations

import numpy as np
import pytest
from assembled import assert_same_column, merged
from dtype_table import AS_STOCK, LONG, WHERE_STOCK_BENDS
from hypothesis import given, settings
from strategies import (
    every_cut,
    values_of_one_key,
)

from verl_ext.schema import assemble_reward_extra_info, merge_columns, object_column


@pytest.mark.parametrize(
    "values",
    [*AS_STOCK.values(), *(values for values, _ in WHERE_STOCK_BENDS.values())],
    ids=[*AS_STOCK, *WHERE_STOCK_BENDS],
)
@pytest.mark.parametrize("some_lack_the_key", [False, True])
def test_every_row_of_the_dtype_table_is_the_same_however_it_is_cut(values, some_lack_the_key):
    rows = [{"key": value} for value in values] + [{}] * some_lack_the_key
    whole = assemble_reward_extra_info(rows)["key"]
    for cut in every_cut(len(rows), 3):
        assert_same_column(merged(rows, cut)["key"], whole.dtype, list(whole))


@settings(max_examples=4 * settings.default.max_examples)
@given(values_of_one_key())
def test_merging_the_columns_of_chunks_gives_the_column_of_all_rows(values):
    rows = [{"key": value} for value in values]
    whole = assemble_reward_extra_info(rows)["key"]
    for cut in every_cut(len(rows), 3):
        column = merged(rows, cut)["key"]
        assert column.shape == whole.shape
        assert_same_column(column, whole.dtype, list(whole))


def test_long_text_in_one_chunk_only_is_weighed_against_all_rows():
    rows = [{"key": LONG}] * 2 + [{"key": ""}] * 15
    assert merged(rows, [2, 15])["key"].dtype == object
    assert merged(rows[:-1], [1, 15])["key"].dtype == "<U20000"


@pytest.mark.parametrize("nothing", [0, np.array([], object), np.array([], "U1"), np.empty((0, 3), int)], ids=repr)
def test_a_chunk_without_rows_contributes_neither_a_missing_key_nor_a_dtype(nothing):
    for part in [np.array([1.0, 2.0], "f4"), np.array(["a"]), np.array([[1, 2]]), np.array([None, 1.0])]:
        for parts in ([nothing, part], [part, nothing], [nothing, part, nothing]):
            assert_same_column(merge_columns(parts), part.dtype, list(part))


def test_chunks_without_rows_alone_give_a_column_without_rows():
    assert merge_columns([np.array([], "f4"), np.array([], "f4")]).shape == (0,)
    assert merge_columns([0, np.array([], "f4")]).shape == (0,)


@pytest.mark.parametrize(
    ("parts", "dtype"),
    [
        ([object_column([1.0]), object_column([2.0])], np.float64),
        ([object_column([1.0]), object_column([{}])], object),
        ([object_column(["a"]), object_column(["bcd"])], "<U3"),
        ([np.array(["a"], "U9"), np.array(["b"], "U9")], "<U1"),
        ([np.array([b"a"]), np.array([b"b"])], object),
        ([np.array([0.5], "f4"), np.array([0.5], "f4")], np.float32),
    ],
    ids=["numbers", "mixed", "texts", "wide texts", "bytes", "float32"],
)
def test_merging_decides_the_dtype_anew_from_all_values_even_where_the_dtypes_agree(parts, dtype):
    assert_same_column(merge_columns(parts), dtype, [value for part in parts for value in part.tolist()])


def test_merging_does_not_change_the_parts():
    parts = [np.array([1, 2]), np.array([None, "a"]), 1]
    assert_same_column(merge_columns(parts), object, [1, 2, None, "a", None])
    assert parts[0].tolist() == [1, 2]
    assert parts[1].tolist() == [None, "a"]


def test_rows_of_an_n_d_column_become_lists_where_another_chunk_lacks_the_key():
    column = merge_columns([np.array([[1, 2], [3, 4]]), 1])
    assert column.tolist() == [[1, 2], [3, 4], None]
    assert [type(value) for value in column] == [list, list, type(None)]


def test_numpys_numbers_in_a_column_of_objects_are_pythons_once_it_is_merged():
    part = np.fromiter([np.float32(0.5), "text"], object)
    merged_column = merge_columns([part, 1])
    assert_same_column(merged_column, object, [0.5, "text", None])
    assert type(merged_column[0]) is float
