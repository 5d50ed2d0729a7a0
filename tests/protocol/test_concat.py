"""`concat`: chunks of unequal schemas, raw and finalized, become one batch; plain ones stay verl's own business."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from batches import (
    BOTH,
    ROWS,
    STATES,
    as_plain,
    assert_holds,
    batch_of,
    columns_of,
    each_state,
    everything,
    finalized,
    plain,
    scored,
    snapshot,
)
from cases import cases
from strategies import objects
from verl import DataProto

from verl_ext import plugin
from verl_ext.column import RAW_COLUMN
from verl_ext.errors import BatchMismatchError, FieldCollisionError
from verl_ext.protocol import SparseDataProto, as_sparse

CONCATS = pytest.mark.parametrize(
    "concat", [SparseDataProto.concat, lambda data: DataProto.concat(data)], ids=["ours", "by verl's name"]
)


@CONCATS
@BOTH
def test_raw_chunks_of_unequal_schemas_become_one_raw_batch(cls: type[DataProto], concat: Any) -> None:
    chunks = [batch_of(cls, [row], first=number) for number, row in enumerate(ROWS)]
    whole = concat(chunks)
    assert type(whole) is SparseDataProto
    assert_holds([whole], everything(4), ROWS)
    assert all(row is original for row, original in zip(whole.non_tensor_batch[RAW_COLUMN], ROWS, strict=True))


@pytest.mark.usefixtures("stock_verl")
def test_stock_verl_refuses_chunks_of_unequal_schemas() -> None:
    with pytest.raises(AssertionError, match="keys of the first dictionary"):
        DataProto.concat([plain(["u0"], acc=[1.0]), plain(["u1"], acc=[1.0], pred=["42"])])
    chunks = [plain(["u0"]), plain(["u1"])]
    chunks[0].meta_info["reward_extra_keys"], chunks[1].meta_info["reward_extra_keys"] = ["acc"], ["pred"]
    with pytest.raises(AssertionError, match="Conflicting values for meta_info key 'reward_extra_keys'"):
        DataProto.concat(chunks)


@CONCATS
@each_state
def test_any_mix_of_raw_and_finalized_chunks_gives_what_the_whole_gives(states: tuple[str, str], concat: Any) -> None:
    rows = [{"acc": 1.0}, {"acc": True, "pred": "42"}, {"acc": 2, "score": 1}]
    chunks = [STATES[states[0]](rows[:1]), STATES[states[1]](rows[1:], first=1)]
    before = [snapshot(chunk) for chunk in chunks]
    whole = as_sparse(concat(chunks)).finalize()
    assert [snapshot(chunk) for chunk in chunks] == before
    assert type(whole) is SparseDataProto
    found = columns_of(whole)
    expected = columns_of(finalized(rows))
    assert {name: found[name] for name in expected} == expected
    assert whole.meta_info == {"step": 7, "reward_extra_keys": ["acc", "pred", "score"]}
    assert whole.batch["number"].tolist() == [0, 1, 2]


def test_the_dicts_that_only_some_chunks_still_hold_stay_where_they_are() -> None:
    whole = DataProto.concat([finalized([{"acc": 1.0}]), finalized([{"acc": 0.0}], first=1, keep_raw=True)])
    assert columns_of(whole)[RAW_COLUMN] == ("object", [None, {"acc": 0.0}])
    assert columns_of(whole)["acc"] == ("float64", [1.0, 0.0])


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)], ids=str)
def test_one_sparse_batch_anywhere_makes_a_concat_of_plain_ones_ours(order: tuple[int, ...]) -> None:
    chunks = [
        batch_of(DataProto, [{"acc": 1.0}, {"pred": "42"}]).pop(["number"], ["uid", RAW_COLUMN]),
        plain(["u2"], acc=[0.5]),
        plain(["u3"], length=[3]),
    ]
    whole = DataProto.concat([chunks[number] for number in order])
    assert type(whole) is SparseDataProto
    values = [[("u0", 1.0, None, None), ("u1", None, "42", None)], [("u2", 0.5, None, None)], [("u3", None, None, 3)]]
    held = [whole.non_tensor_batch[name].tolist() for name in ("uid", "acc", "pred", "length")]
    assert list(zip(*held, strict=True)) == [row for number in order for row in values[number]]


def test_plain_batches_only_give_what_stock_gives() -> None:
    def chunks() -> list[DataProto]:
        batches = [batch_of(DataProto, ROWS, column=objects), batch_of(DataProto, ROWS, column=objects, first=4)]
        for batch in batches:
            batch.non_tensor_batch["width"] = np.arange(4, dtype=np.int32)
            batch.meta_info["metrics"] = [{"loss": 1.0}]
        return batches

    ours, named = SparseDataProto.concat(chunks()), DataProto.concat(chunks())
    plugin.deactivate()
    stock = DataProto.concat(chunks())
    for found in (ours, named):
        assert type(found) is DataProto
        assert columns_of(found) == columns_of(stock)
        assert found.meta_info == stock.meta_info == {"step": 7, "metrics": {"loss": [1.0, 1.0]}}
        for name, tensor in stock.batch.items():
            assert torch.equal(found.batch[name], tensor)


def test_a_concat_of_plain_batches_runs_verls_own_code(stock_verl: None) -> None:
    calls = []
    stock = DataProto.concat

    def spy(data: list[DataProto]) -> DataProto:
        calls.append(len(data))
        return stock(data)

    try:
        DataProto.concat = staticmethod(spy)
        plugin.activate()
        calls.clear()  # the trials of the agent loop, where that is imported
        assert type(DataProto.concat([plain(["u0"]), plain(["u1"])])) is DataProto
        assert calls == [2]
        DataProto.concat([plain(["u0"]), scored([{}])[:0]])
        assert calls == [2]
    finally:
        plugin.deactivate()
        DataProto.concat = staticmethod(stock)


def test_a_plain_conflict_is_still_verls_assertion() -> None:
    with pytest.raises(AssertionError, match="keys of the first dictionary"):
        DataProto.concat([plain(["u0"], acc=[1.0]), plain(["u1"], pred=["42"])])
    with pytest.raises(IndexError):
        DataProto.concat([])


@each_state
def test_0_row_chunks_contribute_neither_keys_nor_dtypes(states: tuple[str, str]) -> None:
    state, empty = states
    nothing = STATES[empty]([{"acc": 0.5, "only here": "x"}], other=np.array(["a"]))[:0]
    nothing.meta_info["reward_extra_keys"] = ["acc", "only here", "gone"]
    for chunks in ([nothing, STATES[state]([{"acc": 1}])], [STATES[state]([{"acc": 1}]), nothing]):
        whole = as_sparse(DataProto.concat(chunks)).finalize(keep_raw=False)
        assert {name: columns_of(whole)[name] for name in ("uid", "acc")} == {
            "uid": ("object", ["u0"]),
            "acc": ("int64", [1]),
        }
        assert not {"other", "only here"} & set(whole.non_tensor_batch)
        assert whole.meta_info == {"step": 7, "reward_extra_keys": ["acc"]}
        assert whole.batch["number"].tolist() == [0]


def test_0_row_chunks_need_no_tensors_but_their_meta_info_counts() -> None:
    nothing = scored([], tensors=False)
    nothing.meta_info["only"] = 1
    assert SparseDataProto.concat([nothing, scored([{}])]).meta_info == {"step": 7, "only": 1}
    nothing.meta_info["step"] = 8
    with pytest.raises(BatchMismatchError, match="step"):
        SparseDataProto.concat([nothing, scored([{}])])


def test_chunks_of_0_rows_alone_give_0_rows() -> None:
    aligned = finalized([])
    for chunks in (
        [scored([]), scored([])],
        [scored([]), aligned],
        [scored([]), aligned, as_plain(aligned)],
        [scored([])],
    ):
        whole = as_sparse(DataProto.concat(chunks)).finalize()
        assert len(whole) == 0
        assert columns_of(whole) == {"uid": ("object", []), RAW_COLUMN: ("object", [])}
        assert whole.batch["rm_scores"].shape == (0, 2)


def test_a_mixed_concat_whose_keys_collide_is_refused_and_changes_nothing() -> None:
    chunks = [finalized([{"acc": 1.0}]), scored([{"uid": "x"}], first=1)]
    before = [snapshot(chunk) for chunk in chunks]
    with pytest.raises(FieldCollisionError, match="'uid'"):
        DataProto.concat(chunks)
    assert [snapshot(chunk) for chunk in chunks] == before


def test_the_result_shares_no_containers_with_its_chunks() -> None:
    for chunks in ([scored(ROWS)], [scored(ROWS), finalized([{"acc": 1.0}], first=4)]):
        before = [snapshot(chunk) for chunk in chunks]
        whole = DataProto.concat(chunks)
        whole.meta_info["new"] = 1
        for column in whole.non_tensor_batch.values():
            column[:1] = None
        whole.batch["rm_scores"][:] = -1
        assert [snapshot(chunk) for chunk in chunks] == before


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in cases("reward_rows.json")])
@pytest.mark.parametrize("state", STATES)
def test_the_reported_batches_come_out_whole_cut_into_single_samples(case: dict[str, Any], state: str) -> None:
    rows = case["rows"]
    whole = as_sparse(DataProto.concat([STATES[state]([row], first=n) for n, row in enumerate(rows)] or [scored([])]))
    found = columns_of(whole.finalize(keep_raw=False))
    assert {key: list(found[key]) for key in case["columns"]} == case["columns"]
    assert whole.meta_info["reward_extra_keys"] == list(case["columns"])
