"""The column that stock verl makes of the values of one key, and when ours is the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from strategies import alike


def stock_column_of(values: Sequence[Any]) -> np.ndarray | None:
    """As `AgentLoopWorker._postprocess` and `RewardLoopManager.compute_rm_score` have it; `None` where that raises."""
    try:
        return np.array(values)
    except Exception:
        return None


def is_stocks(column: np.ndarray, stock: np.ndarray | None) -> bool:
    """Whether a column is stock's: in its dtype, its shape and its values, and in their types.

    The order of bytes is none of that: NumPy keeps a foreign one in a batch of one row, and in no other.
    """
    if stock is None or (column.dtype, column.shape) != (stock.dtype.newbyteorder("="), stock.shape):
        return False
    return all(
        one is other or (_type(one) == _type(other) and alike(one, other))
        for one, other in zip(column.flat, stock.flat, strict=True)
    )


def _type(value: object) -> object:
    """Of a NumPy scalar its dtype: C's two names for 64 bits (2**63 is a `ulonglong`) are two classes and one dtype."""
    return value.dtype if isinstance(value, np.generic) else type(value)
