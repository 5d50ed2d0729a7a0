"""What the tests of the column share: rows, and the look that says a result is a column of exactly these."""

from __future__ import annotations

from typing import Any

import numpy as np

from verl_ext.column import SparseNonTensor

ROWS: list[dict[str, Any] | None] = [{"acc": 1.0}, {"acc": 0.0, "pred": "42"}, None, {}, {"pred": None}]


def plain(rows: list[Any]) -> np.ndarray:
    """A 1-D object array, also where NumPy would rather make two dimensions of it."""
    return np.fromiter(rows, dtype=object, count=len(rows))


def assert_column(found: Any, rows: list[Any], shape: tuple[int, ...] | None = None) -> None:
    """`found` is a column of exactly these row objects."""
    assert type(found) is SparseNonTensor
    assert found.dtype == object
    assert found.shape == ((len(rows),) if shape is None else shape)
    assert [id(row) for row in found.ravel().tolist()] == [id(row) for row in rows]


def assert_plain(found: Any) -> None:
    assert type(found) is np.ndarray
