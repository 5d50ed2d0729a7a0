"""What verl's own function and ours make of the same values, compared: batches, columns and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from ray import cloudpickle
from values import FAMILIES

from verl_ext.schema import same_value

BENT = frozenset(
    ("text ending in NUL", "text and numbers", "a number and text in a list", "masked arrays", "enums of text")
)
"""Families of which stock verl does not keep every value: it makes text of numbers, drops a NUL, fills in a mask."""

Columns = dict[str, list[Any]]


def columns_of_all_families(rows: int) -> st.SearchStrategy[Columns]:
    """For each family, by its name, the values that `rows` samples have."""
    return st.fixed_dictionaries(
        {family: st.lists(values, min_size=rows, max_size=rows) for family, values in FAMILIES.items()}
    )


def carried_by_stock(columns: Columns) -> Columns:
    """Those of which stock verl makes a column, without bending a value."""
    return {name: values for name, values in columns.items() if name not in BENT and _makes_an_array(values)}


def _makes_an_array(values: Sequence[Any]) -> bool:
    try:
        np.array(values)
    except Exception:  # ragged lists, tensors of a dtype that NumPy lacks, ...: stock verl has its own error then
        return False
    return True


def rows_of(columns: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """The samples' dicts, of columns of one length."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def equal(one: Any, other: Any) -> bool:
    """Whether two values are equal, also of a class that knows no equality; dicts in their order."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(map(equal, one.values(), other.values()))
    return same_value(one, other) or cloudpickle.dumps(one) == cloudpickle.dumps(other)


def assert_same_batch(ours: Any, theirs: Any) -> None:
    """The two batches hold the same tensors, columns, order of columns and `meta_info`."""
    assert list(ours.batch.keys()) == list(theirs.batch.keys())
    for name, tensor in theirs.batch.items():
        assert ours.batch[name].dtype == tensor.dtype, name
        assert torch.equal(ours.batch[name], tensor), name
    assert_same_columns(ours.non_tensor_batch, theirs.non_tensor_batch)
    assert ours.meta_info == theirs.meta_info


def assert_same_columns(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """The same columns in the same order, row by row equal."""
    assert list(ours) == list(theirs)
    for name, column in theirs.items():
        assert type(ours[name]) is type(column), name
        for row, value in enumerate(column):
            assert equal(ours[name][row], value) or _opened(ours[name][row]) == _opened(value), (name, row)


def _opened(value: Any) -> Any:
    """An array-like as the list that it is: which of them become one array of a column, the dtype rules say."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return [_opened(item) for item in value] if isinstance(value, Sequence) and not isinstance(value, str) else value
