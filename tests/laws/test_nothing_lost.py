"""Law 1, nothing lost: every value that a reward function returned is in the batch that comes out, at its row."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from law_batches import (
    FORMS,
    NAMES,
    RAW,
    REWARD_KEYS,
    assert_nothing_lost,
    assert_same_samples,
    chunks_of,
    flat,
    forms_for,
    in_form,
    prompts_of,
    raw_batch,
    reward_columns,
    reward_rows,
)
from oracle import keys_of
from strategies import ANY_KEYS, alike, cuts
from verl.protocol import DataProto

from verl_ext.column import SparseNonTensor
from verl_ext.protocol import SparseDataProto


@given(reward_rows(), st.booleans())
def test_every_value_that_went_in_comes_out_of_finalize_at_its_row(rows, keep_raw):
    batch = raw_batch(rows).finalize(keep_raw=keep_raw)
    assert_nothing_lost(batch, rows)
    assert batch.meta_info[REWARD_KEYS] == keys_of(rows)
    assert (RAW in batch.non_tensor_batch) == keep_raw
    if keep_raw:
        left = batch.non_tensor_batch[RAW]
        assert type(left) is np.ndarray
        assert all(one is other for one, other in zip(left, rows, strict=True))


@given(reward_rows(), st.booleans(), st.data())
def test_every_value_survives_any_mix_of_raw_finalized_and_plain_chunks(rows, scores, data):
    cut = data.draw(cuts(len(rows)), label="cut")
    forms = data.draw(forms_for(cut, scores), label="forms")
    batch = SparseDataProto.concat(chunks_of(rows, cut, forms, scores))
    assert_nothing_lost(batch.finalize(), rows)
    kept = ["dropped" not in form for form, length in zip(forms, cut, strict=True) for _ in range(length)]
    for row, is_kept, left in zip(rows, kept, batch.non_tensor_batch.get(RAW, [None] * len(rows)), strict=True):
        assert left is (row if is_kept else None)


@given(reward_rows(), st.sampled_from(FORMS))
def test_every_value_survives_the_union_with_the_prompts(rows, form):
    scored = in_form(raw_batch(rows), form)
    prompts = prompts_of(scored)
    batch = SparseDataProto(batch=prompts.batch, non_tensor_batch=prompts.non_tensor_batch, meta_info={"step": 3})
    assert batch.union(scored) is batch
    assert_nothing_lost(batch, rows)
    assert_same_samples(batch.select(["responses", "rm_scores"]), scored)
    assert "input_ids" in batch.batch.keys()
    assert batch.meta_info == {"step": 3, "temperature": 1.0, REWARD_KEYS: keys_of(rows)}


@given(reward_rows())
def test_a_value_in_an_object_column_is_the_very_object_unless_it_was_a_numpy_number(rows):
    columns = reward_columns(raw_batch(rows).finalize())
    for key, column in columns.items():
        for row, value in zip(rows, column, strict=True):
            if column.dtype != object or not row or key not in row or value is row[key]:
                continue
            assert type(value) in (bool, int, float, complex, np.longdouble)
            assert isinstance(row[key], np.generic | np.ndarray | torch.Tensor)
            assert row[key].ndim == 0


@given(reward_rows())
def test_no_numpy_number_is_left_in_an_object_column(rows):
    for column in reward_columns(raw_batch(rows).finalize()).values():
        for value in column if column.dtype == object else ():
            number = isinstance(value, np.bool_ | np.number) and not isinstance(value, np.timedelta64)
            assert not number or not alike(value.item(), float(value.real)), "a Python number would have held it"


@example([{"acc": None}, {}, None, {"acc": 1.0}], "acc")
@given(reward_rows(), st.sampled_from(ANY_KEYS))
def test_a_raw_column_tells_a_missing_value_from_an_explicit_none(rows, key):
    column = SparseNonTensor(rows)
    assert column.present(key).tolist() == [row is not None and key in row for row in rows]
    assert column.keys() == keys_of(rows)


@given(reward_rows(), reward_rows(), st.sampled_from(NAMES))
def test_two_raw_columns_flatten_to_names_that_keep_them_apart(rows, others, name):
    rows, others = rows[: len(others)], others[: len(rows)]
    batch = raw_batch(rows)
    batch.non_tensor_batch[name] = SparseNonTensor(others)
    batch.finalize(keep_raw=False)
    assert_nothing_lost(batch, rows)
    assert batch.meta_info[REWARD_KEYS] == keys_of(rows)
    assert_nothing_lost(DataProto(batch=batch.batch, non_tensor_batch=flat(batch, name)), others)
