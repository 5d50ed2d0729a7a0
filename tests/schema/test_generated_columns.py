"""Columns of generated values: as on stock where that is right, and every value at its row whatever it is."""

from __future__ import annotations

import numpy as np
from assembled import assert_same_column, column_of
from hypothesis import given
from hypothesis import strategies as st
from strategies import (
    alike,
    plain_values,
    python_numbers,
    texts,
    values_of_one_key,
)


@given(plain_values())
def test_stock_parity_holds_bit_for_bit_where_stock_is_right(values):
    stock, column = np.array(values), column_of(values)
    assert (column.dtype, column.shape) == (stock.dtype, stock.shape)
    if stock.dtype == object:
        assert all(one is other for one, other in zip(column.flat, stock.flat, strict=True))
    else:
        assert column.tobytes() == stock.tobytes()


@given(
    st.lists(st.integers() | st.integers(2**62, 2**65) | st.integers(-(2**64), -(2**62)) | st.booleans(), min_size=1)
)
def test_integers_alone_are_int64_or_uint64_if_all_fit_and_never_floats(values):
    if all(type(value) is bool for value in values):
        expected = np.bool_
    elif all(-(2**63) <= value < 2**63 for value in values):
        expected = np.int64
    elif all(0 <= value < 2**64 for value in values):
        expected = np.uint64
    else:
        expected = object
    assert_same_column(column_of(values), expected, values)


@given(st.lists(python_numbers(), min_size=1, max_size=5), st.floats() | st.complex_numbers())
def test_numbers_with_a_float_among_them_are_one_dtype_only_if_that_holds_each_of_them(values, inexact):
    values = [*values, inexact]
    inferred = np.array(values)
    expected = inferred.dtype if all(map(alike, inferred, values)) else object
    assert_same_column(column_of(values), expected, values)


@given(st.lists(texts() | st.sampled_from(["short", "x" * 9000]), min_size=1, max_size=60))
def test_text_columns_hold_every_character_and_take_little_memory(values):
    column = column_of(values)
    assert [*column] == values
    assert all(type(value) is str for value in column.tolist())
    if column.dtype.kind == "U":
        assert column.nbytes <= max(2**20, 8 * 4 * sum(map(len, values)))
    else:
        padded = np.array(values)
        assert padded.tolist() != values or padded.nbytes > 2**20


@given(values_of_one_key())
def test_a_column_holds_every_value_at_its_row_whatever_the_values_are(values):
    column = column_of(values)
    assert_same_column(column, column.dtype, values)
    if column.dtype == object:
        assert column.shape == (len(values),)
    else:
        assert column.dtype.kind in "biufcU"
