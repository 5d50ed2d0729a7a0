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


def assert_same_columns(columns: dict, expected: dict, rows: list) -> None:
    """Each has the dtype, shape and values of the expected one; what the rows brought is the very same object."""
    brought = {id(value) for row in rows if row for value in row.values()}
    for key, column in columns.items():
        other = expected[key]
        assert type(column) is np.ndarray
        assert (key, column.dtype, column.shape) == (key, other.dtype, other.shape)
        if column.dtype != object:
            assert all(map(alike, column, other))
            assert column.dtype.char in "gG" or column.tobytes() == other.tobytes()  # (a long double has padding bytes)
            continue
        for one, two in zip(column, other, strict=True):
            assert one is two if id(two) in brought else type(one) is type(two) and alike(one, two)
