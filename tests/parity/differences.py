"""What comes out otherwise than on stock verl, on purpose: the one list. README's table shows it, row by row.

`COLUMNS` is about the column that the values of one key make, where every row has that key. There the list is complete:
`test_columns.py` shows that a column differs from stock's where a difference applies, and nowhere else. `ELSEWHERE` is
about rows, names, metrics and dumps; each entry shows itself on an example.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from elsewhere import of_a_dump, of_a_tensordict, of_samples, of_validation
from strategies import Unsized, items_of, kind_of

Values = Sequence[Any]


@dataclass(frozen=True)
class Difference:
    """One row of README's table: what it is about, and what stock verl and verl-ext make of it."""

    what: str
    stock: str
    ours: str


@dataclass(frozen=True)
class OfColumns(Difference):
    """One that the values of one key decide.

    Attributes:
        example: values of one key on all rows, or what makes them.
        applies: whether it applies to such values.
    """

    example: Values | Callable[[], Values]
    applies: Callable[[Values], bool]


@dataclass(frozen=True)
class Elsewhere(Difference):
    """One of anything else.

    Attributes:
        outcomes: what stock verl and what verl-ext make of an example.
    """

    outcomes: Callable[[], tuple[Any, Any]]


# --- what the conditions ask -------------------------------------------------------------------------------------


MANY = 2**22


def opened(value: Any) -> Sequence[Any] | None:
    """What is in a value that NumPy opens; `None` for any other."""
    if kind_of(value) != "sequence":
        return None
    items = value.detach() if isinstance(value, torch.Tensor) else items_of(value)
    return items.tolist() if isinstance(items, np.ndarray) and items.dtype.kind == "U" else items


def insides(values: Iterable[Any], deep: int = 0) -> Iterator[tuple[Any, int]]:
    """Every value, and everything in what NumPy opens, with its depth."""
    for value in values:
        yield value, deep
        items = opened(value)
        if items is not None and deep < 20 and len(items) <= MANY:
            yield from insides(items, deep + 1)


def leaves(values: Values) -> list[Any]:
    return [value for value, _ in insides(values) if kind_of(value) != "sequence"]


def some(condition: Callable[[Any], bool]) -> Callable[[Values], bool]:
    """Whether a value, or anything in it, fulfils the condition, and NumPy does not take all as objects anyhow."""
    return lambda values: any(condition(value) for value, _ in insides(values)) and not are_objects(values)


