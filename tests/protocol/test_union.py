"""`union`: raw columns are finalized on the way, and no reward key overwrites anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from batches import BOTH, ROWS, batch_of, columns_of, finalized, plain, scored, snapshot
from strategies import objects
from tensordict import TensorDict
from verl import DataProto

from verl_ext.column import RAW_COLUMN, SparseNonTensor
from verl_ext.errors import FieldCollisionError
from verl_ext.protocol import SparseDataProto, as_sparse


def prompts(**columns: Any) -> DataProto:
    """The batch that the trainer unions with: four rows, none of the tensors of a scored batch."""
    return DataProto(
        batch=TensorDict({"prompts": torch.arange(8).reshape(4, 2)}, batch_size=4),
        non_tensor_batch={"uid": objects(f"u{number}" for number in range(4)), **columns},
        meta_info={"step": 7},
    )


@BOTH
@pytest.mark.parametrize("swapped", [False, True], ids=["raw on the right", "raw on the left"])
def test_union_finalizes_a_raw_column_on_either_side(cls: type[DataProto], swapped: bool) -> None:
    one, other = (batch_of(cls), prompts()) if swapped else (prompts(), batch_of(cls))
    before = snapshot(other)
    united = one.union(other)
    assert united is one
    assert snapshot(other) == before
    found = columns_of(united)
    assert found["acc"] == ("object", [1.0, 0.0, None, None])
    assert found["pred"] == ("object", [None, "42", None, None])
    assert found[RAW_COLUMN] == ("object", ROWS)
    assert type(united.non_tensor_batch[RAW_COLUMN]) is np.ndarray
    assert set(united.batch.keys()) == {"prompts", "number", "rm_scores"}
    assert united.meta_info == {"step": 7, "reward_extra_keys": ["acc", "pred"]}


def test_union_of_a_batch_with_what_was_popped_from_it_restores_it() -> None:
    batch = batch_of()
    expected = columns_of(batch_of().finalize())
    popped = batch.pop(["rm_scores"], [RAW_COLUMN])
    assert type(popped) is SparseDataProto
    assert {**columns_of(batch.union(popped))} == expected


@pytest.mark.usefixtures("stock_verl")
def test_union_on_stock_lets_a_column_take_a_tensors_name_without_a_word() -> None:
    one, other = prompts(), plain([f"u{n}" for n in range(4)], prompts=[1, 2, 3, 4])
    united = one.union(other)
    assert "prompts" in united.batch.keys()
    assert "prompts" in united.non_tensor_batch


@BOTH
@pytest.mark.parametrize("make", [batch_of, lambda cls, rows: as_sparse(batch_of(cls, rows)).finalize()])
@pytest.mark.parametrize("swapped", [False, True], ids=["rewards on the right", "rewards on the left"])
def test_union_refuses_a_reward_key_that_is_taken_before_anything_changes(
    cls: type[DataProto], make: Callable[..., DataProto], swapped: bool
) -> None:
    rewards = make(cls, [{"prompts": 1, "data_source": "mine", "acc": 1.0}] * 4)
    batch = prompts(data_source=objects("abcd"))
    one, other = (rewards, batch) if swapped else (batch, rewards)
    before = snapshot(one), snapshot(other)
    with pytest.raises(FieldCollisionError, match="2 reward key") as caught:
        one.union(other)
    assert caught.value.collisions == {
        "prompts": "a tensor of the batch it is united with",
        "data_source": "a column of the batch it is united with, with other values",
    }
    assert (snapshot(one), snapshot(other)) == before


@pytest.mark.parametrize("swapped", [False, True], ids=["without tensors on the right", "without tensors on the left"])
def test_union_names_a_taken_key_also_where_a_side_has_no_tensors(swapped: bool) -> None:
    rewards, batch = batch_of(), DataProto(non_tensor_batch={"acc": objects("abcd")})
    one, other = (batch, rewards) if swapped else (rewards, batch)
    with pytest.raises(FieldCollisionError, match="1 reward key"):
        one.union(other)


def test_union_takes_equal_values_in_different_dtypes_for_equal_and_keeps_the_left_column() -> None:
    rows = [{"acc": 1.0, "nan": float("nan"), "list": [1, 2]}] * 4
    for left, right in [(finalized, scored), (scored, finalized)]:
        one, other = left(rows), right(rows)
        if left is finalized:
            one.non_tensor_batch["acc"] = objects([1.0] * 4)
        else:
            other.non_tensor_batch["acc"] = objects([1.0] * 4)
        united = one.union(other)
        assert columns_of(united)["acc"] == ("object" if left is finalized else "float64", [1.0] * 4)
        assert united.meta_info["reward_extra_keys"] == ["acc", "nan", "list"]


def test_union_compares_the_dicts_left_behind_by_value() -> None:
    def batch() -> DataProto:
        return scored([{"nan": float("nan"), "array": np.arange(2)} for _ in range(2)], tool=SparseNonTensor([{}, {}]))

    for one, other in [(batch(), batch()), (batch().finalize(), batch()), (batch(), batch().finalize())]:
        united = one.union(other)
        assert list(united.non_tensor_batch) == ["uid", "nan", "array", RAW_COLUMN, "tool"]


def test_union_merges_reward_extra_keys_by_ordered_union_and_leaves_the_inputs() -> None:
    one = batch_of(rows=[{"b": 1, "a": 1}] * 4).finalize(keep_raw=False)
    other = batch_of(rows=[{"c": 1, "a": 1}] * 4).finalize(keep_raw=False)
    before = snapshot(other)
    assert one.union(other).meta_info["reward_extra_keys"] == ["b", "a", "c"]
    assert snapshot(other) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda batch: batch.batch.set_("prompts", batch.batch["prompts"] + 1), "prompts in tensor_dict1"),
        (lambda batch: batch.non_tensor_batch.update(uid=objects("abcd")), "`uid` in tensor_dict1"),
        (lambda batch: batch.meta_info.update(step=8), "step"),
        (lambda batch: batch.reorder(torch.tensor([0, 1])), "identical batch size"),
    ],
    ids=["tensor", "column", "meta_info", "rows"],
)
@pytest.mark.parametrize("swapped", [False, True], ids=["raw on the right", "raw on the left"])
def test_any_other_conflict_of_a_union_is_verls_own_assertion_and_changes_nothing(
    change: Callable[[DataProto], Any], message: str, swapped: bool
) -> None:
    batch, rewards = prompts(), batch_of()
    rewards.batch["prompts"] = prompts().batch["prompts"]
    change(batch)
    one, other = (rewards, batch) if swapped else (batch, rewards)
    before = snapshot(one), snapshot(other)
    with pytest.raises(AssertionError, match=message):
        one.union(other)
    assert (snapshot(one), snapshot(other)) == before


def test_union_of_plain_batches_runs_verls_own_code_and_changes_the_batch_in_place() -> None:
    one, other = prompts(), plain([f"u{n}" for n in range(4)], length=[1, 2, 3, 4])
    tensors, columns = one.batch, one.non_tensor_batch
    united = one.union(other)
    assert united.batch is tensors
    assert united.non_tensor_batch is columns
    assert type(united) is DataProto


@pytest.mark.parametrize("swapped", [False, True])
def test_union_of_0_rows(swapped: bool) -> None:
    batches = [scored([]), DataProto(batch=TensorDict({"prompts": torch.zeros(0, 2)}, batch_size=0))]
    one, other = batches[::-1] if swapped else batches
    united = one.union(other)
    assert len(united) == 0
    assert columns_of(united) == {"uid": ("object", []), RAW_COLUMN: ("object", [])}


def test_union_accepts_a_plain_list_as_a_column() -> None:
    rewards = batch_of()
    rewards.non_tensor_batch["processing_times"] = [1.0, 2.0, 3.0, 4.0]
    assert columns_of(prompts().union(rewards))["processing_times"] == ("float64", [1.0, 2.0, 3.0, 4.0])
