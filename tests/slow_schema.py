"""The slow obvious version of `assemble_reward_extra_info`: key by key, all values of a key at once, no case apart.

What the fast one returns is compared with this in `test_schema`. Kept obvious: do not make it fast.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

_EXACT_IN_FLOAT64 = 2**53
_FREE_TEXT_BYTES = 2**20
_TEXT_PADDING = 8
_DEEPEST = 16
_LARGEST = 2**22
_PYTHON_NUMBERS = frozenset((bool, int, float, complex))


def slowly_assembled(infos: Iterable[dict[str, Any] | None]) -> dict[str, np.ndarray]:
    rows = [row or {} for row in infos]
    return {key: _column_of(key, rows) for key in dict.fromkeys(chain.from_iterable(rows))}


def _column_of(key: str, rows: list[dict[str, Any]]) -> np.ndarray:
    values = [row[key] for row in rows if key in row]
    if len(values) == len(rows):
        return _dense_column(values)
    return _object_column([row.get(key) for row in rows])


def _dense_column(values: Sequence[Any]) -> np.ndarray:
    """One value per row, none missing, as the array that the first fitting rule makes: `(batch, ...)`."""
    types = set(map(type, values))
    for rule in RULES:
        column = rule(values, types)
        if column is not None:
            return column
    return _object_column(values)


def _object_column(values: Sequence[Any]) -> np.ndarray:
    """`values` as they are in a 1-D object array; NumPy scalars and 0-d numeric arrays and tensors as Python numbers.

    verl writes object columns through `json`, where a NumPy integer would come out as text.
    """
    if not all(_is_plain(kind) for kind in set(map(type, values))):
        values = [_python_number(value, value) for value in values]
    return np.fromiter(values, dtype=object, count=len(values))


# --- the dtype rules ---------------------------------------------------------------------------------------------


def _numbers(values: Sequence[Any], types: set[type]) -> np.ndarray | None:
    """Bools and numbers, where NumPy's inferred dtype holds every value exactly.

    A narrow dtype (float32, int8, ...) only if every row brings it, else inferred from the Python values; integers
    alone are never made floats; an integer that float64 cannot hold is not put beside floats.
    """
    if not types:
        return None
    if not types <= _PYTHON_NUMBERS:
        dtype = _brought_dtype(values)
        values = [_python_number(value, None) for value in values]
        types = set(map(type, values))
        if type(None) in types:
            return None
        if dtype is not None:
            return np.array(values, dtype=dtype)
    if all(issubclass(kind, int) for kind in types):
        return _integers(values, types)
    column = np.array(values)
    return column if column.dtype.kind in "fc" and _exact_in_float64(values, types) else None


def _integers(values: Sequence[int], types: set[type]) -> np.ndarray | None:
    # NumPy alone would infer float64 from [1, 2**63]
    if types == {bool}:
        return np.array(values)
    low, high = min(values), max(values)
    for dtype in (np.int64, np.uint64):
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return np.array(values, dtype=dtype)
    return None


def _exact_in_float64(numbers: Iterable[Any], types: Iterable[type]) -> bool:
    """Whether float64 holds every integer among `numbers`, which are of these types."""
    if not any(issubclass(kind, int) and kind is not bool for kind in types):
        return True
    return all(
        -_EXACT_IN_FLOAT64 <= number <= _EXACT_IN_FLOAT64 or int(float(number)) == number
        for number in numbers
        if isinstance(number, int)
    )


def _text(values: Sequence[Any], types: set[type]) -> np.ndarray | None:
    """Exact `str`, none ending in NUL (which `<U` drops), where `<U` pads little.

    One answer of 20,000 characters among 16,384 short ones costs 1.3 GB as `<U20000`.
    """
    if types != {str} or any(value[-1:] == "\0" for value in values):
        return None
    padded = len(values) * max(map(len, values))
    if 4 * padded > _FREE_TEXT_BYTES and padded > _TEXT_PADDING * sum(map(len, values)):
        return None
    return np.array(values)


def _nested(values: Sequence[Any], types: set[type]) -> np.ndarray | None:
    """What NumPy opens, of one shape, with leaves that are all of one kind and held exactly: an n-D array."""
    opened = [_opened(value) for value in values]
    shapes = {_shape(value) for value in opened}
    (shape, *others) = shapes or [None]
    if others or not shape:
        return None
    dtype = _dtype_of_arrays(opened)
    if dtype is not None and dtype.kind in "biufc":
        return np.stack(opened)
    leaves = [leaf for value in opened for leaf in _leaves(value, len(shape))]
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


def _is_numpy_number(kind: type) -> bool:
    if not issubclass(kind, np.generic):
        return False
    # `ml_dtypes` registers scalars that are no np.number
    return not issubclass(kind, np.flexible | np.object_ | np.datetime64 | np.timedelta64)


def _is_tensor(kind: type) -> bool:
    """Whether values of this type are torch tensors, told without importing torch."""
    torch = sys.modules.get("torch")  # where torch was never imported, no value is a tensor
    return torch is not None and issubclass(kind, torch.Tensor)


def _is_plain(kind: type) -> bool:
    """Whether values of this type stay as they are in an object column."""
    return not (_is_numpy_number(kind) or kind is np.ndarray or _is_tensor(kind))


def _numpy_dtype(value: Any) -> np.dtype | None:
    """The dtype that a NumPy scalar, a 0-d numeric array or a 0-d tensor brings along; `None` for anything else."""
    if isinstance(value, np.generic) or (type(value) is np.ndarray and value.ndim == 0):
        dtype = value.dtype.newbyteorder("=")
    elif _is_tensor(type(value)) and value.ndim == 0:
        dtype = _of_torch(value.dtype)
    else:
        return None
    return dtype if dtype is not None and dtype.isbuiltin != 2 and dtype.kind in "biufc" else None


def _of_torch(dtype: Any) -> np.dtype | None:
    torch = sys.modules["torch"]
    try:
        return torch.ones(1, dtype=dtype).numpy().dtype
    except TypeError:  # bfloat16 and the like
        return None


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
    elif (type(value) is np.ndarray and value.ndim == 0 and _is_numpy_number(value.dtype.type)) or (
        _is_tensor(type(value)) and value.ndim == 0
    ):
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


def _opened(value: Any, _open: tuple[int, ...] = ()) -> Any:
    """Nested lists and arrays in the place of all that NumPy opens; `...` for what is within itself, or too deep."""
    if isinstance(value, str | bytes | bytearray | Mapping | np.generic):
        return value
    if isinstance(value, np.ndarray) and type(value) not in (np.ndarray, np.matrix, np.memmap):
        return value
    try:
        items = _array_in(value)
        if items is None:
            items = list(value) if 0 <= len(value) <= _LARGEST and hasattr(type(value), "__getitem__") else value
    except Exception:
        return value
    if not isinstance(items, list):
        return items
    if len(_open) == _DEEPEST or id(value) in _open:
        return ...
    return [_opened(item, (*_open, id(value))) for item in items]


def _array_in(value: Any) -> Any:
    """The array in a tensor, a buffer or an object with `__array__`; lists, where NumPy does not ship its dtype."""
    if _is_tensor(type(value)):
        if value.ndim == 0:
            return value
        return value.tolist() if _of_torch(value.dtype) is None else value.detach().resolve_conj().numpy()
    if not hasattr(value, "__array__"):
        try:
            memoryview(value)
        except TypeError:
            return None
    array = np.asarray(value)
    return array if array.dtype.isbuiltin != 2 or array.ndim == 0 else array.tolist()


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of nested lists and arrays; `()` for a leaf, `None` if ragged or opaque."""
    if value is ...:
        return None
    if type(value) is np.ndarray:
        return value.shape if value.dtype.kind in "biufcU" or value.ndim == 0 else None
    if not isinstance(value, list):
        return ()
    shapes = {_shape(item) for item in value} or {()}
    inner = shapes.pop()
    return None if shapes or inner is None else (len(value), *inner)


def _leaves(value: Any, depth: int) -> Iterable[Any]:
    if type(value) is np.ndarray:
        return value.ravel().tolist() if value.dtype.kind == "U" else list(value.ravel())
    items: list[Any] = value
    if depth == 1:
        return items
    return chain.from_iterable(_leaves(item, depth - 1) for item in items)


def _dtype_of_arrays(values: Sequence[Any]) -> np.dtype | None:
    dtypes = {value.dtype if type(value) is np.ndarray else None for value in values}
    return dtypes.pop() if len(dtypes) == 1 else None
