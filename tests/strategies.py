"""Hypothesis strategies for what reward functions return, and for the ways in which a batch is cut between workers.

Rows draw their values per key from one *family* at a time (numbers of all kinds, texts, lists of one shape, ...), since
a column in which every value is of another kind only ever exercises the last rule of the dtype table.
"""

from __future__ import annotations

import array
import dataclasses
import datetime
import enum
import functools
import itertools
import os
from collections import OrderedDict, UserList, deque, namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# HYPOTHESIS_PROFILE=thorough looks fifty times longer.
COMMON = settings(
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("default", COMMON)
settings.register_profile("thorough", COMMON, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


class Verdict(str, enum.Enum):
    RIGHT = "right"
    WRONG = "wrong"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Colour(enum.Enum):
    RED = "red"


class Points(float):
    """A scorer's own kind of number."""


class Opaque:
    """An object that NumPy knows nothing about; `tag` tells one from another, also after a journey."""

    def __init__(self, tag: int) -> None:
        self.tag = tag


class Rude(Opaque):
    """One that can neither be compared, hashed nor shown."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not to be compared")

    def __repr__(self) -> str:
        raise RuntimeError("not to be shown")


class Elementwise(Opaque):
    """One that, as an array does, answers `==` with one answer per element."""

    __hash__ = None

    def __eq__(self, other: object) -> np.ndarray:
        return np.array([True, False])


@dataclasses.dataclass
class Judgement:
    """A scorer's own record, which pickles and compares by its fields."""

    text: str
    tokens: list[int] = dataclasses.field(default_factory=list)


class Steps(list):
    """A scorer's own kind of list."""


class Pages:
    """A sequence by `__len__` and `__getitem__` alone."""

    def __init__(self, items: Iterable[object]) -> None:
        self.items = list(items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> object:
        return self.items[place]


class Told(Pages):
    """One that says which array it is; as a sequence it would be another."""

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return np.array(self.items, dtype)

    def __getitem__(self, place: int) -> object:
        raise AssertionError("NumPy asks for the array first")


class Unsized(Pages):
    """One that does not say how long it is."""

    def __len__(self) -> int:
        raise RuntimeError("not to be counted")


def list_in_itself() -> list[object]:
    knot: list[object] = [1.0]
    knot.append(knot)
    return knot


def dict_in_itself() -> dict[str, object]:
    knot: dict[str, object] = {"text": "a"}
    knot["self"] = knot
    return knot


Span = namedtuple("Span", "start end")


# --- single values -----------------------------------------------------------------------------------------------

NUMPY_INTEGERS = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)
NUMPY_FLOATS = (np.float16, np.float32, np.float64, np.longdouble)
NUMPY_NUMBERS = (np.bool_, *NUMPY_INTEGERS, *NUMPY_FLOATS, np.complex64)
TORCH_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64)
TORCH_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHAPES = ((), (0,), (1,), (2,), (3,), (2, 0), (1, 2), (2, 2))


@functools.cache
def python_integers() -> st.SearchStrategy[int]:
    """Small ones, and those around every border: of int64, of uint64, of what float64 holds."""
    borders = [sign * 2**power + step for power in (53, 62, 63, 64) for sign in (-1, 1) for step in (-1, 0, 1)]
    return st.one_of(st.integers(-5, 5), st.sampled_from([*borders, 10**30, -(10**400)]))


@functools.cache
def python_floats() -> st.SearchStrategy[float]:
    return st.one_of(st.sampled_from([0.0, -0.0, 0.1, 0.5, 1.0, 2.0**60, float("inf"), float("nan")]), st.floats())


@functools.cache
def python_numbers() -> st.SearchStrategy[object]:
    return st.one_of(st.booleans(), python_integers(), python_floats(), st.complex_numbers())


@st.composite
def numpy_numbers(draw: st.DrawFn, kinds: tuple[type, ...] = NUMPY_NUMBERS) -> np.generic:
    """NumPy scalars of these kinds."""
    kind = draw(st.sampled_from(kinds))
    if kind is np.bool_:
        return np.bool_(draw(st.booleans()))
    if issubclass(kind, np.integer):
        bounds = np.iinfo(kind)
        return kind(draw(st.integers(int(bounds.min), int(bounds.max)) | st.integers(0, 3)))
    if kind is np.longdouble:
        return np.longdouble(draw(st.integers(-9, 9))) / draw(st.integers(1, 3))
    return kind(draw(st.floats(width=16) | st.sampled_from([0.5, 1.0])))


@st.composite
def scalar_tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(TORCH_INTEGERS + TORCH_FLOATS))
    tensor = torch.tensor(draw(st.integers(0, 100)), dtype=dtype)
    return tensor.requires_grad_() if dtype.is_floating_point and draw(st.booleans()) else tensor


