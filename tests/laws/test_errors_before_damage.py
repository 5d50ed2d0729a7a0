"""Law 5, errors come before damage: what is refused is left as it was.

(Law 4, about worker processes without the plugin, needs Ray: see `integration/`.)
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from law_batches import FORMS, RAW, Snapshot, in_form, prompts_of, raw_batch, reward_rows
from strategies import alike, reward_values
from verl.protocol import DataProto

from verl_ext.column import SparseNonTensor
from verl_ext.errors import BatchMismatchError, FieldCollisionError, RowError
from verl_ext.protocol import SparseDataProto


@st.composite
def rows_with(draw: st.DrawFn, taken: list[str]) -> tuple[list, list[str]]:
    """Rows, some of which return keys whose names are taken; and those names."""
    rows = [dict(row or {}) for row in draw(reward_rows())] + [{}]
    names = draw(st.lists(st.sampled_from(taken), min_size=1, max_size=3, unique=True))
    for name in names:
        draw(st.sampled_from(rows))[name] = draw(reward_values())
    return rows, names


TAKEN = {
    "responses": "a tensor",
    "rm_scores": "a tensor",
    "uid": "a column",
    "__num_turns__": "a column",
    "data_source": "a reserved name",
}


def is_repeated(batch: DataProto, rows: list, name: str) -> bool:
    """Whether a reward key has the values of the column of its name: that is no collision."""
    column = batch.non_tensor_batch.get(name, [])
    return len(column) == len(rows) and all(
        row and name in row and alike(row[name], value) for row, value in zip(rows, column, strict=True)
    )


@given(rows_with(list(TAKEN)), st.booleans())
def test_a_refused_finalize_names_every_collision_and_leaves_the_batch_as_it_was(refused, keep_raw):
    rows, names = refused
    batch = raw_batch(rows)
    before = Snapshot(batch)
    names = [name for name in names if not is_repeated(batch, rows, name)]
    assume(names)
    with pytest.raises(FieldCollisionError) as caught:
        batch.finalize(reserved=["data_source", "reward_model"], keep_raw=keep_raw)
    assert set(caught.value.collisions) == set(names)
    for name in names:
        first = next(number for number, row in enumerate(rows) if name in row)
        assert TAKEN[name] in caught.value.collisions[name]
        assert repr(name) in str(caught.value)
        assert f"row {first}" in str(caught.value)
    before.assert_unchanged()


@given(reward_rows(), st.sampled_from(["a/b", "judge/acc"]))
def test_raw_columns_that_flatten_to_one_name_are_refused_and_left_as_they_were(rows, name):
    rows = [*rows, {name: 1.0}]
    batch = raw_batch(rows)
    column, key = name.split("/")
    batch.non_tensor_batch[column] = SparseNonTensor([{key: 2.0}] * len(rows))
    before = Snapshot(batch)
    with pytest.raises(FieldCollisionError, match=name):
        batch.finalize()
    before.assert_unchanged()


@given(reward_rows(), st.sampled_from([RAW, "judge"]), st.data())
def test_a_row_that_was_spoilt_after_it_was_checked_is_refused_and_the_batch_left_as_it_was(rows, spoilt, data):
    batch = raw_batch([*rows, {}])
    batch.non_tensor_batch["judge"] = SparseNonTensor([{"length": 1}] * len(batch))
    number = data.draw(st.integers(0, len(rows)), label="spoilt row")
    batch.non_tensor_batch[spoilt].view(np.ndarray)[number] = "no row"
    before = Snapshot(batch)
    with pytest.raises(RowError, match=f"row {number} of the raw column is a str"):
        batch.finalize()
    before.assert_unchanged()


@given(reward_rows(), st.booleans(), st.booleans())
def test_finalizing_again_changes_nothing(rows, keep_raw, keep_raw_again):
    batch = raw_batch(rows).finalize(keep_raw=keep_raw)
    before = Snapshot(batch)
    assert batch.finalize(keep_raw=keep_raw_again) is batch
    before.assert_unchanged()


@given(reward_rows())
def test_finalize_changes_only_its_own_batch_and_not_those_that_share_its_columns(rows):
    batch = raw_batch(rows)
    before = Snapshot(batch)
    shared = SparseDataProto(batch=batch.batch, non_tensor_batch=batch.non_tensor_batch, meta_info=batch.meta_info)
    shared.finalize()
    before.assert_unchanged()


@given(reward_rows(), reward_rows(), st.sampled_from(FORMS[:3]))
def test_a_refused_concat_leaves_its_inputs_as_they_were(rows, others, form):
    rows, others = [*rows, {}], [*others, {}]
    for spoil, error in SPOILT.items():
        parts = [in_form(raw_batch(rows), form), raw_batch(others, len(rows))]
        spoil(parts)
        before = [Snapshot(part) for part in parts]
        with pytest.raises(error):
            SparseDataProto.concat(parts)
        for snapshot in before:
            snapshot.assert_unchanged()


def lacks_a_tensor(parts: list[DataProto]) -> None:
    parts[1].batch = parts[1].batch.exclude("responses")


def contradicts(parts: list[DataProto]) -> None:
    parts[1].meta_info["temperature"] = 0.5


SPOILT = {lacks_a_tensor: BatchMismatchError, contradicts: BatchMismatchError}


@given(reward_rows(), st.sampled_from(FORMS), st.sampled_from(["tensor", "column", "sample ids"]))
def test_a_refused_union_leaves_both_batches_as_they_were(rows, form, conflict):
    rows = [*rows, {"attempts": 3}]
    scored = in_form(raw_batch(rows), form)
    numbers = torch.arange(len(rows))
    taken = {"tensor": {"attempts": numbers}, "column": {"attempts": numbers.numpy() - 1}, "sample ids": {}}
    prompts = prompts_of(scored, **taken[conflict])
    if conflict == "sample ids":
        prompts.non_tensor_batch["uid"] = prompts.non_tensor_batch["uid"] + "!"
    for one, other in ((prompts, scored), (scored, prompts)):
        ours = SparseDataProto(batch=one.batch, non_tensor_batch=one.non_tensor_batch, meta_info=one.meta_info)
        before = Snapshot(ours), Snapshot(other)
        # What has nothing to do with rewards verl itself refuses: by then it has joined the tensors.
        refusal = pytest.raises(AssertionError, match="uid") if conflict == "sample ids" else None
        with refusal or pytest.raises(FieldCollisionError, match="attempts"):
            ours.union(other)
        for snapshot in before:
            snapshot.assert_unchanged()