def of(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


def are_objects(values: Values) -> bool:
    """Whether NumPy takes them as objects."""
    try:
        return np.array(values).dtype == object
    except Exception:
        return False


def shape_of(value: Any, deep: int = 0) -> tuple[int, ...] | None:
    """As NumPy sees it; `None` for what is no box of equal sides, or is within itself."""
    items = opened(value)
    if items is None:
        return ()
    if deep == 64:
        return None
    shapes = {shape_of(item, deep + 1) for item in islice(items, 1 if len(items) > MANY else None)} or {()}
    inner = shapes.pop()
    return None if shapes or inner is None else (len(items), *inner)


def of_one_shape(values: Values) -> bool:
    shapes = {shape_of(value) for value in values}
    return len(shapes) == 1 and None not in shapes


def numbers(values: Values) -> list[Any] | None:
    """The leaves, where all are numbers."""
    found = leaves(values)
    return found if found and all(kind_of(leaf) == "number" for leaf in found) else None


def is_integer(value: Any) -> bool:
    return isinstance(value.item() if hasattr(value, "item") else value, int)


def are_bent_to_floats(values: Values) -> bool:
    """Whether all are integers that NumPy makes floats of."""
    found = numbers(values)
    return found is not None and all(map(is_integer, found)) and np.array(list(map(known, found))).dtype.kind == "f"


def are_rounded(values: Values) -> bool:
    """Whether an integer beside other numbers is none that they can be held with."""
    found = numbers(values)
    if found is None or all(map(is_integer, found)):
        return False
    held = np.array(list(map(known, found)))
    return held.dtype != object and any(
        is_integer(one) and int(one) != int(other.real) for one, other in zip(found, held.tolist(), strict=True)
    )


WIDE = frozenset(map(np.dtype, (bool, np.int64, np.uint64, np.float64, np.complex128, object)))


def are_narrow_of_two_kinds(values: Values) -> bool:
    """Whether NumPy makes a column of a narrow dtype, or of long doubles, which not every row brings."""
    if are_empty_arrays(values):
        dtypes = {np.asarray(value).dtype if hasattr(value, "__array__") else None for value in values}
        return np.array(values).dtype != np.float64 and len(dtypes) > 1
    found = list(map(known, numbers(values) or ()))
    if any(isinstance(leaf, np.longdouble) and float(leaf) != leaf for leaf in found):
        return False  # no Python number holds it
    dtype = np.array(found).dtype
    if dtype in WIDE and not (dtype == np.uint64 and max(map(int, found)) < 2**63):  # which int64 does not hold
        return False
    return {getattr(leaf, "dtype", None) for leaf in found} != {dtype}


def are_empty_arrays(values: Values) -> bool:
    """Whether they are lists or arrays of one shape without any elements."""
    return not leaves(values) and of_one_shape(values) and not any(map(is_refused_tensor, values))


def known(leaf: Any) -> Any:
    """A tensor without axes as NumPy's scalar, or Python's number."""
    if isinstance(leaf, torch.Tensor):
        return leaf.item() if is_refused_tensor(leaf) else leaf.numpy()[()]
    return leaf


def is_refused_tensor(value: Any) -> bool:
    """Whether `np.array` raises for it."""
    if not isinstance(value, torch.Tensor):
        return False
    try:
        value.numpy()
    except (TypeError, RuntimeError):
        return True
    return False


DATES = (np.datetime64, np.timedelta64, np.void)


def is_registered(value: Any) -> bool:
    """Whether it has a dtype that others than NumPy registered."""
    return isinstance(value, np.generic | np.ndarray) and value.dtype.isbuiltin == 2


def text_beside_others(values: Values) -> bool:
    found = leaves(values)
    texts = sum(isinstance(leaf, str) for leaf in found)
    others = [leaf for leaf in found if not isinstance(leaf, str)]
    numbers_alone = bool(others) and all(kind_of(leaf) == "number" for leaf in others)
    return texts > 0 and numbers_alone and of_one_shape(values) and not are_objects(values)


def is_padded(values: Values) -> bool:
    """Whether all are text that NumPy pads to more than 1 MiB, eight times what is there."""
    found = leaves(values)
    if not found or not all(type(leaf) is str for leaf in found):
        return False
    padded = len(found) * max(map(len, found))
    return 4 * padded > 2**20 and padded > 8 * sum(map(len, found))


def are_boxes_of_objects(values: Values) -> bool:
    """Whether they are lists of one shape that NumPy takes for lists of objects."""
    return of_one_shape(values) and shape_of(values[0]) != () and are_objects(values)


def are_deep(values: Values) -> bool:
    return any(deep > 16 for _, deep in insides(values))


def are_huge(values: Values) -> bool:
    """Whether one that is no array holds more than four million items."""
    return any((items := opened(value)) is not None and len(items) > MANY for value in values)


def numpys_number_among_objects(values: Values) -> bool:
    """Whether the column is one of objects, and a value a number of NumPy's or of torch's."""
    held = [value for value in values if hasattr(value, "item") and kind_of(value) == "number"]
    return bool(held) and numbers(values) is None and not text_beside_others(values)


def nested(levels: int) -> Any:
    value: Any = 1.0
    for _ in range(levels):
        value = [value]
    return value


# --- the list ----------------------------------------------------------------------------------------------------

COLUMNS = [
    OfColumns(
        "text beside numbers, on two rows or in one list",
        "the numbers become text",
        "both as they were",
        ["[INVALID]", 42],
        text_beside_others,
    ),
    OfColumns(
        "an integer that float64 cannot hold, beside a float",
        "rounded",
        "both as they were",
        [2**53 + 1, 0.5],
        are_rounded,
    ),
    OfColumns(
        "integers that int64 cannot hold, or NumPy's `uint64`, beside others",
        "floats, rounded",
        "`int64` or `uint64`, or as they were",
        [2**63, 1],
        are_bent_to_floats,
    ),
    OfColumns(
        "NumPy numbers of two narrow or unsigned dtypes, or of one beside bools or empty lists",
        "such a dtype for all",
        "the dtype of the same Python numbers",
        [np.int8(1), np.int16(2)],
        are_narrow_of_two_kinds,
    ),
    OfColumns(
        "text that ends in NUL",
        "the NUL is cut off",
        "as it was",
        ["a\0", "b"],
        some(lambda value: isinstance(value, str) and value.endswith("\0")),
    ),
    OfColumns(
        "NumPy's `str_`, enums of text and other subclasses of `str`",
        "plain text; of an enum its name, cut",
        "as they were",
        [np.str_("a"), np.str_("b")],
        some(lambda value: isinstance(value, str) and type(value) is not str),
    ),
    OfColumns(
        "one long text among many short ones",
        "all padded to its length",
        "as they were",
        ["x" * 3000, *["y"] * 99],
        is_padded,
    ),
    OfColumns(
        "bytes and byte arrays",
        "zeros at the end cut off, byte arrays as lists of numbers",
        "as they were",
        [b"a\0", b"b"],
        some(of(bytes, bytearray)),
    ),
    OfColumns(
        "NumPy's dates, time spans and records",
        "a column of their kind, all in one unit",
        "as they were",
        [np.datetime64("2026-01-02"), np.datetime64(1, "ns")],
        some(lambda value: isinstance(value, np.generic | np.ndarray) and value.dtype.type in DATES),
    ),
    OfColumns(
        "masked arrays",
        "without their mask",
        "as they were",
        [np.ma.masked_array([1, 2], [True, False])] * 2,
        some(of(np.ma.MaskedArray)),
    ),
    OfColumns(
        "lists of different lengths",
        "`ValueError`",
        "one list per row",
        [[0.5], [1.0, 0.0]],
        lambda values: not of_one_shape(values),
    ),
    OfColumns(
        "lists of dicts, of `None` or of other objects",
        "an array of objects with an axis for each level",
        "one list per row",
        [[None, 1], [2, 3]],
        are_boxes_of_objects,
    ),
    OfColumns(
        "lists more than 16 deep",
        "an array with an axis for each level",
        "one list per row",
        [nested(17)] * 2,
        are_deep,
    ),
    OfColumns(
        "a range, or a list, of more than four million items",
        "an array",
        "one per row",
        [range(2**22 + 1)],
        are_huge,
    ),
    OfColumns(
        "tensors of bfloat16, or that require a gradient, and others that NumPy refuses",
        "`TypeError`",
        "their numbers; as they were, if sparse or without any",
        [torch.ones(2, dtype=torch.bfloat16)] * 2,
        some(is_refused_tensor),
    ),
    OfColumns(
        "numbers of a dtype that others register with NumPy, as `ml_dtypes` does",
        "a column of that dtype",
        "a column of the same Python numbers",
        lambda: [pytest.importorskip("ml_dtypes", reason="it comes with the extra `test`").bfloat16(0.5)] * 2,
        some(is_registered),
    ),
    OfColumns(
        "a mapping that is no dict; a sequence that raises when it is read",
        "a list of its keys; the error",
        "as it was",
        [UserDict({0: 1})] * 2,
        some(lambda value: isinstance(value, Unsized) or (isinstance(value, Mapping) and not isinstance(value, dict))),
    ),
    OfColumns(
        "NumPy's numbers in a column of objects, for example beside `None`",
        "NumPy's, which JSON does not know",
        "Python's",
        [np.float32(0.5), None],
        numpys_number_among_objects,
    ),
]

ELSEWHERE = [
    Elsewhere(
        "a key that only some rows have",
        "lost, or `KeyError`, or `AssertionError`",
        "an object column, `None` where missing",
        of_samples({"acc": 1.0}, {"acc": 0.0, "pred": "42"}),
    ),
    Elsewhere(
        "a key named like a tensor or a trainer's column, with other values",
        "overwrites it, or fails later",
        "`FieldCollisionError` with the key, the row and the place",
        of_samples({"uid": "other"}),
    ),
    Elsewhere(
        "a key that is no `str`, where verl makes a TensorDict",
        "`IndexError`",
        "`RowError` with the key; elsewhere it is carried, as on stock",
        of_a_tensordict({7: 1.0}),
    ),
    Elsewhere(
        "an explicit `None`, in validation",
        "a mean named `mean@1`",
        "`mean@N` of those who have a value, and `coverage@N`",
        of_validation(acc=[None, 1.0]),
    ),
    Elsewhere(
        "a line of a dump whose score is the reward function's, or the trainer's",
        "one of the two",
        "that one, and where they differ the other as `reward_sum` or `reward_extra/score`",
        of_a_dump(score=[1.0]),
    ),
    Elsewhere(
        "a reward key that names a field of the dump (`input`, `step`, ...)",
        "replaces it, or is lost",
        "both, the key's as `reward_extra/<key>`",
        of_a_dump(input=["other"]),
    ),
    Elsewhere(
        "NumPy's numbers inside a dict, in the legacy trainer's dump",
        "text",
        "numbers",
        of_a_dump(detail=[{"f1": np.float32(0.5)}]),
    ),
]
