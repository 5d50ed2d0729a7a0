"""Batches that verl's own managers and ours make of the same rows, compared.

What went through processes has been pickled: equal values need not be the same objects, nor know that they are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from differences import COLUMNS
from hypothesis import strategies as st
from ray import cloudpickle
from stock_columns import stock_column_of
from strategies import alike
from values import FAMILIES

Columns = dict[str, list[Any]]


def columns_of_all_families(rows: int) -> st.SearchStrategy[Columns]:
    """For each family, by its name, the values that `rows` samples have."""
    return st.fixed_dictionaries(
        {family: st.lists(values, min_size=rows, max_size=rows) for family, values in FAMILIES.items()}
    )


def carried_by_stock(columns: Columns) -> Columns:
    """Those of which stock verl makes a column."""
    return {name: values for name, values in columns.items() if stock_column_of(values) is not None}


def rows_of(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The samples' dicts, of columns of one length."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def equal(one: Any, other: Any) -> bool:
    """Whether two values are equal, also of a class that knows no equality; dicts in their order."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(map(equal, one.values(), other.values()))
    return alike(one, other) or cloudpickle.dumps(one) == cloudpickle.dumps(other)


def assert_same_batch(ours: Any, theirs: Any, emitted: Mapping[str, Sequence[Any]]) -> None:
    """The two batches hold the same tensors, columns, order of columns and `meta_info`.

    `emitted` are the values that a scorer has returned, by key.
    """
    assert list(ours.batch.keys()) == list(theirs.batch.keys())
    for name, tensor in theirs.batch.items():
        assert ours.batch[name].dtype == tensor.dtype, name
        assert torch.equal(ours.batch[name], tensor), name
    assert ours.meta_info == theirs.meta_info
    assert_same_columns(ours.non_tensor_batch, theirs.non_tensor_batch, emitted)


def assert_same_columns(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], emitted: Mapping[str, Sequence[Any]]
) -> None:
    """The same columns in the same order; where one differs from stock's on purpose, it holds what was emitted."""
    assert list(ours) == list(theirs)
    for name, stock in theirs.items():
        column = ours[name]
        assert type(column) is np.ndarray, name
        if name in emitted and any(difference.applies(emitted[name]) for difference in COLUMNS):
            assert all(map(equal, column, emitted[name])), name
        else:
            assert (column.dtype, column.shape) == (stock.dtype, stock.shape), name
            assert all(map(equal, column.flat, stock.flat)), name