@functools.cache
def zero_d_arrays() -> st.SearchStrategy[np.ndarray]:
    return numpy_numbers().map(np.array)


@functools.cache
def numbers() -> st.SearchStrategy[object]:
    """Anything that is one number."""
    return st.one_of(
        python_numbers(), numpy_numbers(), zero_d_arrays(), scalar_tensors(), python_floats().map(Points)
    ) | (st.sampled_from(list(Level)))


@functools.cache
def texts() -> st.SearchStrategy[str]:
    """Text as a model writes it: NULs, lone surrogates, and now and then a very long answer."""
    characters = st.characters() | st.characters(categories=["Cs"]) | st.just("\0")
    return st.one_of(
        st.sampled_from(["", "7", "42", "[INVALID]", "a\0", "\0", "\0a", "\ud800", "None"]),
        st.builds(str.__mul__, st.just("x"), st.just(40_000)),
        st.text(characters, max_size=6),
    )


@functools.cache
def text_like() -> st.SearchStrategy[object]:
    return texts() | texts().map(np.str_) | st.sampled_from(list(Verdict)) | st.binary(max_size=3)


def lists(leaves: st.SearchStrategy[object], shape: tuple[int, ...]) -> st.SearchStrategy[object]:
    """Lists and tuples of exactly this shape."""
    if not shape:
        return leaves
    inner = st.lists(lists(leaves, shape[1:]), min_size=shape[0], max_size=shape[0])
    return inner | inner.map(tuple)


Pair = namedtuple("Pair", "first second")
OPENED: dict[str, Callable[[list], object]] = {
    "list subclass": Steps,
    "deque": deque,
    "UserList": UserList,
    "sequence": Pages,
    "__array__": Told,
    "series": lambda items: pd.Series(items, dtype=None if items else float),
    "array.array": lambda items: array.array("d", map(float, items)),
    "tensor": lambda items: torch.tensor(items, dtype=torch.float64),
    "matrix": lambda items: np.asarray([items]).view(np.matrix),
}
"""What NumPy opens as a list of numbers, besides lists, tuples and arrays: how each kind is made of one."""


@st.composite
def array_likes(draw: st.DrawFn, length: int | None = None) -> object:
    """Numbers in something that NumPy opens, within a list or not."""
    length = draw(st.integers(0, 3)) if length is None else length
    small = draw(st.lists(st.integers(-(2**53), 2**53) | st.just(0.5), min_size=length, max_size=length))
    made = [OPENED[draw(st.sampled_from(sorted(OPENED)))](small), range(length), torch.Size(range(length))]
    value = draw(st.sampled_from([*made, *([Pair(*small)] if length == 2 else [])]))
    return [value, value] if draw(st.integers(0, 3)) == 0 else value


