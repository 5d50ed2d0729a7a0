"""Law 2, the split does not matter: however rows are cut and finalized, the columns are the same."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from law_batches import (
    FORMS,
    NAMES,
    REWARD_KEYS,
    Snapshot,
    assert_same_columns,
    assert_same_samples,
    chunks_of,
    flat,
    forms_for,
    in_form,
    raw_batch,
    reward_columns,
    reward_rows,
)
from oracle import keys_of
from strategies import alike, cuts, every_cut, pieces
from verl.protocol import DataProto

from verl_ext.column import SparseNonTensor
from verl_ext.protocol import SparseDataProto


@settings(max_examples=2 * settings.default.max_examples)
@given(reward_rows(), st.booleans(), st.data())
def test_however_the_rows_are_cut_and_finalized_the_reward_columns_are_the_same(rows, scores, data):
    cut = data.draw(cuts(len(rows)), label="cut")
    forms = data.draw(forms_for(cut, scores), label="forms")
    whole = raw_batch(rows, scores=scores).finalize()
    batch = SparseDataProto.concat(chunks_of(rows, cut, forms, scores)).finalize()
    assert_same_columns(reward_columns(batch), reward_columns(whole))
    assert_same_samples(batch, whole)
    assert batch.meta_info == whole.meta_info
    assert (REWARD_KEYS in whole.meta_info) == scores


@given(reward_rows(max_rows=3), st.booleans())
def test_finalize_after_concat_is_concat_after_finalize_for_every_cut(rows, keep_raw):
    for cut in every_cut(len(rows), 3):
        later = SparseDataProto.concat(chunks_of(rows, cut, ["raw"] * 3)).finalize(keep_raw=keep_raw)
        sooner = SparseDataProto.concat([b.finalize(keep_raw=keep_raw) for b in chunks_of(rows, cut, ["raw"] * 3)])
        assert_same_columns(reward_columns(later), reward_columns(sooner))
        assert_same_samples(later, sooner)
        assert later.meta_info == sooner.meta_info
        assert later.meta_info[REWARD_KEYS] == keys_of(rows)
        assert set(later.non_tensor_batch) == set(sooner.non_tensor_batch)


@given(reward_rows(), st.sampled_from(NAMES), st.data())
def test_the_split_does_not_matter_to_a_raw_column_of_another_name(rows, name, data):
    def batch_of(piece: list, form: str = "raw") -> DataProto:
        batch = raw_batch([{}] * len(piece))
        batch.non_tensor_batch[name] = SparseNonTensor(piece)
        return in_form(batch, form)

    cut = data.draw(cuts(len(rows)), label="cut")
    forms = data.draw(st.lists(st.sampled_from(["raw", "finalized"]), min_size=len(cut), max_size=len(cut)))
    whole = batch_of(rows).finalize()
    joined = SparseDataProto.concat([batch_of(*part) for part in zip(pieces(rows, cut), forms, strict=True)]).finalize()
    assert_same_columns(flat(joined, name), flat(whole, name))


def test_long_text_in_a_raw_column_with_a_slash_in_its_name_takes_little_memory():
    chunks = [SparseDataProto(non_tensor_batch={"a/b": SparseNonTensor(rows)}) for rows in LONG_BESIDE_SHORT]
    column = SparseDataProto.concat([chunk.finalize() for chunk in chunks]).non_tensor_batch["a/b/text"]
    assert column.dtype == object


LONG_BESIDE_SHORT = [[{"text": "x" * 20_000}], [{"text": "x"}] * 16_384]


@pytest.mark.parametrize("scores", [True, False], ids=["named by reward_extra_keys", "named by the dicts alone"])
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([np.int8(1), np.int16(300)], np.int64),
        ([np.float16(0.1), np.float32(0.1)], np.float64),
        ([np.float32(0.1), True], np.float64),
        ([2**63, 1], np.uint64),
        ([2**53 + 1, 0.5], object),
        (["7", 7], object),
        ([[1, 2], [3]], object),
        ([b"a", b"b"], object),
        ([np.array(["a"], "U9"), ["b"]], "<U1"),
    ],
)
def test_reward_columns_of_finalized_chunks_are_decided_anew_from_all_values(values, dtype, scores):
    rows = [{"acc": value} for value in values]
    for form in ("finalized", "plain"):
        first, second = chunks_of(rows, [1, 1], ["finalized", form], scores)
        column = SparseDataProto.concat([first, second]).non_tensor_batch["acc"]
        assert column.dtype == dtype
        assert all(map(alike, column, values))


@given(reward_rows(), st.data())
def test_concatenating_in_steps_is_concatenating_at_once(rows, data):
    cut = data.draw(cuts(len(rows)), label="cut")
    forms = data.draw(forms_for(cut, scores=True), label="forms")
    whole = raw_batch(rows).finalize()
    parts = chunks_of(rows, cut, forms)
    grown = SparseDataProto.concat([raw_batch([]), parts[0]])
    for part in parts[1:]:
        grown = SparseDataProto.concat([grown, part])
    grown.finalize()
    assert_same_columns(reward_columns(grown), reward_columns(whole))
    assert_same_samples(grown, whole)
    assert grown.meta_info == whole.meta_info


@given(reward_rows(), st.data())
def test_cutting_a_finalized_batch_and_joining_it_again_changes_nothing(rows, data):
    cut = data.draw(cuts(len(rows)), label="cut")
    whole = raw_batch(rows).finalize()
    ends = list(itertools.accumulate(cut, initial=0))
    parts = [whole[start:end] for start, end in itertools.pairwise(ends)]
    joined = SparseDataProto.concat(parts)
    assert_same_columns(reward_columns(joined), reward_columns(whole))
    assert joined.meta_info == whole.meta_info


@given(reward_rows(), st.sampled_from(FORMS), st.integers(0, 2))
def test_a_chunk_without_rows_changes_nothing_wherever_it_stands(rows, form, place):
    whole = raw_batch(rows).finalize()
    empty = in_form(whole[:0], "plain" if form.startswith("plain") else "raw")
    parts = chunks_of(rows, [len(rows) // 2, len(rows) - len(rows) // 2], ["raw", form])
    parts.insert(place, empty)
    batch = SparseDataProto.concat(parts).finalize()
    assert_same_columns(reward_columns(batch), reward_columns(whole))
    assert_same_samples(batch, whole)
    assert batch.meta_info == whole.meta_info


@given(reward_rows(max_rows=4), st.sampled_from(FORMS))
def test_a_plain_list_as_a_column_is_one_value_per_row(rows, form):
    # verl's fully-async `addition_process` makes such columns.
    whole = raw_batch(rows).finalize()
    parts = chunks_of(rows, [len(rows) // 2, len(rows) - len(rows) // 2], ["raw", form])
    for part in parts:
        part.non_tensor_batch["processing_times"] = (part.batch["responses"][:, 0] / 4).tolist()
    batch = SparseDataProto.concat(parts).finalize()
    assert batch.non_tensor_batch["processing_times"].tolist() == [number / 4 for number in range(len(rows))]
    assert_same_columns(reward_columns(batch), reward_columns(whole))


@given(reward_rows(), st.data())
def test_concat_changes_none_of_its_inputs(rows, data):
    cut = data.draw(cuts(len(rows)), label="cut")
    forms = data.draw(forms_for(cut, scores=True), label="forms")
    parts = chunks_of(rows, cut, forms)
    before = [Snapshot(part) for part in parts]
    SparseDataProto.concat(parts).finalize()
    for snapshot in before:
        snapshot.assert_unchanged()
