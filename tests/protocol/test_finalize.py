"""`finalize`: raw columns become aligned ones, in place, all or nothing."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from batches import ROWS, batch_of, columns_of, scored, snapshot
from strategies import objects
from verl import protocol as verl_protocol

from verl_ext.column import RAW_COLUMN, SparseNonTensor
from verl_ext.errors import UnfinalizedError


def test_finalize_aligns_the_columns_in_place_and_names_them_in_meta_info() -> None:
    batch = batch_of()
    assert batch.finalize() is batch
    assert columns_of(batch) == {
        "uid": ("object", ["u0", "u1", "u2", "u3"]),
        "acc": ("object", [1.0, 0.0, None, None]),
        "pred": ("object", [None, "42", None, None]),
        RAW_COLUMN: ("object", ROWS),
    }
    assert type(batch.non_tensor_batch[RAW_COLUMN]) is np.ndarray
    assert batch.meta_info == {"step": 7, "reward_extra_keys": ["acc", "pred"]}


def test_reward_extra_keys_are_named_only_where_there_are_scores() -> None:
    for batch in (batch_of(tensors=False), batch_of()):
        if batch.batch is not None:
            batch.pop(["rm_scores"])
        batch.finalize()
        assert "acc" in batch.non_tensor_batch
        assert batch.meta_info == {"step": 7}


def test_a_batch_whose_only_raw_column_is_no_reward_names_no_reward_extra_keys() -> None:
    batch = batch_of(column=objects, tool_info=SparseNonTensor([{"calls": 1}] * 4)).finalize()
    assert columns_of(batch)["tool_info/calls"] == ("int64", [1, 1, 1, 1])
    assert batch.meta_info == {"step": 7}


def test_reward_extra_keys_that_were_there_stay_first() -> None:
    batch = batch_of()
    batch.meta_info["reward_extra_keys"] = ["earlier", "acc"]
    assert batch.finalize().meta_info["reward_extra_keys"] == ["earlier", "acc", "pred"]
    assert scored([{}, None]).finalize().meta_info["reward_extra_keys"] == []


def test_0_rows_finalize_to_no_reward_columns() -> None:
    batch = scored([]).finalize(keep_raw=False)
    assert columns_of(batch) == {"uid": ("object", [])}
    assert batch.meta_info == {"step": 7, "reward_extra_keys": []}


def test_a_raw_column_of_another_name_flattens_under_its_name_and_is_no_reward() -> None:
    batch = batch_of(tool_info=SparseNonTensor([{"calls": 1}, {"calls": 2, "acc": 1}, {"calls": 3}, {"calls": 4}]))
    batch.finalize(keep_raw=False)
    assert columns_of(batch) == {
        "uid": ("object", ["u0", "u1", "u2", "u3"]),
        "acc": ("object", [1.0, 0.0, None, None]),
        "pred": ("object", [None, "42", None, None]),
        "tool_info/calls": ("int64", [1, 2, 3, 4]),
        "tool_info/acc": ("object", [None, 1, None, None]),
    }
    assert batch.meta_info["reward_extra_keys"] == ["acc", "pred"]


def test_chunks_and_selections_that_share_dicts_are_not_changed_behind_their_back() -> None:
    batch = batch_of()
    relatives = [batch.select(), batch[:2], *batch.chunk(2), copy.copy(batch)]
    before = [snapshot(relative) for relative in relatives]
    batch.finalize(keep_raw=False)
    assert [snapshot(relative) for relative in relatives] == before
    assert all(type(relative.non_tensor_batch[RAW_COLUMN]) is SparseNonTensor for relative in relatives)
    assert all("reward_extra_keys" not in relative.meta_info for relative in relatives)


def test_a_folded_batch_must_be_unfolded_first() -> None:
    folded = verl_protocol.fold_batch_dim(batch_of(), 2)
    before = snapshot(folded)
    with pytest.raises(UnfinalizedError, match=r"'reward_extra_info' is folded to shape \(2, 2\): unfold_batch_dim"):
        folded.finalize()
    assert snapshot(folded) == before
    assert "acc" in verl_protocol.unfold_batch_dim(folded).finalize().non_tensor_batch