@st.composite
def arrays(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> np.ndarray:
    shape = draw(st.sampled_from(SHAPES)) if shape is None else shape
    dtype = draw(st.sampled_from(["?", "i1", "i8", "u8", "f2", "f4", ">f8", "f8", "c8", "U3", "O", "M8[s]"]))
    size = int(np.prod(shape))
    return np.array(draw(st.lists(st.integers(0, 9), min_size=size, max_size=size)), "i8").astype(dtype).reshape(shape)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(TORCH_INTEGERS + TORCH_FLOATS))
    tensor = torch.ones(
        draw(st.sampled_from(SHAPES)), dtype=dtype, device=draw(st.sampled_from(["cpu", "cpu", "meta"]))
    )
    return tensor.requires_grad_() if dtype.is_floating_point and draw(st.booleans()) else tensor


@functools.cache
def opaque_values() -> st.SearchStrategy[object]:
    """Dicts, sets, ranges and all else that must stay one object per row."""
    return st.one_of(
        st.builds(range, st.integers(0, 3)),
        st.builds(Span, st.integers(0, 3), texts()),
        st.sets(st.integers(0, 3), max_size=2),
        st.frozensets(texts(), max_size=2),
        st.dictionaries(texts(), python_floats() | st.lists(st.integers()), max_size=2),
        st.dates(),
        st.datetimes(),
        st.builds(bytearray, st.binary(max_size=3)),
        st.builds(Judgement, texts()),
        *(st.builds(kind, st.integers(0, 99)) for kind in (Opaque, Rude, Elementwise)),
        st.builds(list_in_itself),
        st.builds(dict_in_itself),
        st.sampled_from(
            [
                Unsized([1.0]),
                Colour.RED,
                datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc),
                Decimal("0.1"),
                Fraction(1, 3),
                datetime.timedelta(1),
                np.datetime64("2024-01-01"),
                np.datetime64(1, "ns"),
                np.timedelta64(1, "s"),
                np.array("text"),
                OrderedDict(a=1),
                np.ma.masked_array([1, 2], [True, False]),
                ...,
            ]
        ),
    )


@functools.cache
def mixed_sequences() -> st.SearchStrategy[object]:
    return st.recursive(
        numbers() | texts() | st.none() | opaque_values(),
        lambda inner: st.lists(inner, max_size=3) | (st.lists(inner, max_size=2).map(tuple)),
        max_leaves=5,
    )


@functools.cache
def reward_values() -> st.SearchStrategy[object]:
    """Every kind of value that a scorer might return."""
    return st.one_of(
        numbers(),
        texts(),
        text_like(),
        st.none(),
        arrays(),
        tensors(),
        array_likes(),
        opaque_values(),
        mixed_sequences(),
        st.sampled_from(SHAPES).flatmap(lambda shape: lists(numbers(), shape)),
    )


# --- families: what the rows of one key have in common -----------------------------------------------------------


@functools.cache
def families() -> st.SearchStrategy[st.SearchStrategy[object]]:
    """Strategies for the values of one key."""
    one_kind = [python_floats(), python_integers(), python_numbers(), numbers(), texts(), text_like()]
    scalars = [
        *one_kind,
        numpy_numbers(),
        *(numpy_numbers((kind,)) for kind in NUMPY_NUMBERS),
        numpy_numbers(NUMPY_FLOATS),
        numpy_numbers((np.float64,)) | python_numbers(),
        scalar_tensors(),
        python_floats() | st.none(),
        python_numbers() | texts(),
    ]
    sequences = [lists(leaves, shape) for leaves in one_kind for shape in SHAPES]
    sequences += [lists(leaves, shape) | arrays(shape) for leaves in one_kind for shape in SHAPES]
    sequences += [arrays(shape) for shape in SHAPES]
    sequences += [array_likes(2), array_likes(2) | lists(numbers(), (2,)) | arrays((2,)), array_likes()]
    anything = [arrays(), tensors(), opaque_values(), mixed_sequences(), reward_values()]
    return st.one_of(st.sampled_from(scalars), st.sampled_from(sequences), st.sampled_from(anything))


