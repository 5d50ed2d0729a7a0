"""The dtype rules as two tables: values of which stock verl makes the right column, and values that it would bend."""

from __future__ import annotations

import datetime
from array import array
from collections import UserDict, UserList, UserString, deque, namedtuple
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import torch
from strategies import (
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
)

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

LONG = "x" * 20_000
