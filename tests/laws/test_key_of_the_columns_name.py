"""Laws 1 and 2 for a reward key that is called as the raw column."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from law_batches import (
    RAW,
    REWARD_KEYS,
    as_plain,
    assert_same_columns,
    assert_same_samples,
    chunks_of,
    forms_for,
    prompts_of,
    raw_batch,
    reward_columns,
    reward_rows,
)
from oracle import keys_of
from strategies import alike, cuts, objects, reward_values

from verl_ext.protocol import SparseDataProto, guarded_union

BESIDE_DICTS = f"{RAW}/{RAW}"
"""The column of such a key where the rows' dicts are left behind under its name; else the name is free."""


@st.composite
def rows_of_rows(draw: st.DrawFn) -> list:
    """Rows of which some have a key as the raw column, with dicts that name columns of the batch among the values."""
    rows = [dict(row or {}) for row in draw(reward_rows())] + [{}]
    misleading = st.fixed_dictionaries({"uid": st.integers(), "__num_turns__": st.integers(), "acc": st.floats()})
    for row in draw(st.lists(st.sampled_from(rows), min_size=1)):
        row[RAW] = draw(misleading | reward_values())
    return rows


@given(rows_of_rows(), st.booleans())
def test_a_reward_key_that_is_called_as_the_raw_column_has_a_column_and_every_value_arrives(rows, keep_raw):
    batch = raw_batch(rows).finalize(keep_raw=keep_raw)
    name = BESIDE_DICTS if keep_raw else RAW
    assert batch.meta_info[REWARD_KEYS] == [name if key == RAW else key for key in keys_of(rows)]
    assert all(map(alike, batch.non_tensor_batch[name], [row.get(RAW) for row in rows]))
    if keep_raw:
        assert all(one is other for one, other in zip(batch.non_tensor_batch[RAW], rows, strict=True))


@given(rows_of_rows(), st.data())
def test_its_column_is_the_same_however_the_rows_are_cut_and_finalized(rows, data):
    cut = data.draw(cuts(len(rows)), label="cut")
    forms = data.draw(forms_for(cut, scores=True), label="forms")
    whole = raw_batch(rows).finalize()
    batch = SparseDataProto.concat(chunks_of(rows, cut, forms)).finalize()
    keeps_dicts = any("dropped" not in form and length for form, length in zip(forms, cut, strict=True))
    name = BESIDE_DICTS if keeps_dicts else RAW
    assert_same_columns({RAW: batch.non_tensor_batch[name]}, {RAW: whole.non_tensor_batch[BESIDE_DICTS]})
    assert_same_columns(reward_columns(batch), reward_columns(whole))
    assert_same_samples(batch, whole)
    keys = [RAW if key == name else key for key in batch.meta_info[REWARD_KEYS]]
    assert keys == keys_of(rows)


@given(rows_of_rows(), st.booleans(), st.booleans())
def test_its_column_and_the_dicts_of_another_batch_are_told_apart_by_a_union(rows, keep_raw, swapped):
    scored = raw_batch(rows).finalize(keep_raw=keep_raw)
    with_dicts = prompts_of(scored, **{RAW: objects([{"turns": number} for number in range(len(rows))])})
    if keep_raw:
        del with_dicts.non_tensor_batch[RAW]
    one, other = (as_plain(with_dicts), scored) if not swapped else (scored, with_dicts)
    united = guarded_union(one, other)
    assert all(map(alike, united.non_tensor_batch[BESIDE_DICTS], [row.get(RAW) for row in rows]))
    dicts = rows if keep_raw else [{"turns": number} for number in range(len(rows))]
    assert all(map(alike, united.non_tensor_batch[RAW], dicts))