@functools.cache
def plain_families() -> st.SearchStrategy[st.SearchStrategy[object]]:
    """Families on which stock verl is right: nothing that NumPy would refuse, flatten, round, bend or bloat."""
    exact_integers = st.integers(-(2**53), 2**53)
    short = st.text(max_size=6).filter(lambda text: not text.endswith("\0"))
    uniform = [exact_integers, python_floats(), st.booleans(), short]
    by_shape = [lists(leaves, shape) for leaves in uniform for shape in [(0,), (1,), (2,), (2, 2)]]
    by_kind = [
        st.lists(exact_integers, min_size=2, max_size=2).map(opened) for opened in [*OPENED.values(), tuple, Pair._make]
    ]
    by_kind += [st.integers(0, 9).map(lambda start: range(start, start + 3))]
    # (a long double has padding bytes, which no two of them need share)
    narrow = [numpy_numbers((kind,)) for kind in NUMPY_NUMBERS if kind is not np.longdouble]
    objects = [
        st.none(),
        python_floats() | st.none(),
        st.dictionaries(short, python_floats(), max_size=2),
        st.sets(st.integers(0, 3), max_size=2),
        st.dates(),
        st.builds(Opaque, st.integers(0, 99)),
    ]
    mixed = [python_floats() | exact_integers | st.booleans(), st.booleans() | exact_integers]
    return st.sampled_from([*uniform, *mixed, *by_shape, *by_kind, *narrow, *objects])


def values_of_one_key(max_rows: int = 4) -> st.SearchStrategy[list[object]]:
    return families().flatmap(lambda family: st.lists(family, min_size=1, max_size=max_rows))


def plain_values(max_rows: int = 5) -> st.SearchStrategy[list[object]]:
    return plain_families().flatmap(lambda family: st.lists(family, min_size=1, max_size=max_rows))


# --- rows --------------------------------------------------------------------------------------------------------

KEYS = ("acc", "score", "pred", "reward/format", "steps", "", "\ud800", "feedback")
ANY_KEYS = (*KEYS, 7, "7", None, True, Colour.RED, ("acc", 7))
"""With such as are no `str`, which stock verl carries until it makes a TensorDict of the batch."""


@st.composite
def reward_rows(draw: st.DrawFn, max_rows: int = 6, keys: Sequence[object] = KEYS) -> list[dict[object, object] | None]:
    """Rows of a mixed batch: each follows one of a handful of schemas, or emits nothing (`{}` or `None`)."""
    keys = draw(st.lists(st.sampled_from(keys), min_size=1, max_size=4, unique=True))
    values = {key: draw(families()) for key in keys}
    schemas = draw(st.lists(st.permutations(keys).flatmap(_prefixes), min_size=1, max_size=3))
    if draw(st.booleans()):
        schemas = schemas[:1]  # one schema for all rows: the columns that can be dense
    schema = st.sampled_from(schemas)
    row = schema.flatmap(lambda named: st.fixed_dictionaries({key: values[key] for key in named}))
    nothing = st.sampled_from([{}, None]) if draw(st.integers(0, 3)) == 0 else st.nothing()
    return draw(st.lists(row | nothing, max_size=max_rows))


def _prefixes(keys: list[str]) -> st.SearchStrategy[list[str]]:
    return st.integers(1, len(keys)).map(lambda length: keys[:length])


@st.composite
def uniform_rows(
    draw: st.DrawFn, min_rows: int = 1, max_rows: int = 5, keys: Sequence[object] = KEYS
) -> list[dict[object, object]]:
    """Rows that all have the same keys, with values that stock verl turns into columns without harm."""
    keys = draw(st.lists(st.sampled_from(keys), max_size=4, unique=True))
    values = {key: draw(plain_families()) for key in keys}
    return draw(st.lists(st.fixed_dictionaries(values), min_size=min_rows, max_size=max_rows))


# --- cuts --------------------------------------------------------------------------------------------------------


