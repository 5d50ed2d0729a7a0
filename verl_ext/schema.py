"""Rows to aligned columns, and column + column: the ordered union of keys and the dtype rules.

NumPy only. The rules are the table `RULES`: the first one that holds every value exactly makes the column, and what no
rule holds becomes a 1-D object array with one value per row. Nothing here knows about batches or verl.
"""

from __future__ import annotations

import numbers
import struct
import sys
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from operator import countOf
from types import NoneType
from typing import Any

import numpy as np

from verl_ext import core
from verl_ext.column import Row, check_rows
from verl_ext.errors import RowError

Column = np.ndarray

_FREE_TEXT_BYTES = 2**20
_TEXT_PADDING = 8
_DEEPEST = 16  # levels of lists within lists; NumPy itself allows for 32 or 64, by its version
_LARGEST = 2**22  # leaves of one value that is no array; a `range` of 10**12 is small until it is opened
_INTEGER_KINDS, _NUMBER_KINDS = frozenset("biu"), frozenset("biufc")  # NumPy's letters; bools count as integers
_SAME_IN_PYTHON = _NUMBER_KINDS | set("OUS")
_PYTHON_NUMBERS = frozenset((bool, int, float, complex))
_CONTAINERS = frozenset((list, tuple, dict))
_NO_NUMBERS = (np.flexible, np.object_, np.datetime64, np.timedelta64)  # among NumPy's scalars
_ONE_THING = (int, float, complex, str, bytes, bytearray, NoneType, dict, np.generic, Mapping)
_PLAIN_ARRAYS = (np.matrix, np.memmap)
_REGISTERED = 2  # `dtype.isbuiltin` of what others registered with NumPy, as `ml_dtypes` does
_ARRAY_PROTOCOLS = ("__array_struct__", "__array_interface__", "__array__")
_MACHINE_TYPES = {float: ("d", np.float64), int: ("q", np.int64), bool: ("?", np.bool_)}  # by code of `struct`

_BLOCK, _BLOCK_VALUES = 1024, 12 * 1024  # rows, at least, and values; what one block holds fits into a cache
_FEW = 8  # rows of one schema in a block; to complete them is faster than to take them apart by themselves
_SHORT = 16  # characters; longer text waits as `str`, since an array of it would have to grow in width


def assemble_reward_extra_info(infos: Iterable[Row]) -> dict[Any, np.ndarray]:
    """Align per-sample reward dicts into one column per key.

    Args:
        infos: one dict per sample, keys free from sample to sample; `None` is as `{}`.

    Returns:
        Columns by key, in the order in which the keys first appear; each is an array whose first axis is the batch.
        A key that every row has gets the dtype that NumPy infers where that holds every value exactly, else `object`;
        a key that some rows lack is `object` with `None` where it is missing. Values are shared, not copied. (Replaces
        the sample-0 assembly in verl's `RewardLoopManager.compute_rm_score` and `AgentLoopWorker._postprocess`.)

    Raises:
        RowError: a row is no dict, or got or lost a key meanwhile.

    >>> assemble_reward_extra_info([{"acc": 1.0}, {"acc": True, "pred": "42"}])
    {'acc': array([1., 1.]), 'pred': array([None, '42'], dtype=object)}
    """
    rows = infos if type(infos) is list else list(infos)
    columns = _read_at_once(rows) or _read_in_blocks(rows)
    aligned: dict[Hashable, Column] = {}
    for key in list(columns):
        column = columns.pop(key).finished()
        if column is None:  # the blocks do not agree: all values decide, as they are
            column = dense_column([row.get(key) if row else None for row in rows])
        aligned[key] = column
    return aligned


def _read_at_once(rows: list[Any]) -> dict[Hashable, _Growing] | None:
    """By the compiled core, where there is one and the rows are plain."""
    found = core.read_columns(rows, _SHORT)
    if found is None:
        return None
    return {key: _Growing(len(rows), array, types, filled) for key, (array, types, filled) in found.items()}


