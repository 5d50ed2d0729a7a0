"""`SparseNonTensor`, the column type: raw per-sample reward dicts that travel inside `DataProto.non_tensor_batch`.

It carries rows and answers which keys they hold. Turning rows into aligned columns is `schema`'s job.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from itertools import chain
from types import NoneType
from typing import Any

import numpy as np

from verl_ext.errors import RowError, bare, shown

RAW_COLUMN = "reward_extra_info"
"""verl's own name for the column of per-sample reward dicts (`AgentLoopWorker._postprocess`)."""

MANAGER_FINALIZES: ContextVar[bool] = ContextVar("verl_ext_manager_finalizes", default=False)
"""Whether what the code that runs now returns goes to a manager that finalizes it; else its columns must be aligned."""

Row = dict[Any, Any] | None

_PICKLE_FORMAT = 1
_KEYS_IN_REPR = 6


def check_rows(rows: Sequence[Any], first: int = 0) -> None:
    """Raise `RowError` for the first row that is neither a dict nor `None`; rows are counted from `first`."""
    if set(map(type, rows)) <= {dict, NoneType}:
        return  # in a third of the time that a look at each takes
    for number, row in enumerate(rows, first):
        if not isinstance(row, dict | None):
            raise RowError(
                f"row {number} of the raw column is a {type(row).__name__} ({shown(row)}); each row must be a dict "
                "from reward key to value, or None for a sample that emitted none"
            )


def ordered_keys(rows: Iterable[Row]) -> list[Any]:
    """The union of the rows' keys, in the order of their first appearance."""
    return list(dict.fromkeys(chain.from_iterable(row for row in rows if row)))


class _RowsOfColumns(np.ndarray):
    """Rows that were looked at when they got into the columns that they come from: concat looks at none again."""


