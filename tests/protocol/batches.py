"""What the tests of batches share: scored batches in every state, and what is compared of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from strategies import objects
from tensordict import TensorDict
from verl import DataProto

from verl_ext.column import RAW_COLUMN, SparseNonTensor
from verl_ext.protocol import SparseDataProto

ROWS: list[dict[str, Any] | None] = [{"acc": 1.0}, {"acc": 0.0, "pred": "42"}, None, {}]
BOTH = pytest.mark.parametrize("cls", [SparseDataProto, DataProto], ids=["SparseDataProto", "DataProto"])


class Bare(np.ndarray):
    """What a column type would be without handlers of its own."""


def bare(rows: Any) -> np.ndarray:
    return objects(rows).view(Bare)


def batch_of(
    cls: type[DataProto] = SparseDataProto,
    rows: Any = tuple(ROWS),
    *,
    column: Callable[[Any], np.ndarray] = SparseNonTensor,
    tensors: bool = True,
    first: int = 0,
    **columns: Any,
) -> DataProto:
    """A scored batch: tensors `number` and `rm_scores`, columns `uid` and the raw one, all counted from `first`."""
    numbers = torch.arange(first, first + len(rows))
    scores = torch.stack([numbers, -numbers], dim=1).float()
    return cls(
        batch=TensorDict({"number": numbers, "rm_scores": scores}, batch_size=len(rows)) if tensors else None,
        non_tensor_batch={"uid": objects(f"u{number}" for number in numbers), RAW_COLUMN: column(rows), **columns},
        meta_info={"step": 7},
    )


def scored(rows: Any, **kwargs: Any) -> DataProto:
    return batch_of(SparseDataProto, rows, **kwargs)


def finalized(rows: Any, keep_raw: bool = False, **kwargs: Any) -> DataProto:
    return scored(rows, **kwargs).finalize(keep_raw=keep_raw)


def plain(column: Any, **columns: Any) -> DataProto:
    """A stock batch of one tensor and these columns."""
    columns = {"uid": column, **columns}
    return DataProto(
        batch=TensorDict({"number": torch.arange(len(column))}, batch_size=len(column)),
        non_tensor_batch={name: objects(values) for name, values in columns.items()},
    )


def columns_of(batch: DataProto) -> dict[str, Any]:
    """Dtype and values of every column, in order."""
    return {name: (str(column.dtype), column.tolist()) for name, column in batch.non_tensor_batch.items()}


def snapshot(batch: DataProto) -> Any:
    """Everything that must not change behind a caller's back: the containers' contents, by identity."""
    tensors = None if batch.batch is None else {name: (id(t), t.tolist()) for name, t in batch.batch.items()}
    columns = {name: (id(column), copy.copy(column).tolist()) for name, column in batch.non_tensor_batch.items()}
    return tensors, columns, copy.deepcopy(batch.meta_info)


def everything(rows: int) -> list[int]:
    return list(range(rows))


def assert_holds(results: list[DataProto], picks: list[int], rows: Any, column: type = SparseNonTensor) -> None:
    """All results together hold these rows, beside their tensors and ids, in columns of this class."""
    assert all(type(batch.non_tensor_batch[RAW_COLUMN]) is column for batch in results)
    assert all(batch.non_tensor_batch[RAW_COLUMN].dtype == object for batch in results)
    assert [row for batch in results for row in batch.non_tensor_batch[RAW_COLUMN].tolist()] == [rows[i] for i in picks]
    assert [uid for batch in results for uid in batch.non_tensor_batch["uid"]] == [f"u{i}" for i in picks]
    assert all(batch.meta_info == {"step": 7} for batch in results)
    for batch in results:
        batch.check_consistency()
        if batch.batch is not None and "number" in batch.batch.keys():
            assert [f"u{number}" for number in batch.batch["number"].tolist()] == batch.non_tensor_batch["uid"].tolist()


def as_plain(batch: DataProto) -> DataProto:
    return DataProto(batch=batch.batch, non_tensor_batch=batch.non_tensor_batch, meta_info=batch.meta_info)


STATES: dict[str, Callable[..., DataProto]] = {
    "raw": scored,
    "raw in a plain batch": lambda rows, **kwargs: batch_of(DataProto, rows, **kwargs),
    "finalized": finalized,
    "finalized, with the dicts": lambda rows, **kwargs: finalized(rows, keep_raw=True, **kwargs),
}

each_state = pytest.mark.parametrize("states", [(a, b) for a in STATES for b in STATES], ids=" then ".join)
