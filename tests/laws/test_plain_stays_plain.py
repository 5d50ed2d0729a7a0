"""Law 3, plain stays plain: of uniform rows comes, bit for bit, what stock verl makes of them."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from law_batches import RAW, REWARD_KEYS, Snapshot, as_plain, assert_bit_for_bit, prompts_of, raw_batch, uniform_rows
from strategies import cuts, objects
from verl.protocol import DataProto

from verl_ext.protocol import SparseDataProto


def stock_batch(rows: list[dict], first: int = 0) -> DataProto:
    """What stock verl makes of uniform rows: one `np.array` per key of the first row."""
    batch = as_plain(raw_batch(rows, first))
    dicts = batch.non_tensor_batch.pop(RAW)
    columns = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    batch.non_tensor_batch |= {**columns, RAW: objects(dicts.tolist())}
    batch.meta_info[REWARD_KEYS] = list(rows[0])
    return batch


@given(uniform_rows(), st.booleans())
def test_uniform_rows_give_bit_for_bit_what_stock_verl_gives(rows, keep_raw):
    stock = stock_batch(rows)
    if not keep_raw:
        del stock.non_tensor_batch[RAW]
    assert_bit_for_bit(raw_batch(rows).finalize(keep_raw=keep_raw), stock)


@given(uniform_rows(min_rows=2), st.data())
def test_uniform_rows_from_several_workers_give_bit_for_bit_what_stock_verl_gives(rows, data):
    at = data.draw(st.integers(1, len(rows) - 1), label="rows in the first chunk")
    metrics = [{"generate": 0.5}, {"generate": 1.5}]
    whole = stock_batch(rows)
    stock = [whole[:at], whole[at:]]
    raw = [raw_batch(rows[:at]), raw_batch(rows[at:], at)]
    for batches in (stock, raw):
        for batch, entry in zip(batches, metrics, strict=True):
            batch.meta_info = {**batch.meta_info, "metrics": [entry]}
    expected = DataProto.concat(stock)
    assert_bit_for_bit(SparseDataProto.concat(raw).finalize(), reordered(expected))
    finalized = SparseDataProto.concat([batch.finalize() for batch in raw])
    assert_bit_for_bit(finalized, expected)
    assert type(finalized) is SparseDataProto
    assert_bit_for_bit(SparseDataProto.concat([raw[0], stock[1]]), expected)
    assert_bit_for_bit(SparseDataProto.concat([stock[0], raw[1]]), expected)


def reordered(stock: DataProto) -> DataProto:
    """`meta_info` as `finalize` leaves it: the reward keys last, since they come after concat."""
    stock = copy.copy(stock)
    stock.meta_info = {**{k: v for k, v in stock.meta_info.items() if k != REWARD_KEYS}, **stock.meta_info}
    keys = stock.meta_info.pop(REWARD_KEYS)
    stock.meta_info[REWARD_KEYS] = keys
    return stock


@given(uniform_rows(), st.booleans())
def test_a_union_of_uniform_rows_is_bit_for_bit_verls_own_union(rows, raw):
    stock = stock_batch(rows)
    prompts = prompts_of(stock)
    ours = SparseDataProto(
        batch=prompts.batch.copy(), non_tensor_batch=dict(prompts.non_tensor_batch), meta_info=dict(prompts.meta_info)
    )
    assert_bit_for_bit(ours.union(raw_batch(rows) if raw else stock), prompts.union(stock))


@given(uniform_rows(), st.data())
def test_concat_of_plain_batches_is_verls_own_concat(rows, data):
    cut = data.draw(cuts(len(rows)), label="cut")
    whole = stock_batch(rows)
    ends = list(itertools.accumulate(cut, initial=0))
    parts = [whole[start:end] for start, end in itertools.pairwise(ends)]
    batch = SparseDataProto.concat(parts)
    assert type(batch) is DataProto
    assert_bit_for_bit(batch, DataProto.concat(parts))


def test_concat_of_batches_without_rewards_calls_verls_own_code_and_hands_on_its_errors(monkeypatch):
    calls = []
    verls_own = DataProto.concat

    def recorded(data):
        calls.append(data)
        return verls_own(data)

    monkeypatch.setattr(DataProto, "concat", staticmethod(recorded))
    plain = [stock_batch([{}]), stock_batch([{}])]
    for number, batch in enumerate(plain):  # a column of dicts, as some trainers have it, is no reward for that
        del batch.meta_info["reward_extra_keys"], batch.non_tensor_batch["reward_extra_info"]
        batch.non_tensor_batch[f"metrics {number}"] = objects([{"acc": 1.0}])
    with pytest.raises(AssertionError):
        SparseDataProto.concat(plain)
    assert calls == [plain]
    assert len(SparseDataProto.concat([*plain, raw_batch([{}])])) == 3
    assert len(calls) == 1, "a batch with rewards among them makes the call ours"


@given(uniform_rows())
def test_finalize_leaves_a_batch_without_raw_columns_alone(rows):
    stock = stock_batch(rows)
    batch = SparseDataProto(batch=stock.batch, non_tensor_batch=stock.non_tensor_batch, meta_info=stock.meta_info)
    before = Snapshot(batch)
    assert batch.finalize() is batch
    before.assert_unchanged()
