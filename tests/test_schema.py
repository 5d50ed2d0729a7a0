"""The dtype rules one by one, the cases from public reports, and column + column."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from array import array
from collections import OrderedDict, UserDict, UserList, UserString, defaultdict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import chain
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_schema import slowly_assembled
from strategies import (
    KEYS,
    Colour,
    Level,
    Opaque,
    Pages,
    Points,
    Span,
    Steps,
    Told,
    Unsized,
    Verdict,
    alike,
    every_cut,
    pieces,
    plain_values,
    python_numbers,
    reward_rows,
    texts,
    uniform_rows,
    values_of_one_key,
)

from verl_ext import schema
from verl_ext.errors import RowError, VerlExtError
from verl_ext.schema import assemble_reward_extra_info, concatenate, merge_columns, object_column, same_value

COPY = Path(__file__).parent / "data" / "reward_rows.json"
SHARED = Path(__file__).parents[2] / "shared" / "cases" / "reward_rows.json"
CASES = json.loads((SHARED if SHARED.exists() else COPY).read_text())

THIRD = np.longdouble(1) / 3  # no Python number holds it


Pair3 = namedtuple("Pair3", "first second third")


class Torn(Pages):
    def __getitem__(self, place: int) -> object:
        raise KeyError(place)


class Endless(UserList):
    def __iter__(self):
        while True:
            yield 1


def nested(levels: int) -> object:
    value: object = 1.0
    for _ in range(levels):
        value = [value]
    return value


def column_of(values: list) -> np.ndarray:
    return assemble_reward_extra_info([{"key": value} for value in values])["key"]


def merged(rows: list, cut: list[int]) -> dict[str, np.ndarray]:
    """The columns of `rows`, aligned chunk by chunk, then merged."""
    chunks = [(len(piece), assemble_reward_extra_info(piece)) for piece in pieces(rows, cut)]
    keys = dict.fromkeys(key for _, columns in chunks for key in columns)
    return {key: merge_columns([columns.get(key, length) for length, columns in chunks]) for key in keys}


def assert_same_column(column: np.ndarray, dtype: object, values: list) -> None:
    assert type(column) is np.ndarray
    assert column.dtype == dtype
    assert len(column) == len(values)
    assert all(map(alike, column, values)), f"{column!r} does not hold {values!r}"


# --- the dtype table, row by row ---------------------------------------------------------------------------------

AS_STOCK = {
    "floats": [1.0, 0.5],
    "NaN, infinities and negative zero": [float("nan"), float("inf"), -float("inf"), -0.0],
    "bools": [True, False],
    "integers": [1, -2, 3],
    "integers up to the border of int64": [2**63 - 1, -(2**63)],
    "integers that only uint64 holds": [2**63, 2**64 - 1],
    "a bool beside a float": [1.0, True],
    "a bool beside an integer": [True, 2],
    "an integer beside a float": [1, 0.5],
    "an integer that float64 just holds beside a float": [2**53, -(2**53), 0.5],
    "a large even integer beside a float": [2**60, 0.5],
    "complex numbers": [1j, 0.5, 2, True],
    "float32 on every row": [np.float32(0.1), np.float32(1)],
    "float16 on every row": [np.float16(0.1), np.float16(1)],
    "int8 on every row": [np.int8(1), np.int8(-1)],
    "uint64 on every row": [np.uint64(1), np.uint64(2)],
    "NumPy bools": [np.bool_(True), np.bool_(False)],
    "a NumPy bool beside a bool": [np.bool_(True), False],
    "complex64 on every row": [np.complex64(1j), np.complex64(2)],
    "long doubles on every row": [THIRD, np.longdouble(1)],
    "a long double beside an integer": [THIRD, 2],
    "float64 scalars beside floats": [np.float64(0.1), 0.2],
    "float32 beside a float": [np.float32(0.1), 0.2],
    "0-d arrays": [np.array(0.1), np.array(0.2)],
    "0-d arrays of the other byte order": [np.array(0.1, ">f8"), np.array(0.2, ">f8")],
    "0-d tensors": [torch.tensor(0.1), torch.tensor(0.2)],
    "0-d integer tensors": [torch.tensor(1), torch.tensor(2)],
    "0-d bool tensors": [torch.tensor(True), torch.tensor(False)],
    "an integer enum": [Level.LOW, Level.HIGH],
    "a subclass of float": [Points(0.5), Points(1)],
    "texts": ["7", "12", ""],
    "empty texts": ["", ""],
    "texts with a NUL inside, and lone surrogates": ["a\0b", "\0a", "\ud800"],
    "lists of floats": [[0.1, 0.2], [0.3, 0.4]],
    "empty lists": [[], []],
    "nested empty lists": [[[], []], [[], []]],
    "a list, a tuple and an array of one shape": [[1, 2], (3, 4), np.array([5, 6])],
    "nested lists": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]],
    "lists with bools among numbers": [[True, 0.5], [2, 3.0]],
    "lists of texts": [["a", "bc"], ["d", ""]],
    "lists of float32": [[np.float32(0.1)], [np.float32(0.2)]],
    "lists of 0-d arrays": [[np.array(0.1)], [np.array(0.2)]],
    "lists of 0-d tensors": [[torch.tensor(0.1)], [torch.tensor(0.2)]],
    "lists of arrays": [[np.array([1, 2], "i2")], [np.array([3, 4], "i2")]],
    "float32 arrays": [np.array([0.1, 0.2], "f4"), np.array([0.3, 0.4], "f4")],
    "arrays of the other byte order": [np.array([0.1], ">f8"), np.array([0.2], ">f8")],
    "int32 arrays beside lists of integers": [np.array([1, 2], "i4"), [3, 4]],
    "ranges": [range(2), range(3, 1, -1)],
    "empty ranges": [range(0), range(0)],
    "ranges beside lists": [range(2), [0.5, 1]],
    "named tuples": [Span(0, 1), Span(2, 3)],
    "named tuples of texts": [Span("a", "b"), Span("c", "de")],
    "lists of named tuples": [[Span(0, 1)], [Span(2, 3)]],
    "list subclasses": [Steps([0.1, 0.2]), Steps([0.3, 0.4])],
    "lists of list subclasses": [[Steps([1])], [Steps([2])]],
    "deques": [deque([1, 2]), deque([3, 4])],
    "lists by another name": [UserList([1, 2]), UserList([3, 4])],
    "sequences by len and item alone": [Pages([1, 2]), Pages([3, 4])],
    "sequences of sequences": [Pages([Pages([1]), (2,)]), [deque([3]), Pages([4])]],
    "objects with __array__": [Told([0.1, 0.2]), Told([0.3, 0.4])],
    "arrays of Python's": [array("i", [1, 2]), array("i", [3, 4])],
    "arrays of Python's, of letters": [array("u", "ab"), array("u", "cd")],
    "memory views": [memoryview(b"ab"), memoryview(b"cd")],
    "series": [pd.Series([0.1, 0.2], index=[7, 3]), pd.Series([0.3, 0.4])],
    "data frames": [pd.DataFrame({"a": [1, 2]}), pd.DataFrame({"a": [3, 4]})],
    "indexes of pandas": [pd.Index([1, 2]), pd.Index([3, 4])],
    "matrices": [np.asarray([[1, 2]]).view(np.matrix), np.asarray([[3, 4]]).view(np.matrix)],
    "n-d tensors": [torch.tensor([0.1, 0.2]), torch.tensor([0.3, 0.4])],
    "tensors of one element": [torch.tensor([1]), torch.tensor([2])],
    "tensors of a narrow kind": [torch.tensor([1, 2], dtype=torch.int8), torch.tensor([3, 4], dtype=torch.int8)],
    "tensors of bools": [torch.tensor([True, False]), torch.tensor([False, True])],
    "empty tensors": [torch.ones(0), torch.ones(0)],
    "tensors of several axes": [torch.ones(2, 1, 3), torch.zeros(2, 1, 3)],
    "tensors beside lists": [torch.tensor([0.1, 0.2]), [0.3, 0.4]],
    "sizes of tensors": [torch.Size([1, 2]), torch.Size([3, 4])],
    "lists of tensors": [[torch.tensor([1, 2]), torch.tensor([3, 4])], [torch.tensor([5, 6]), torch.tensor([7, 8])]],
    "text arrays": [np.array(["a", "b"]), np.array(["c", "d"])],
    "text arrays wider than their texts": [np.array(["a"], "U9"), np.array(["b"], "U9")],
    "empty text arrays": [np.array([], "U3"), np.array([], "U3")],
    "empty float32 arrays": [np.array([], "f4"), np.array([], "f4")],
    "None alone": [None, None],
    "None beside a number": [1.0, None],
    "None beside text": ["7", None],
    "dicts": [{"a": 1}, {}],
    "sets": [{1}, {2}],
    "datetimes": [datetime.datetime(2024, 1, 1), datetime.date(2024, 1, 1)],
    "decimals and fractions": [Decimal("0.1"), Fraction(1, 3)],
    "enums": [Colour.RED, Colour.RED],
    "objects": [Opaque(0), Opaque(1)],
    "a dict beside a number": [{"a": 1}, 1.0],
    "an integer beyond uint64": [2**64, 1],
    "an integer beyond uint64 beside a float": [2**64, 1.5],
    "an integer of 5,000 digits": [10**5000, 0.5],
}


@pytest.mark.parametrize("values", AS_STOCK.values(), ids=AS_STOCK)
def test_where_numpy_is_right_the_column_is_stock_verls(values):
    stock = np.array(values)
    column = column_of(values)
    assert (column.dtype, column.shape) == (stock.dtype, stock.shape)
    assert all(map(alike, column, stock))
    assert all(map(alike, column, values))


WHERE_STOCK_BENDS = {
    "an integer that float64 cannot hold beside a float": ([2**53 + 1, 0.5], object),
    "an integer that float64 cannot hold beside a bool and a float": ([True, 2**63 - 1, 0.5], object),
    "an integer that float64 cannot hold beside a complex number": ([2**53 + 1, 1j], object),
    "an int64 scalar that float64 cannot hold beside a float": ([np.int64(2**53 + 1), 0.5], object),
    "a float64 scalar beside an integer that it cannot hold": ([np.float64(0.5), 2**53 + 1], object),
    "a float64 scalar beside a complex number": ([np.float64(0.5), 1j], np.complex128),
    "a float64 scalar beside an integer of 5,000 digits": ([np.float64(0.5), 10**5000], object),
    "a positive integer beyond int64 beside a negative one": ([2**63, -1], object),
    "a positive integer beyond int64 beside a small one": ([2**63, 1], np.uint64),
    "a positive integer beyond int64 beside a bool": ([2**63, 1, True], np.uint64),
    "uint64 beside int64": ([np.uint64(1), np.int64(-1)], np.int64),
    "uint64 beside a Python integer": ([np.uint64(2**63), 1], np.uint64),
    "integers of two widths": ([np.int8(1), np.int16(300)], np.int64),
    "floats of two widths": ([np.float16(0.1), np.float32(0.1)], np.float64),
    "float32 beside a bool": ([np.float32(0.1), True], np.float64),
    "a long double beside a float that is as exact": ([np.longdouble(0.5), 0.1], np.float64),
    "0-d bfloat16 tensors": ([torch.tensor(0.5, dtype=torch.bfloat16)] * 2, np.float64),
    "0-d tensors that require a gradient": ([torch.tensor(0.1, requires_grad=True)] * 2, np.float32),
    "text ending in NUL": (["a\0", "b"], object),
    "text beside a number": (["7", 7], object),
    "text beside a bool": (["True", True], object),
    "text beside bytes": (["a", b"a"], object),
    "a text enum": ([Verdict.RIGHT, Verdict.WRONG], object),
    "NumPy's own text scalars": ([np.str_("a"), np.str_("b")], object),
    "bytes": ([b"a\0", b"b"], object),
    "ragged lists": ([[0.1, 0.2], [0.3]], object),
    "lists ragged further down": ([[[1], [2, 3]], [[4], [5, 6]]], object),
    "lists of mixed kinds": ([["a", 1], ["b", 2]], object),
    "lists with None": ([[1.0, None], [2.0, 3.0]], object),
    "lists with a text that ends in NUL": ([["a\0"], ["b"]], object),
    "lists with an integer that float64 cannot hold": ([[2**53 + 1, 0.5], [1, 2]], object),
    "lists with an integer that float64 cannot hold, on another row": ([[2**53 + 1], [0.5]], object),
    "lists with a positive integer beyond int64": ([[2**63], [1]], np.uint64),
    "arrays of numbers beside arrays of text": ([np.array([1]), np.array(["a"])], object),
    "a list beside a number": ([[1.0], 1.0], object),
    "a list beside text": (["a", ["a"]], object),
    "ranges of different length": ([range(2), range(3)], object),
    "ranges with an integer that no column holds": ([range(2**70, 2**70 + 2), range(2)], object),
    "a range beyond all memory": ([range(10**12), range(10**12)], object),
    "a range beyond all counting": ([range(10**30), range(10**30)], object),
    "named tuples of text and numbers": ([Span(0, "a"), Span(2, "b")], object),
    "named tuples of different length": ([Span(0, 1), Pair3(1, 2, 3)], object),
    "list subclasses of dicts": ([Steps([{}]), Steps([{}])], object),
    "sequences that raise": ([Unsized([1]), Unsized([1])], object),
    "sequences whose items raise": ([Torn([1]), Torn([1])], object),
    "sequences that give other items than they say": ([Endless([1]), Endless([1])], object),
    "text of a user's own class": ([UserString("ab"), UserString("cd")], object),
    "mappings that are no dict": ([UserDict({0: 1}), UserDict({0: 2})], object),
    "series of text": ([pd.Series(["a", "b"]), pd.Series(["c", "d"])], object),
    "series of dates": ([pd.Series(pd.to_datetime(["2026-01-01"]))] * 2, object),
    "masked arrays": ([np.ma.masked_array([1, 2], [True, False])] * 2, object),
    "arrays of objects": ([np.array([1, 2], object), np.array([3, 4], object)], object),
    "arrays of datetimes": ([np.array(["2024"], "M8[s]"), np.array(["2025"], "M8[s]")], object),
    "NumPy datetimes, down to the nanosecond": ([np.datetime64(1, "ns"), np.datetime64(2, "ns")], object),
    "NumPy time deltas": ([np.timedelta64(1, "s"), np.timedelta64(2, "s")], object),
    "byte arrays": ([bytearray(b"ab"), bytearray(b"cd")], object),
    "tensors on the meta device": ([torch.tensor(1.0, device="meta")] * 2, object),
    "sparse tensors": ([torch.eye(2).to_sparse()] * 2, object),
    "n-d bfloat16 tensors": ([torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)], np.float64),
    "n-d bfloat16 tensors beside float32": ([torch.ones(2, dtype=torch.bfloat16), torch.ones(2)], np.float64),
    "n-d tensors that require a gradient": ([torch.ones(2, requires_grad=True)] * 2, np.float32),
    "n-d tensors that are a conjugate": ([torch.tensor([1j, 2]).conj(), torch.tensor([1j, 2]).conj()], np.complex64),
    "tensors of two widths": ([torch.tensor([1], dtype=torch.int8), torch.tensor([300], dtype=torch.int16)], np.int64),
    "tensors of different length": ([torch.ones(2), torch.ones(3)], object),
    "tensors beside numbers": ([torch.ones(2), 1.0], object),
    "lists within lists, 17 deep": ([nested(17), nested(17)], object),
}


@pytest.mark.parametrize(("values", "dtype"), WHERE_STOCK_BENDS.values(), ids=WHERE_STOCK_BENDS)
def test_where_numpy_bends_refuses_or_flattens_every_value_stays_as_it_is(values, dtype):
    column = column_of(values)
    assert_same_column(column, dtype, values)
    if dtype is object:
        assert column.shape == (len(values),)


def test_lists_are_opened_down_to_the_sixteenth_level():
    assert column_of([nested(16), nested(16)]).shape == (2,) + (1,) * 16


LONG = "x" * 20_000
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


# --- properties of single columns --------------------------------------------------------------------------------


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


# --- rows from public reports ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cases() -> list[dict]:
    if SHARED.exists():
        assert json.loads(COPY.read_text()) == json.loads(SHARED.read_text()), "tests/data is out of date"
    return CASES


def test_the_copy_of_the_cases_is_the_original_and_holds_some(cases):
    assert len(cases) >= 20


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case["name"] for case in CASES])
def test_rows_from_public_reports_give_the_expected_columns_however_they_are_cut(cases, number):
    case = cases[number]
    rows, expected = case["rows"], case["columns"]
    ways = [assemble_reward_extra_info(rows), *(merged(rows, cut) for cut in every_cut(len(rows), 3))]
    if "chunks" in case:
        ways.append(merged(rows, case["chunks"]))
    for columns in ways:
        assert list(columns) == list(expected)
        for key, (dtype, values) in expected.items():
            assert_same_column(columns[key], dtype, values)


# --- fast and slow -----------------------------------------------------------------------------------------------


def assert_as_slowly_assembled(rows: list) -> None:
    columns, expected = assemble_reward_extra_info(rows), slowly_assembled(rows)
    returned = {id(value) for row in rows if row for value in row.values()}
    assert list(columns) == list(expected)
    for key, column in columns.items():
        slow = expected[key]
        assert type(column) is np.ndarray
        assert (key, column.dtype, column.shape) == (key, slow.dtype, slow.shape)
        if column.dtype != object:
            assert all(map(alike, column, slow))
            # (a long double has padding bytes)
            assert column.dtype.char in "gG" or column.tobytes() == slow.tobytes()
        for one, other in zip(column, slow, strict=True) if column.dtype == object else ():
            assert one is other if id(other) in returned else type(one) is type(other) and alike(one, other)


@st.composite
def rows_that_change(draw: st.DrawFn) -> list[dict | None]:
    """Rows of one schema whose values are of another kind every few rows, some of them absent."""
    columns = []
    for _ in range(draw(st.integers(1, 3))):
        stretches = draw(st.lists(values_of_one_key(max_rows=5), min_size=1, max_size=4))
        columns.append(list(chain.from_iterable(stretches)))
    rows: list[dict | None] = [dict(zip(KEYS, values, strict=False)) for values in zip(*columns, strict=False)]
    for number in draw(st.lists(st.integers(0, len(rows) - 1), max_size=3)):
        rows[number] = draw(st.sampled_from([None, {}, {KEYS[0]: None}, OrderedDict(rows[number] or {})]))
    return rows


@given(
    st.one_of(reward_rows(max_rows=12), rows_that_change(), uniform_rows(max_rows=12)),
    st.integers(1, 6),
    st.integers(1, 4),
    st.sampled_from([0, 1, 16]),
)
def test_blocks_of_rows_give_what_the_slow_obvious_version_gives(rows, block, few, short):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"_BLOCK": block, "_BLOCK_VALUES": 1, "_FEW": few, "_SHORT": short}.items():
            patch.setattr(schema, name, value)
        assert_as_slowly_assembled(rows)


@pytest.fixture
def blocks_of_1024_rows(monkeypatch):
    monkeypatch.setattr(schema, "_BLOCK_VALUES", 1)


@pytest.mark.usefixtures("blocks_of_1024_rows")
@pytest.mark.parametrize("spoilt", [1023, 1024, 2047, 2048, 4999])
@pytest.mark.parametrize("value", [None, "text", 3, 0.5, True, np.float32(0.1), 2**53 + 1, [1.0], "a\0", "x" * 60_000])
@pytest.mark.parametrize("others", [0.5, 1, True, "text", np.float64(0.5), [1.0], None], ids=repr)
def test_one_value_of_another_kind_among_thousands_decides_as_among_few(others, value, spoilt):
    rows = [{"key": others, "other": number} for number in range(5000)]
    rows[spoilt]["key"] = value
    assert_as_slowly_assembled(rows)


@pytest.mark.usefixtures("blocks_of_1024_rows")
@pytest.mark.parametrize(
    "row", [{}, None, {"other": 1}, {"key": 0.5, "more": 1}, OrderedDict(other=1, key=2.0)], ids=repr
)
@pytest.mark.parametrize("spoilt", [0, 1023, 1024, 4999])
def test_one_row_of_another_schema_among_thousands_decides_as_among_few(row, spoilt):
    rows = [{"key": number / 2, "other": number} for number in range(5000)]
    rows[spoilt] = row
    assert_as_slowly_assembled(rows)


def test_text_that_is_short_everywhere_but_pads_much_in_the_whole_stays_text():
    rows = [{"key": "x" * 15 if number == 70_000 else ""} for number in range(80_000)]
    assert_as_slowly_assembled(rows)
    assert assemble_reward_extra_info(rows)["key"].dtype == object


def test_text_that_pads_much_in_the_whole_is_weighed_by_its_exact_length(monkeypatch):
    monkeypatch.setattr(schema, "_FREE_TEXT_BYTES", 0)
    for rows, dtype in ((8, "<U9"), (9, object)):  # at most 8 characters for each that is there
        column = assemble_reward_extra_info([{"key": "x" * 9 if row == 0 else ""} for row in range(rows)])["key"]
        assert column.dtype == dtype


def test_what_is_of_one_kind_is_written_as_it_comes_and_never_decided_anew(monkeypatch):
    def decided_anew(*_):
        raise AssertionError("all values were looked at once more")

    patches = {"_BLOCK": 10, "_BLOCK_VALUES": 1, "_FEW": 2, "_FREE_TEXT_BYTES": 0, "dense_column": decided_anew}
    for name, value in patches.items():
        monkeypatch.setattr(schema, name, value)
    rows = [{"float": row / 2, "int": row, "bool": row % 3 > 0, "text": "abcdef"[: row % 7]} for row in range(45)]
    for row in rows[::2]:
        row["sometimes"] = 0.5
    for row in rows[20:]:
        row["late"] = 1.0
    columns = assemble_reward_extra_info(rows)
    kinds = {"float": "f8", "int": "i8", "bool": "?", "text": "<U6", "sometimes": "O", "late": "O"}
    assert list(columns) == list(kinds)
    for key, column in columns.items():
        assert column.dtype == np.dtype(kinds[key])
        assert column.tolist() == [row.get(key) for row in rows]


def test_an_ordered_row_whose_order_was_changed_keeps_its_values_under_their_keys():
    moved = OrderedDict(acc=1.0, pred="7")
    moved.move_to_end("acc")
    assert_as_slowly_assembled([moved] * 9 + [{"acc": 0.5}] * 9)


# --- rows that are none ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [1, None, True, Level.LOW, Colour.RED, ("a", "b"), b"acc", 1.5, 10**5000], ids=type)
def test_a_key_may_be_whatever_a_dict_takes(key):
    uniform = assemble_reward_extra_info([{"acc": 1.0, key: 2.0}, {key: 0.5, "acc": 0.0}])
    assert list(uniform) == ["acc", key]
    assert_same_column(uniform[key], np.float64, [2.0, 0.5])
    sparse = assemble_reward_extra_info([{"acc": 1.0}, {}, {key: "x"}])
    assert list(sparse) == ["acc", key]
    assert_same_column(sparse[key], object, [None, None, "x"])


def test_a_number_and_its_text_are_two_keys_and_equal_keys_are_one_as_in_a_dict():
    columns = assemble_reward_extra_info([{1: "a"}, {"1": "b"}, {True: "c"}, {1.0: "d"}])
    assert {key: column.tolist() for key, column in columns.items()} == {
        1: ["a", None, "c", "d"],
        "1": [None, "b", None, None],
    }


@pytest.mark.parametrize("row", [1.0, "acc", [("acc", 1.0)], {"acc"}, np.float32(1)], ids=repr)
def test_a_row_that_is_no_dict_is_named_with_its_number_and_type(row):
    with pytest.raises(RowError, match="row 1") as caught:
        assemble_reward_extra_info([{"acc": 1.0}, row])
    assert type(row).__name__ in str(caught.value)
    assert isinstance(caught.value, VerlExtError)


class Meddling(str):
    """A key during whose look-up, as if in another thread, a row changes."""

    def __hash__(self):
        self.meddle()
        return super().__hash__()

    def meddle(self):
        """Nothing, until a test says what."""


def gets_a_key(row):
    row.setdefault("late", "late")


def loses_a_key(row):
    row.pop("acc", None)


def swaps_a_key(row):
    if "acc" in row:
        del row["acc"]
        row["late"] = "late"


def after(times, act):
    """What does nothing so many times, and acts from then on."""
    waits = iter(range(times))
    return lambda: next(waits, None) is None and act()


@pytest.mark.parametrize("others", [[], [{"only": "only"}] * 20], ids=["one schema", "two schemas"])
@pytest.mark.parametrize("rows_of_a_schema", [2, 20])
@pytest.mark.parametrize("place", [0, 1, -1])
@pytest.mark.parametrize("change", [gets_a_key, loses_a_key, swaps_a_key])
def test_of_a_row_that_changes_while_it_is_read_no_value_comes_out_at_another_key(
    change, place, rows_of_a_schema, others
):
    """Whichever look-up of the key the change comes at."""
    comes_out = 0
    for look in range(1, 60):
        key = Meddling("fmt")
        rows = [{key: "fmt", "acc": "acc"} for _ in range(rows_of_a_schema)] + others
        key.meddle = after(look, partial(change, rows[place % rows_of_a_schema]))
        try:
            columns = assemble_reward_extra_info(rows)
        except RowError as error:
            assert str(error).startswith("a row got or lost a key while it was read: finalize a copy")
        else:
            comes_out += 1
            for name, column in columns.items():
                assert set(column.tolist()) <= {name, None}
    assert comes_out


def test_subclasses_of_dict_and_text_are_rows_and_keys():
    rows = [OrderedDict(acc=1.0), defaultdict(float, {np.str_("acc"): 0.5}), {Verdict.RIGHT: 1}]
    columns = assemble_reward_extra_info(rows)
    assert list(columns) == ["acc", "right"]
    assert len(rows[1]) == 1, "looking up a missing key must not create it"
    assert_same_column(columns["acc"], object, [1.0, 0.5, None])


def test_rows_may_come_from_a_generator():
    assert_same_column(assemble_reward_extra_info({"acc": n} for n in range(3))["acc"], np.int64, [0, 1, 2])


def test_no_rows_give_no_columns():
    assert assemble_reward_extra_info([]) == {}


# --- column + column ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [*AS_STOCK.values(), *(values for values, _ in WHERE_STOCK_BENDS.values())])
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


# --- equality ----------------------------------------------------------------------------------------------------

NAN = float("nan")
META = torch.tensor(1.0, device="meta")


class Quarrelsome:
    def __eq__(self, other):
        raise ValueError("no comparing")

    __hash__ = None


def endless() -> list:
    inner: list = [1]
    inner.append(inner)
    return inner


def dict_knot() -> dict:
    inner: dict = {"text": "a"}
    inner["self"] = inner
    return inner


SAME = [
    (dict_knot(), dict_knot()),
    (1, 1.0),
    (True, 1),
    (NAN, -NAN),
    (NAN, np.float32("nan")),
    (complex(NAN, 1), NAN),
    (None, None),
    ("a", np.str_("a")),
    (np.float32(0.5), 0.5),
    (torch.tensor(0.5, requires_grad=True), 0.5),
    ([1, 2], (1, 2)),
    ([1, 2], np.array([1.0, 2.0])),
    ([[1], [NAN]], np.array([[1], [NAN]])),
    (torch.tensor([1, 2]), [1, 2]),
    ([], ()),
    ({"a": [1, NAN]}, {"a": (1, NAN)}),
    ({1, 2}, frozenset({2, 1})),
    (np.array([None, "a"]), [None, "a"]),
    (np.array(1.5), 1.5),
    (np.datetime64(1, "ns"), np.datetime64(1, "ns")),
    (endless(), endless()),
    (META, META),
    (ANY, {"a": 1}),
    (range(2), [0, 1]),
    (range(10**12), range(10**12)),
    (Span(1, NAN), [1, NAN]),
    (deque([1]), (1,)),
    (UserList([NAN]), UserList([NAN])),
    (Pages([1, [2]]), [1, (2,)]),
    (Told([1, 2]), torch.tensor([1, 2])),
    (array("d", [0.5]), np.array([0.5])),
    (pd.Series([1, NAN]), [1, NAN]),
    (torch.ones(2, dtype=torch.bfloat16), [1, 1]),
    (UserString("ab"), UserString("ab")),
]
DIFFERENT = [
    (1, 2),
    (1, "1"),
    (None, NAN),
    (None, 0),
    (NAN, 0.0),
    (2**53 + 1, float(2**53)),
    ("a", "a\0"),
    (b"a", "a"),
    ([1, 2], [1, 2, 3]),
    ([1], 1),
    ([], {}),
    ({"a": 1}, {"b": 1}),
    ({"a": 1}, {"a": 1, "b": 2}),
    ([1, [2]], [1, [3]]),
    (np.array([1, 2]), np.array([1, 3])),
    (np.array([1, 2]), np.array([[1, 2]])),
    (np.datetime64(1, "ns"), 1),
    (np.array([1], "M8[ns]"), [1]),
    (np.datetime64("NaT"), None),
    (Quarrelsome(), Quarrelsome()),
    (META, torch.tensor(1.0, device="meta")),
    (META, 1.0),
    (Opaque(0), Opaque(1)),
    (range(2), [0, 1, 2]),
    (range(10**12), range(10**12 + 1)),
    (deque([1]), [2]),
    (deque([1]), 1),
    (Pages([1]), Pages([2])),
    (Unsized([1]), Unsized([1])),
    (UserString("ab"), UserString("ac")),
    (UserString("ab"), ["a", "c"]),
    (UserDict({0: 1}), [0]),
    (pd.Series([1]), pd.Series([2])),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equal_values_of_one_kind_are_the_same_value(one, other):
    assert same_value(one, other) is True
    assert same_value(other, one) is True
    assert same_value([one], (other,)) is True


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_values_that_differ_or_cannot_be_compared_are_not_the_same_value(one, other):
    assert same_value(one, other) is False
    assert same_value(other, one) is False
    assert same_value({"a": [one]}, {"a": [other]}) is False


@pytest.mark.parametrize("dtype", [np.int8, np.float32, np.bool_, np.uint16])
def test_arrays_without_axes_that_all_bring_one_narrow_dtype_keep_it_as_numpys_scalars_do(dtype):
    column = column_of([np.array(1, dtype), dtype(0), np.array(1, dtype)])
    assert_same_column(column, dtype, [1, 0, 1])


def test_long_complex_numbers_in_a_column_of_objects_are_pythons_where_python_holds_them():
    column = column_of([np.clongdouble(1 + 2j), "text"])
    assert type(column[0]) is complex
    assert column[0] == 1 + 2j


@pytest.mark.parametrize("bad", [0.5, "acc"])
def test_a_bad_row_far_behind_is_counted_from_the_first_row_of_all(bad):
    with pytest.raises(RowError, match=r"^row 30000 "):
        assemble_reward_extra_info([*[{"acc": 1.0}] * 30_000, bad])


def test_columns_of_objects_stay_so_beside_numbers_as_on_stock_verl():
    joined = concatenate([object_column([1, 2]), np.array([3])])
    assert_same_column(joined, object, [1, 2, 3])


def test_bools_and_signed_and_unsigned_integers_together_are_no_floats():
    joined = concatenate([np.array([True]), np.array([2]), np.array([3], np.uint64)])
    assert joined.dtype.kind != "f"
    assert joined.tolist() == [1, 2, 3]


def test_numpys_numbers_in_a_column_of_objects_are_pythons_once_it_is_merged():
    part = np.fromiter([np.float32(0.5), "text"], object)
    merged_column = merge_columns([part, 1])
    assert_same_column(merged_column, object, [0.5, "text", None])
    assert type(merged_column[0]) is float


@pytest.mark.parametrize("kind", ["M8[D]", "m8[s]", "V4"])
def test_arrays_of_kinds_that_python_would_bend_are_compared_element_by_element(kind):
    one = (
        np.arange(3, dtype="i4")
        .astype("i8" if kind != "V4" else "i4")
        .view(kind if kind == "V4" else "i8")
        .astype(kind)
    )
    other = one.copy()
    assert same_value(one, other)
    other[2] = other[1]
    assert not same_value(one, other)
    assert not same_value(one, one[:2])


def test_lists_too_deep_to_compare_are_not_the_same_value():
    one: list = []
    other: list = []
    for _ in range(5000):
        one, other = [one], [other]
    assert same_value(one, other) is False


@given(values_of_one_key())
def test_a_column_is_the_same_value_as_its_values_but_not_as_others(values):
    assert same_value(object_column(values), values)
    assert not same_value(object_column(values), [*values, None])
    assert not same_value(column_of(values), [*values[:-1], Opaque(0)])