class SparseNonTensor(np.ndarray):
    """One dict per sample, keys free from row to row; an object array that verl treats as any other column.

    Args:
        rows: dicts from reward key to anything, or `None` (as `{}`: no keys). They are shared, not copied.

    Shape `(batch,)`, dtype `object`; two-dimensional only between verl's `fold_batch_dim` and `unfold_batch_dim`.

    Raises:
        RowError: a row is no dict; names the row and the type.

    >>> SparseNonTensor([{"acc": 1.0}, {"acc": 0.0, "pred": "42"}, None])
    SparseNonTensor(3 rows; acc 2/3, pred 1/3)
    """

    def __new__(cls, rows: Iterable[Row] = ()) -> SparseNonTensor:  # noqa: D102 - the class says it
        return np.fromiter(rows, dtype=object).view(cls)

    def __array_finalize__(self, origin: np.ndarray | None) -> None:
        # Every way to become a column ends here: no other dtype, and rows that come from elsewhere are looked at.
        if self.dtype != object:
            raise RowError(f"a raw column holds rows, not {self.dtype}: see it as plain first, column.view(np.ndarray)")
        if not isinstance(origin, SparseNonTensor | _RowsOfColumns):
            check_rows(self.view(np.ndarray).ravel().tolist())

    def keys(self) -> list[Any]:
        """The ordered union of the rows' keys."""
        return ordered_keys(self.ravel().tolist())

    def present(self, key: Hashable) -> np.ndarray:
        """Which rows have `key`: bool, in the shape of the column. An explicit `None` is present."""
        found = [row is not None and key in row for row in self.ravel().tolist()]
        return np.array(found, dtype=bool).reshape(self.shape)

    def __repr__(self) -> str:
        rows = [row for row in self.ravel().tolist() if row]
        counts: dict[Hashable, int] = {}
        for key in chain.from_iterable(rows):
            counts[key] = counts.get(key, 0) + 1
        named = [f"{bare(key)} {count}/{self.size}" for key, count in list(counts.items())[:_KEYS_IN_REPR]]
        if len(counts) > _KEYS_IN_REPR:
            named.append(f"and {len(counts) - _KEYS_IN_REPR} more keys")
        shape = f"{self.size} rows" if self.ndim < 2 else f"{' x '.join(map(str, self.shape))} rows"
        return f"{type(self).__name__}({shape}; {', '.join(named) or 'no keys'})"

    __str__ = __repr__

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value.item()  # np.random.shuffle writes rows so
        one_row = isinstance(value, dict | None) or not isinstance(self[index], np.ndarray)
        check_rows([value] if one_row else np.asarray(value, dtype=object).ravel().tolist())
        super().__setitem__(index, value)

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        """Stands for the methods that write past `__setitem__`."""
        raise RowError("write rows by assignment, column[index] = row, which looks at them; or make a new column")

    fill = put = resize = setfield = _refuse

    @property
    def flat(self) -> Any:
        """As `ndarray.flat`, for reading."""
        return _plain(self).flat

    def astype(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        """As `ndarray.astype`; anything but `object` is no column any more and comes out as a plain array."""
        plain = self.view(np.ndarray).astype(dtype, *args, **kwargs)
        return plain.view(SparseNonTensor) if plain.dtype == object else plain

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        # Comparing columns gives plain booleans, not a "column" of them.
        return getattr(ufunc, method)(*map(_plain, inputs), **{name: _plain(value) for name, value in kwargs.items()})

    def __array_function__(self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Any:
        handler = _HANDLERS.get(func)
        if handler is not None:
            return handler(*args, **kwargs)
        if func in _KEEPS_ROWS and kwargs.get("out") is None:
            return super().__array_function__(func, types, args, kwargs)
        return func(*_plain(list(args)), **_plain(dict(kwargs)))

    def __reduce__(self) -> tuple[Any, ...]:
        # Rows and a format number, not NumPy's own state: a column outlives NumPy's and our own versions on disk.
        return _restore, (_PICKLE_FORMAT, self.shape, self.ravel().tolist())

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()


def _restore(pickle_format: int, *state: Any) -> SparseNonTensor:
    if pickle_format > _PICKLE_FORMAT:
        raise RowError(
            f"this column was pickled in format {pickle_format}, and this verl-ext reads up to {_PICKLE_FORMAT}: "
            "install the newer verl-ext that wrote it"
        )
    shape, rows = state
    column: SparseNonTensor = np.fromiter(rows, object, len(rows)).view(_RowsOfColumns).view(SparseNonTensor)
    return column if len(shape) == 1 else column.reshape(shape)


def _plain(value: Any) -> Any:
    """`value` with every column in it seen as the plain object array that it is, and not to be written to."""
    if isinstance(value, SparseNonTensor):
        plain = value.view(np.ndarray)
        plain.flags.writeable = False  # np.copyto, np.put, out=...: none of them looks at what it writes
        return plain
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
    if type(value) is dict:
        return {name: _plain(item) for name, item in value.items()}
    return value


# --- NumPy functions (NEP 18) ------------------------------------------------------------------------------------
# A function is in one of three groups. Those that only move rows keep the class. Those that join arrays have a
# handler below. Any other (np.unique, np.isin, np.where, np.sort, np.array_equal, ...) sees a plain object array and
# answers with a plain one: it is not supported as a source of columns.

_KEEPS_ROWS: frozenset[Callable[..., Any]] = frozenset().union(
    (np.reshape, np.ravel, np.repeat, np.tile, np.take, np.compress, np.delete, np.resize, np.copy, np.array_split),
    (np.split, np.roll, np.flip, np.squeeze, np.expand_dims, np.transpose, np.swapaxes, np.moveaxis, np.empty_like),
    (np.atleast_1d, np.atleast_2d, np.broadcast_to),
)

_HANDLERS: dict[Callable[..., Any], Callable[..., Any]] = {}


def _joins(*functions: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register one handler for each of `functions`, which join a sequence of arrays."""

    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        for function in functions:
            _HANDLERS[function] = lambda *args, _function=function, **kwargs: handler(_function, *args, **kwargs)
        return handler

    return register


@_joins(np.concatenate, np.stack, np.vstack, np.hstack)
def _join(function: Callable[..., Any], arrays: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
    """Columns beside columns, or beside plain arrays of dicts and `None`, give a column; anything else a `RowError`."""
    arrays = list(arrays)
    if set(map(type, arrays)) == {SparseNonTensor}:
        return join_columns(arrays, *args, function=function, **_plain(kwargs))
    parts = [_plain(part) if isinstance(part, np.ndarray) else np.asarray(part, dtype=object) for part in arrays]
    return function(parts, *args, **_plain(kwargs)).view(SparseNonTensor)


@_joins(np.append)
def _append(function: Callable[..., Any], arr: Any, values: Any, axis: int | None = None) -> Any:
    return _join(np.concatenate, [np.ravel(arr), np.ravel(values)] if axis is None else [arr, values], axis or 0)


@_joins(np.insert)
def _insert(function: Callable[..., Any], arr: Any, obj: Any, values: Any, axis: int | None = None) -> Any:
    rows = np.asarray([values] if isinstance(values, dict | None) else values, dtype=object)
    return function(_plain(arr), obj, _plain(rows), axis).view(SparseNonTensor)


def join_columns(
    columns: Sequence[SparseNonTensor], *args: Any, function: Callable[..., Any] = np.concatenate, **kwargs: Any
) -> SparseNonTensor:
    """`function` of columns alone, past NumPy's dispatch, which for 1,024 chunks takes longer than the joining."""
    joined = np.ndarray.__array_function__(columns[0], function, (), (columns, *args), kwargs)
    column: SparseNonTensor = joined.view(_RowsOfColumns).view(SparseNonTensor)
    return column


def raw_columns(columns: Mapping[str, Any]) -> dict[str, SparseNonTensor]:
    """Those of a `non_tensor_batch` that are raw, by name."""
    return {name: column for name, column in columns.items() if isinstance(column, SparseNonTensor)}