@st.composite
def cuts(draw: st.DrawFn, rows: int, max_chunks: int = 4) -> list[int]:
    """Numbers of rows per worker chunk, in order; some may be 0."""
    points = draw(st.lists(st.integers(0, rows), max_size=max_chunks - 1).map(sorted))
    return [end - start for start, end in itertools.pairwise([0, *points, rows])]


def every_cut(rows: int, max_chunks: int) -> Iterator[list[int]]:
    """Every way of cutting `rows` rows into `max_chunks` chunks, 0-row chunks among them (so: into fewer, too)."""
    for points in itertools.combinations_with_replacement(range(rows + 1), max_chunks - 1):
        yield [end - start for start, end in itertools.pairwise([0, *points, rows])]


def pieces(rows: list, cut: list[int]) -> list[list]:
    """`rows` cut into lists of these lengths."""
    remaining = iter(rows)
    return [list(itertools.islice(remaining, length)) for length in cut]


# --- columns -----------------------------------------------------------------------------------------------------


def objects(values: Iterable[object]) -> np.ndarray:
    """A 1-D object array, one value per row."""
    return np.fromiter(values, dtype=object)


# --- what the tests call equal -----------------------------------------------------------------------------------


def alike(one: object, other: object, _open: frozenset[tuple[int, int]] = frozenset()) -> bool:
    """Equal in value and in kind; what NumPy opens (list, array, tensor, ...) is all one kind, and so are all numbers.

    NaN is alike NaN. Written without a look at how the package compares.
    """
    if one is other or (id(one), id(other)) in _open:
        return True
    kind, _open = kind_of(one), _open | {(id(one), id(other))}
    if kind != kind_of(other):
        return False
    if kind == "number":
        return all(a == b or (a != a and b != b) for a, b in zip(_parts(one), _parts(other), strict=True))
    if kind == "text":
        return str.__eq__(one, other)
    if kind == "sequence":
        one, other = list(items_of(one)), list(items_of(other))
        return len(one) == len(other) and all(alike(a, b, _open) for a, b in zip(one, other, strict=True))
    if kind == "dict":
        return list(one) == list(other) and all(alike(one[key], other[key], _open) for key in one)
    return type(one) is type(other) and _told(one) == _told(other)


def _told(value: object) -> object:
    """What two objects of one type are compared by."""
    if isinstance(value, Opaque):
        return value.tag
    if isinstance(value, Unsized):
        return value.items
    if isinstance(value, torch.Tensor):  # on the meta device: it has no values
        return value.dtype, value.shape
    return value.tolist() if isinstance(value, np.ma.MaskedArray) else value


def kind_of(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return "object" if value.is_meta or value.layout != torch.strided else "sequence" if value.ndim else "number"
    if isinstance(value, np.ndarray) and type(value) not in (np.ndarray, np.matrix, np.memmap):
        return "object"  # a masked array, which says more than its elements
    if isinstance(value, np.ndarray | np.generic) and not isinstance(value, np.str_):
        counts = value.dtype.kind in "biufc" or value.dtype.isbuiltin == 2  # 2: registered, as by ml_dtypes
        return "sequence" if value.ndim else "number" if counts else "object"
    if isinstance(value, bool | int | float | complex):
        return "number"
    if isinstance(value, str):
        return "text"
    if hasattr(type(value), "__array__"):
        return "sequence"
    if isinstance(value, list | tuple | range | deque | UserList | array.array | memoryview | Pages):
        return "sequence" if type(value) is not Unsized else "object"
    return "dict" if type(value) is dict else "object"


def items_of(value: object) -> Iterable[object]:
    """What is in a value of kind "sequence": of one of which `__array__` says what is in it, of that array."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    return np.asarray(value) if hasattr(value, "__array__") else value


def _parts(number: object) -> tuple[object, object]:
    number = number.item() if hasattr(number, "item") else number
    return number.real, number.imag