def _read_in_blocks(rows: list[Any]) -> dict[Hashable, _Growing]:
    """In blocks: a row is read while it is in the cache, and what is needed beside the columns stays small."""
    columns: dict[Hashable, _Growing] = {}
    size = max(_BLOCK, _BLOCK_VALUES // (len(rows[0]) or 1)) if rows and isinstance(rows[0], dict) else _BLOCK
    for start in range(0, len(rows), size):
        block = rows[start : start + size]
        for key, (places, values) in _values_by_key(block, start).items():
            if key not in columns:  # of a late one, earlier rows lack the key
                columns[key] = _Growing(len(rows), np.empty(len(rows), object) if start else None)
            columns[key].add(slice(start, start + len(block)), places, values)
    return columns


def _values_by_key(block: Sequence[Any], start: int) -> dict[Hashable, tuple[Any, list[Any]]]:
    """For each key of a block: the places of the rows that have it, and its values; `None` for rows that lack it."""
    if countOf(map(type, block), dict) < len(block):
        check_rows(block, start)
        block = [dict(row or ()) for row in block]  # also: an OrderedDict may have its values in another order
    if sum(map(len, block)) == len(block[0]) * len(block):
        with suppress(KeyError):  # as many keys on every row, but not the same
            return {key: (slice(None), [row[key] for row in block]) for key in tuple(block[0])}

    # The keys of a row and its values, in one order, are read one right after the other, by two calls between which no
    # other thread gets its turn. So nothing needs to be looked up, and no value comes out at another's key.
    schemas: dict[tuple[Hashable, ...], tuple[list[int], list[Any]]] = defaultdict(lambda: ([], []))
    rows = zip(map(tuple, block), map(tuple, map(dict.values, block)), strict=True)
    for place, (keys, values) in enumerate(rows):
        places, flat = schemas[keys]
        places.append(place)
        flat += values
    found: dict[Hashable, tuple[list[np.ndarray], list[Any]]] = {key: ([], []) for key in chain.from_iterable(schemas)}
    groups = [(keys, places, flat) for keys, (places, flat) in schemas.items() if len(places) >= _FEW]
    rare = [place for places, _ in schemas.values() if len(places) < _FEW for place in places]
    if rare:  # completed with None, these have one schema, too
        complete = map(dict.fromkeys(found).__or__, map(block.__getitem__, rare))
        groups.append((tuple(found), rare, list(chain.from_iterable(map(dict.values, complete)))))
    for keys, places, flat in groups:
        if len(flat) != len(keys) * len(places):
            raise RowError("a row got or lost a key while it was read: finalize a copy of what a thread changes")
        where = np.array(places)
        for number, key in enumerate(keys):
            found[key][0].append(where)
            found[key][1].extend(flat[number :: len(keys)])
    return {key: (np.concatenate(places), values) for key, (places, values) in found.items()}


class _Growing:
    """A column that is filled block by block: an array of one dtype as long as that is every block's, or of objects."""

    def __init__(self, rows: int, array: Column | None, types: Iterable[type] = (), filled: int = 0) -> None:
        self.rows = rows
        self.array = array
        self.agreed = True
        self.types = set(types)
        self.filled = filled

    def add(self, block: slice, places: Any, values: list[Any]) -> None:
        types = _types(values)
        self.types |= types
        self.filled += len(values)
        if not self.agreed:
            return
        piece = None
        if (self.array is None or self.array.dtype != object) and len(values) == block.stop - block.start:
            piece = _compact_column(values, types)
        if self.array is None:
            self.array = np.empty(self.rows, object if piece is None else piece.dtype)
        if self.array.dtype == object:
            piece = np.fromiter(values, object, len(values))
        if piece is None or piece.dtype.type != self.array.dtype.type:
            self.agreed, self.array = False, None
            return
        if piece.dtype.kind == "U" and piece.dtype > self.array.dtype:
            self.array = self.array.astype(piece.dtype)
        self.array[block][places] = piece

    def finished(self) -> Column | None:
        """The column, or `None` where its blocks do not agree on one dtype. Ends the filling."""
        array, self.array = self.array, None
        if self.filled < self.rows:
            self.types.add(NoneType)
        if array is None:
            return None
        if array.dtype != object:
            wide = array.dtype.kind == "U" and not _pads_little(self.rows, array.itemsize // 4, _letters(array))
            return array if not wide and NoneType not in self.types else None
        if NoneType in self.types and all(map(_is_plain, self.types)):
            return array
        values = array.tolist()
        del array
        return dense_column(values, self.types)


def _compact_column(values: Sequence[Any], types: set[type]) -> Column | None:
    """What the rules make of Python numbers or of short text alone; `None` for all that is decided at the end."""
    if types <= _PYTHON_NUMBERS:
        return _numbers(values, types)
    if types == {str} and len(values[0]) <= _SHORT:
        longest = max(map(len, values))
        if longest <= _SHORT and "\0" not in "".join(values):
            return np.array(values, dtype=f"U{longest}")  # twice as fast as without the length
    return None


def _types(values: Sequence[Any]) -> set[type]:
    """Of one type, as most columns are, is told in half the time of a set."""
    first = type(values[0]) if values else NoneType
    return {first} if countOf(map(type, values), first) == len(values) else set(map(type, values))


def dense_column(values: Sequence[Any], types: set[type] | None = None) -> Column:
    """One value per row, none missing, as the array that the first fitting rule makes: `(batch, ...)`."""
    types = types or _types(values)
    for rule in RULES:
        column = rule(values, types)
        if column is not None:
            return column
    return object_column(values)


def object_column(values: Sequence[Any]) -> Column:
    """`values` as they are in a 1-D object array; NumPy scalars and 0-d numeric arrays and tensors as Python numbers.

    verl writes object columns through `json`, where a NumPy integer would come out as text.
    """
    if not all(map(_is_plain, _types(values))):
        values = [_python_number(value, value) for value in values]
    return np.fromiter(values, dtype=object, count=len(values))


# --- the dtype rules ---------------------------------------------------------------------------------------------


def _numbers(values: Sequence[Any], types: set[type]) -> Column | None:
    """Bools and numbers, where NumPy's inferred dtype holds every value exactly.

    A narrow dtype (float32, int8, ...) only if every row brings it, else inferred from the Python values; integers
    alone are never made floats; an integer that float64 cannot hold is not put beside floats.
    """
    if not types or not all(map(_may_be_number, types)):
        return None
    if not types <= _PYTHON_NUMBERS:
        dtype = _brought_dtype(values)
        values = [_python_number(value, None) for value in values]
        types = set(map(type, values))
        if type(None) in types:
            return None
        if dtype is not None:
            return np.array(values, dtype=dtype)
    if len(types) == 1 and types <= _MACHINE_TYPES.keys():
        with suppress(struct.error):  # an integer beyond int64
            return _packed(values, *types)
    if all(issubclass(kind, int) for kind in types):
        return _integers(values)
    column = np.array(values)
    return column if column.dtype.kind in "fc" and _exact_in_float64(values, types) else None


def _packed(values: Sequence[Any], kind: type) -> Column:
    code, dtype = _MACHINE_TYPES[kind]
    column: Column = np.empty(len(values), dtype)
    struct.pack_into(f"{len(values)}{code}", column.data, 0, *values)  # a third of the time of np.array
    return column


def _integers(values: Sequence[int]) -> Column | None:
    # NumPy alone would infer float64 from [1, 2**63]
    low, high = min(values), max(values)
    for dtype in (np.int64, np.uint64):
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return np.array(values, dtype=dtype)
    return None


def _exact_in_float64(values: Iterable[Any], types: Iterable[type]) -> bool:
    """Whether float64 holds every integer among numbers of these types."""
    if not any(issubclass(kind, int) and kind is not bool for kind in types):
        return True
    integers = [number for number in values if isinstance(number, int)]
    return list(map(float, integers)) == integers


def _text(values: Sequence[Any], types: set[type]) -> Column | None:
    """Exact `str`, none ending in NUL (which `<U` drops), where `<U` pads little.

    One answer of 20,000 characters among 16,384 short ones costs 1.3 GB as `<U20000`.
    """
    if types != {str}:
        return None
    if core.COMPILED and type(values) is list:
        longest, letters, ends_in_nul = core.measured(values)
        fits = _pads_little(len(values), longest, letters) and not ends_in_nul
        return core.text_array(values, longest) if fits else None
    longest = max(map(len, values))
    if not _pads_little(len(values), longest, sum(map(len, values))):
        return None
    if "\0" in "".join(values) and any(value[-1:] == "\0" for value in values):
        return None
    return np.array(values, dtype=f"U{longest}")


def _pads_little(rows: int, longest: int, letters: int) -> bool:
    return 4 * rows * longest <= _FREE_TEXT_BYTES or rows * longest <= _TEXT_PADDING * letters


def _letters(column: Column) -> int:
    """The characters of a text column without NULs."""
    return int(np.count_nonzero(column.view(np.uint32)))


def _nested(values: Sequence[Any], types: set[type]) -> Column | None:
    """What NumPy opens (lists, arrays, tensors, ranges, ...), of one shape, with leaves of one kind: an n-D array."""
    if not types or any(map(_is_one_thing, types)):
        return None
    opened = []
    for value in values:
        opened.append(_opened(value))
        if opened[-1] is None:
            return None
    dtype = _dtype_of_arrays(opened)
    if dtype is not None and not _holds_leaves(dtype):
        return None
    if dtype is not None and _is_shipped_number(dtype.type):
        return np.stack(opened) if len({array.shape for array in opened}) == 1 else None
    leaves: list[Any] = []
    shapes: set[tuple[int, ...]] = set()
    for value, items in zip(values, opened, strict=True):
        held: list[Any] = []
        try:
            shapes.add(_shape(items, held, (id(value),), iter(range(_LARGEST))))
        except _NoArrayError:
            return None
        if len(shapes) > 1:
            return None
        leaves += held
    (shape,) = shapes
    if not leaves:
        return np.empty((len(values), *shape), dtype=dtype or np.float64)
    leaf_types = set(map(type, leaves))
    column = _numbers(leaves, leaf_types)
    if column is None:
        column = _text(leaves, leaf_types)
    if column is None:
        return None
    # Text arrays that all bring one width keep it, as on stock.
    return column.reshape(len(values), *shape) if dtype is None else np.stack(opened)


RULES = (_numbers, _text, _nested)


# --- what the rules ask about a value ----------------------------------------------------------------------------


def is_real(value: Any) -> bool:
    """Whether a value is a bool or a real number; a `timedelta64` is none, though NumPy has it among its integers."""
    return isinstance(value, numbers.Real | np.bool_) and not isinstance(value, np.timedelta64)


def is_machine_number(value: Any) -> bool:
    """Whether a value is a bool or a real number of Python's or NumPy's own, as arithmetic in NumPy takes it."""
    return isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating) and is_real(value)


def _is_numpy_number(kind: type) -> bool:
    """Whether values of this type are scalars that NumPy calculates with, also such as `ml_dtypes` registers there."""
    return issubclass(kind, np.generic) and not issubclass(kind, _NO_NUMBERS)


def _is_shipped_number(kind: type) -> bool:
    """Whether NumPy itself ships this type of scalar: only these have a dtype that every process has."""
    return _is_numpy_number(kind) and issubclass(kind, (np.bool_, np.number))


def _holds_leaves(dtype: np.dtype) -> bool:
    return dtype.kind == "U" or _is_shipped_number(dtype.type)


def _is_number_array(value: Any) -> bool:
    """Whether a value is an array without axes that holds a number."""
    return type(value) is np.ndarray and value.ndim == 0 and _is_numpy_number(value.dtype.type)


def _is_one_thing(kind: type) -> bool:
    """Whether NumPy takes values of this type as they are, or ours are not to be opened: bytes, mappings."""
    return issubclass(kind, _ONE_THING)


def _may_be_number(kind: type) -> bool:
    """Whether values of this type can be numbers: Python's, or those that arrays and tensors hold."""
    return issubclass(kind, bool | int | float | complex) or not _is_plain(kind)


def is_tensor(kind: type) -> bool:
    """Whether values of this type are torch tensors, told without importing torch."""
    torch = sys.modules.get("torch")  # where torch was never imported, no value is a tensor
    return torch is not None and issubclass(kind, torch.Tensor)


def _is_plain(kind: type) -> bool:
    """Whether values of this type stay as they are in an object column."""
    return not (_is_numpy_number(kind) or kind is np.ndarray or is_tensor(kind))


def _numpy_dtype(value: Any) -> np.dtype | None:
    """The dtype of NumPy's own that a scalar, a 0-d numeric array or a 0-d tensor brings; `None` for anything else."""
    if _is_numpy_number(type(value)) or _is_number_array(value):
        dtype: np.dtype = value.dtype.newbyteorder("=")
    elif is_tensor(type(value)) and value.ndim == 0:
        try:
            dtype = np.dtype(str(value.dtype).removeprefix("torch."))  # the two share their names
        except TypeError:  # but for bfloat16 and the like, which NumPy knows once `ml_dtypes` is imported
            return None
    else:
        return None
    return dtype if _is_shipped_number(dtype.type) else None


def _brought_dtype(values: Sequence[Any]) -> np.dtype | None:
    """The one dtype that every value brings, or `None`."""
    first = _numpy_dtype(values[0])
    for value in values[1:]:
        dtype = _numpy_dtype(value)
        if dtype is None or dtype != first:  # `np.dtype("float64") == None` is true
            return None
    return first


def _python_number(value: Any, otherwise: Any) -> Any:
    """`value` as a Python number of the same value, or `otherwise` if it is no number."""
    if isinstance(value, bool | int | float | complex) and not isinstance(value, np.generic):
        return value
    if _is_numpy_number(type(value)):
        number = value.item()
    elif _is_number_array(value) or (is_tensor(type(value)) and value.ndim == 0):
        try:
            number = value.item()
        except (RuntimeError, NotImplementedError):  # a tensor on the meta device has no value
            return otherwise
    else:
        return otherwise
    if isinstance(number, np.generic):  # long doubles, which Python may not be able to hold
        narrowed = complex(number) if isinstance(number, np.complexfloating) else float(number)
        return narrowed if narrowed == number or number != number else number
    return number


# --- what NumPy opens --------------------------------------------------------------------------------------------


def _opened(value: Any) -> Any:
    """`value` as the list or the array that NumPy makes of it; `None` for what it, or we, take as one thing.

    Asked as NumPy asks: the buffer and array protocols first, then whether it is a sequence. A value that raises is one
    thing. Numbers of a dtype that NumPy does not ship come as Python's.
    """
    kind = type(value)
    if kind is list or kind is tuple:
        return value
    if kind is np.ndarray:
        return _array(value)
    if _is_one_thing(kind):
        return None
    try:
        if is_tensor(kind):
            return _array_of_tensor(value) if value.ndim else None
        if isinstance(value, np.ndarray):  # a masked array, and others that say more than their elements
            return _array(np.asarray(value)) if kind in _PLAIN_ARRAYS else None
        if any(hasattr(value, name) for name in _ARRAY_PROTOCOLS):
            return _array(np.asarray(value))
        for base in (list, tuple):
            if issubclass(kind, base):  # what a subclass holds, as NumPy takes it, and not what it says
                return list(base.__iter__(value))
        if _is_buffer(value):
            return _array(np.asarray(value))
        if hasattr(kind, "__getitem__") and (length := len(value)) <= _LARGEST:
            source = value if isinstance(value, Sequence) else map(value.__getitem__, range(length))
            items = list(islice(source, length + 1))
            return items if len(items) == length else None
    except Exception:  # whatever a user's own method raises
        return None
    return None


def _array(array: np.ndarray) -> Any:
    """The array itself; nested lists of Python's numbers where NumPy does not ship its dtype; `None` without axes."""
    if not array.ndim:
        return None
    return array.tolist() if array.dtype.isbuiltin == _REGISTERED else array


def _array_of_tensor(tensor: Any) -> Any:
    tensor = tensor.detach()
    try:
        return _array(tensor.cpu().resolve_conj().resolve_neg().numpy())
    except TypeError:  # bfloat16 and the like
        return tensor.tolist()


def _is_buffer(value: Any) -> bool:
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


class _NoArrayError(Exception):
    """A value that is no array: ragged, opaque, too deep, too large or within itself."""


def _shape(items: Any, leaves: list[Any], within: tuple[int, ...], looks: Iterator[int]) -> tuple[int, ...]:
    """The shape of an opened value, what it holds at the bottom added to `leaves`.

    `within` is what it is itself in; `looks` ends where the same few lists are within each other again and again.
    """
    if isinstance(items, np.ndarray):
        if not _holds_leaves(items.dtype):
            raise _NoArrayError
        leaves.extend(items.ravel().tolist() if items.dtype.kind == "U" else items.ravel())
        return tuple(items.shape)
    if len(leaves) + len(items) > _LARGEST or next(looks, None) is None:
        raise _NoArrayError
    if all(map(_is_one_thing, set(map(type, items)))):
        leaves.extend(items)
        return (len(items),)
    shapes: set[tuple[int, ...]] = set()
    for item in items:
        inner = _opened(item)
        if inner is None:
            leaves.append(item)
            shapes.add(())
        elif len(within) == _DEEPEST or id(item) in within:
            raise _NoArrayError
        else:
            shapes.add(_shape(inner, leaves, (*within, id(item)), looks))
        if len(shapes) > 1:
            raise _NoArrayError
    return (len(items), *shapes.pop())


def _dtype_of_arrays(values: Sequence[Any]) -> np.dtype | None:
    """The one dtype of values that are all arrays."""
    dtypes = {value.dtype if type(value) is np.ndarray else None for value in values}
    return dtypes.pop() if len(dtypes) == 1 else None


# --- column + column ---------------------------------------------------------------------------------------------


def merge_columns(parts: Sequence[Column | int]) -> Column:
    """The column that the rows of all parts together would have given.

    Args:
        parts: aligned columns of one key, in row order; a part that lacks the key is its number of rows.

    Returns:
        `(sum of rows, ...)`, its dtype decided anew from all values, as `assemble_reward_extra_info` decides.
    """
    parts = [part for part in parts if _rows(part)] or parts  # no rows: neither a missing key nor a dtype
    present = [part for part in parts if not isinstance(part, int)]
    forms = {(part.dtype, part.shape[1:]) for part in present}
    if len(present) == len(parts) and len(forms) == 1 and _is_shipped_number(present[0].dtype.type):
        return np.concatenate(present)  # every row brings this dtype, so deciding anew would find it again
    objects = np.concatenate([_objects(part) for part in parts])
    types = set(map(type, objects.tolist()))
    if NoneType not in types:
        column = dense_column(list(chain.from_iterable(_values(part) for part in present)))
        if column.dtype != object:
            return column
    return objects if all(map(_is_plain, types)) else object_column(objects.tolist())


def _rows(part: Column | int) -> int:
    return part if isinstance(part, int) else len(part)


def _objects(part: Column | int) -> Column:
    """The values as Python objects, one per row; `None` where the key is missing."""
    if isinstance(part, int):
        return np.empty(part, object)
    return part if part.dtype == object and part.ndim == 1 else np.fromiter(_items(part), object, len(part))


def _items(column: Column) -> list[Any]:
    """The values as Python objects; n-D rows as lists. Kinds that Python would bend (datetime64[ns]) as they are."""
    return column.tolist() if column.dtype.kind in _SAME_IN_PYTHON else list(column)


def _values(column: Column) -> Iterable[Any]:
    """The values with the dtypes that they bring; text as exact `str`."""
    return column.tolist() if column.dtype.kind in "OU" and column.ndim == 1 else column


def concatenate(parts: Sequence[Column]) -> Column:
    """As `np.concatenate` along the batch, but for a value that NumPy would bend: then as `merge_columns`."""
    if len({part.shape[1:] for part in parts}) == 1 and not _bends(parts):
        return np.concatenate(parts)
    return merge_columns(parts)


def _bends(parts: Sequence[Column]) -> bool:
    """Whether `np.concatenate` would change a value: to text, to a rounded number, datetimes to integers."""
    kinds = {part.dtype.kind for part in parts}
    if len(kinds) == 1 or ("O" in kinds and kinds <= _SAME_IN_PYTHON):
        return False
    if kinds <= _INTEGER_KINDS:
        return np.result_type(*parts).kind == "f"
    if kinds <= _NUMBER_KINDS:
        return not _exact_in_float64(chain.from_iterable(part.ravel().tolist() for part in parts), {int})
    return True


# --- equality ----------------------------------------------------------------------------------------------------


def same_value(one: Any, other: Any, _open: frozenset[tuple[int, int]] = frozenset()) -> bool:
    """Whether two values are equal as values: Python `==`, where all that NumPy opens (list, tensor, ...) is one kind.

    NaN equals NaN, and a comparison that raises, or that cannot be asked for its truth, counts as unequal.
    """
    if one is other or (id(one), id(other)) in _open:
        return True
    _open = _open | {(id(one), id(other))}
    try:
        if type(one) is type(other) and type(one) not in _CONTAINERS and _say_equal(one, other):
            return True  # opened, one whose items are of its own kind again, as text's are, would never end
        one, other = _listed(one), _listed(other)
        if isinstance(one, list) and isinstance(other, list):
            return len(one) == len(other) and all(same_value(a, b, _open) for a, b in zip(one, other, strict=True))
        if isinstance(one, dict) and isinstance(other, dict):
            return one.keys() == other.keys() and all(same_value(one[key], other[key], _open) for key in one)
        if isinstance(one, float | complex) and isinstance(other, float | complex) and one != one:
            return bool(other != other)
        return bool(one == other)
    except Exception:  # whatever a user's __eq__ raises (a tensor without data, too), it has not said "equal"
        return False


def _say_equal(one: Any, other: Any) -> bool:
    try:
        return (one == other) is True
    except Exception:
        return False


def _listed(value: Any) -> Any:
    """An array, and all that NumPy opens, as a list; NumPy's numbers as Python's."""
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind in _SAME_IN_PYTHON or _is_numpy_number(value.dtype.type):
            return value.tolist()
        return list(np.asarray(value)) if value.shape else value
    if is_tensor(type(value)):
        return value.tolist()
    opened = _opened(value)
    return value if opened is None else list(opened)
