"""`same_value`: which two values are one, whatever their types; what cannot be compared is not."""

from __future__ import annotations

from array import array
from collections import UserDict, UserList, UserString, deque
from unittest.mock import ANY

import numpy as np
import pandas as pd
import pytest
import torch
from assembled import column_of
from hypothesis import given
from strategies import (
    Opaque,
    Pages,
    Span,
    Told,
    Unsized,
    values_of_one_key,
)

from verl_ext.schema import object_column, same_value

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
