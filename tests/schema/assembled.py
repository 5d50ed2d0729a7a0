"""The column of some values, also of values that are cut into chunks, and a look at what it holds."""

from __future__ import annotations

import numpy as np
from strategies import (
    alike,
    pieces,
)

from verl_ext.schema import assemble_reward_extra_info, merge_columns


def column_of(values: list) -> np.ndarray:
    return assemble_reward_extra_info([{"key": value} for value in values])["key"]


def merged(rows: list, cut: list[int]) -> dict[str, np.ndarray]:
    """The columns of `rows`, aligned chunk by chunk, then merged."""
    chunks = [(len(piece), assemble_reward_extra_info(piece)) for piece in pieces(rows, cut)]
    keys = dict.fromkeys(key for _, columns in chunks for key in columns)
    return {key: merge_columns([columns.get(key, length) for length, columns in chunks]) for key in keys}


def assert_same_column(column: np.ndarray, dtype: object, values: list) -> None:
    assert type(column) is np.ndarray
    assert column.dtype == dtype
    assert len(column) == len(values)
    assert all(map(alike, column, values)), f"{column!r} does not hold {values!r}"
