"""What real scorers return for one key, family by family: the one source of values for the tests of this folder.

Each family is what the samples of one batch have under one key on a run that stock verl may well carry. What stock
cannot carry shows when it is run; no family is left out because verl-ext would rather not have it.
"""

from __future__ import annotations

import array
import datetime
import enum
from collections import deque, namedtuple
from collections.abc import Collection
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import strategies as st

Turns = namedtuple("Turns", "first second")


class Verdict(str, enum.Enum):
    RIGHT = "right"
    WRONG = "wrong"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Steps(list):
    """A scorer's own kind of list."""


class Told:
    """An object that NumPy can make an array of."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array(self.values, dtype=dtype)

    def tolist(self) -> list[float]:
        return list(self.values)


class Grade:
    """An object that is a number by `__float__` alone."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return self.value


EXACT = st.integers(-3, 3)
HALVES = st.integers(-6, 6).map(lambda number: number / 2)
"""Numbers that every kind of float holds exactly."""


def pairs(kind: Any) -> st.SearchStrategy[Any]:
    return st.tuples(HALVES, HALVES).map(kind)


FAMILIES: dict[str, st.SearchStrategy[Any]] = {
    "floats": st.floats(allow_nan=True, allow_infinity=True, width=32),
    "integers": st.integers(-(2**40), 2**40),
    "bools": st.booleans(),
    "floats, integers and bools": HALVES | EXACT | st.booleans(),
    "integers beyond int64": st.sampled_from([10**30, 10**301, -(10**400), 3]),
    "complex": st.builds(complex, HALVES, HALVES),
    "NumPy float32": HALVES.map(np.float32),
    "NumPy float64 beside floats": HALVES.map(np.float64) | HALVES,
    "NumPy long doubles": HALVES.map(np.longdouble),
    "NumPy integers": EXACT.map(np.int64),
    "NumPy bools": st.booleans().map(np.bool_),
    "0-d arrays": HALVES.map(np.array),
    "0-d tensors": HALVES.map(torch.tensor),
    "0-d tensors beside 0": HALVES.map(torch.tensor) | st.just(0),
    "0-d bfloat16": HALVES.map(lambda number: torch.tensor(number, dtype=torch.bfloat16)),
    "1-element arrays": HALVES.map(lambda number: np.array([number])),
    "1-element tensors": HALVES.map(lambda number: torch.tensor([number])),
    "tensors": pairs(torch.tensor),
    "tensors of integers": st.tuples(EXACT, EXACT).map(torch.tensor),
    "arrays": pairs(np.array),
    "matrices": st.tuples(HALVES, HALVES).map(lambda pair: np.array([pair, pair])),
    "lists": pairs(list),
    "tuples": pairs(tuple),
    "lists of lists": st.tuples(HALVES, HALVES).map(lambda pair: [list(pair), [1.0, 2.0]]),
    "named tuples": pairs(lambda pair: Turns(*pair)),
    "list subclasses": pairs(Steps),
    "deques": pairs(deque),
    "ranges": EXACT.map(lambda start: range(start, start + 3)),
    "sizes": st.just(torch.Size([2, 3])),
    "array.array": pairs(lambda pair: array.array("d", pair)),
    "pandas series": pairs(lambda pair: pd.Series(pair)),
    "objects with __array__": pairs(lambda pair: Told(*pair)),
    "objects with __float__": HALVES.map(Grade),
    "lists of tensors": st.tuples(HALVES, HALVES).map(lambda pair: [torch.tensor(number) for number in pair]),
    "lists of other lengths": st.lists(HALVES, min_size=1, max_size=3),
    "lists of dicts": st.lists(st.fixed_dictionaries({"call": EXACT}), min_size=1, max_size=2),
    "lists of None": st.lists(st.none() | EXACT, min_size=2, max_size=2),
    "a number and text in a list": st.tuples(EXACT, st.sampled_from(["a", "bb"])).map(list),
    "Decimal": HALVES.map(Decimal),
    "Fraction": EXACT.map(lambda number: Fraction(number, 4)),
    "text": st.sampled_from(["", "42", "[INVALID]", "é"]),
    "numeric text": st.sampled_from(["0.5", "1", "-2"]),
    "long text": st.sampled_from(["x" * 3000, "y"]),
    "text ending in NUL": st.sampled_from(["a\0", "b"]),
    "text and numbers": st.sampled_from(["[INVALID]", 42, 7]),
    "NumPy text": st.sampled_from(["a", "bb"]).map(np.str_),
    "enums of text": st.sampled_from(list(Verdict)),
    "enums of integers": st.sampled_from(list(Level)),
    "bytes": st.sampled_from([b"a", b"bb"]),
    "None": st.none(),
    "None beside floats": st.none() | HALVES,
    "None beside text": st.none() | st.sampled_from(["a", "b"]),
    "dicts": st.fixed_dictionaries({"format": HALVES, "tools": st.fixed_dictionaries({"calls": EXACT})}),
    "sets": st.sampled_from([{1}, {1, 2}, set()]),
    "dates": st.sampled_from([datetime.date(2026, 1, 2), datetime.datetime(2026, 1, 2, 3, 4)]),
    "datetime64": st.sampled_from([np.datetime64("2026-01-02"), np.datetime64(1, "ns")]),
    "timedelta64": st.sampled_from([np.timedelta64(1, "s"), np.timedelta64(3, "ns")]),
    "masked arrays": pairs(lambda pair: np.ma.masked_array(pair, [True, False])),
    "int64 beside uint64": EXACT.map(np.int64) | st.integers(0, 3).map(np.uint64),
    "NumPy numbers of two narrow kinds": EXACT.map(np.int8) | EXACT.map(np.int16),
}

IN_MAKE_TEST = frozenset(
    (
        *("floats, integers and bools", "NumPy float32", "integers beyond int64", "0-d tensors beside 0"),
        *("arrays", "lists", "lists of other lengths", "lists of dicts", "text and numbers", "enums of text"),
        *("bytes", "None beside floats", "dicts", "dates", "Decimal"),
    )
)
"""One family of each sort; `make test-all` runs the others, too."""


def each_family(*, but: Collection[str] = ()) -> pytest.MarkDecorator:
    """A test's parameter `family`: each of them, `but` some."""
    marks = {family: () if family in IN_MAKE_TEST else pytest.mark.slow for family in FAMILIES if family not in but}
    return pytest.mark.parametrize("family", [pytest.param(family, marks=mark) for family, mark in marks.items()])


def values_of_a_family(rows: int) -> st.SearchStrategy[list[Any]]:
    """The values that `rows` samples have under one key."""
    return st.sampled_from(sorted(FAMILIES)).flatmap(
        lambda family: st.lists(FAMILIES[family], min_size=rows, max_size=rows)
    )
