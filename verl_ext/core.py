"""Which version of the one loop that matters runs, rows to columns as they are found: the compiled one or Python's.

Decided once, at import. The compiled one is `_core.c`, an option that nobody has to know of: without it, or with
`VERL_EXT_PURE=1`, `schema` reads rows by itself, to the same columns.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from itertools import islice
from operator import countOf
from typing import Any

import numpy as np

PURE = "VERL_EXT_PURE"

Found = tuple[np.ndarray, Iterable[type], int]
"""A column as it was found: the array, of one type or of objects; the types of its values; how many rows have it."""

_DTYPES = {"d": np.float64, "q": np.int64, "?": np.bool_}
_TYPES = {"f": float, "i": int, "b": bool, "U": str}


def _chosen() -> tuple[Any, str]:
    """The compiled module, or `None`, and why."""
    if os.environ.get(PURE, "") not in ("", "0"):
        return None, f"pure Python: {PURE}={os.environ[PURE]}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None, "pure Python: this one has no GIL"
    try:
        return import_module("verl_ext._core"), "the compiled core"
    except ImportError:
        return None, "pure Python: no core was compiled when verl-ext was installed"


_CORE, VERSION = _chosen()
COMPILED = _CORE is not None


def read_columns(rows: list[Any], short: int) -> dict[str, Found] | None:
    """The columns of `rows` by key, read by the compiled version.

    Args:
        rows: exact dicts with keys that are exact `str`, and `None`.
        short: characters up to which text is written into an array of text.

    Returns:
        By key, in the order in which keys first appear, what `Found` says: arrays of floats, integers, bools or short
        text where every row has the key with a value of exactly that type, else of objects, with `None` where a row
        lacks the key. It is `None` where there is no compiled version, or where it does not read such rows.
    """
    found = _CORE.read(rows, short, partial(_renewed, rows)) if COMPILED else None
    if found is not None:
        for key, (array, types, filled) in found.items():
            if types is None:  # too many to be noted
                found[key] = array, map(type, array.tolist()), filled
    columns: dict[str, Found] | None = found
    return columns


def measured(texts: list[str]) -> tuple[int, int, bool]:
    """The characters of the longest text and of all, and whether one ends in NUL; by the compiled version."""
    found: tuple[int, int, bool] = _CORE.measured(texts)
    return found


def text_array(texts: list[str], longest: int) -> np.ndarray:
    """Texts without a NUL at the end as NumPy's text, by the compiled version: in a sixth of the time of `np.array`."""
    array = np.zeros(len(texts), f"U{longest}")
    _CORE.write(texts, array.__array_interface__["data"][0], array.itemsize // 4)
    return array


def _renewed(
    rows: list[Any], kind: str, key: str, letters: int, old: np.ndarray | None, filled: int
) -> tuple[np.ndarray, int, int] | None:
    """An array of another kind for the first `filled` rows of a column, its address and the bytes of one cell.

    `None` where the rows are no longer what was read.
    """
    if kind == "U":
        array = np.zeros(len(rows), f"U{letters or 1}")
        if old is not None:
            array[:filled] = old[:filled]
    elif kind != "O":
        array = np.empty(len(rows), _DTYPES[kind])
    else:
        array = np.empty(len(rows), object)
        if old is not None:  # it holds values, not the rows' own objects
            try:
                values = [row[key] for row in islice(rows, filled)]
            except (KeyError, TypeError):
                return None
            if countOf(map(type, values), _TYPES[old.dtype.kind]) != filled:
                return None
            array[:filled] = values
    return array, array.__array_interface__["data"][0], array.itemsize
