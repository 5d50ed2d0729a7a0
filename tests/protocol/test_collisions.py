"""Reward keys whose name is taken in the batch, or reserved elsewhere: refused by name, before anything changes."""

from __future__ import annotations

import pytest
import torch
from batches import batch_of, columns_of, scored, snapshot
from cases import cases
from strategies import objects

from verl_ext.column import RAW_COLUMN, SparseNonTensor
from verl_ext.errors import FieldCollisionError
from verl_ext.protocol import SparseDataProto


def test_finalizing_again_with_a_name_that_was_not_reserved_before_refuses_it() -> None:
    batch = batch_of().finalize()
    before = snapshot(batch)
    with pytest.raises(FieldCollisionError, match="'acc' is already a column of the prompts"):
        batch.finalize(reserved={"acc": "a column of the prompts", "uid": "another"})
    assert snapshot(batch) == before


COLLISIONS = [
    pytest.param(case["key"], case["where"], id=case["name"])
    for case in cases("collisions.json")
    if case["key"] != RAW_COLUMN  # is carried: see "a reward key that is called as the raw column"
]

OUTPUT = dict.fromkeys(("__num_turns__", "turn_scores", RAW_COLUMN), "a column that the agent loop writes")
PROMPTS = dict.fromkeys(("data_source", "reward_model", "extra_info", "uid"), "a column of the prompts")


@pytest.mark.parametrize(("key", "where"), COLLISIONS)
def test_a_reward_key_is_refused_by_name_where_it_would_overwrite_something(key: str, where: str) -> None:
    batch = scored([{"acc": 1.0}, {key: "x"}])
    del batch.non_tensor_batch["uid"]
    batch.batch["responses"] = torch.zeros(2, 3)
    before = snapshot(batch)
    if where == "allowed":
        assert columns_of(batch.finalize(reserved={**OUTPUT, **PROMPTS}))[key] == ("object", [None, "x"])
        return
    with pytest.raises(FieldCollisionError, match=rf"'{key}' \(first in row 1\) is already ") as caught:
        batch.finalize(reserved={**OUTPUT, **PROMPTS})
    place = {"batch": "a tensor of this batch", "prompts": PROMPTS.get(key), "output": OUTPUT.get(key)}[where]
    assert caught.value.collisions == {key: place}
    assert snapshot(batch) == before


@pytest.mark.parametrize("keep_raw", [True, False])
def test_all_collisions_are_named_at_once_with_the_row_and_the_data_source(keep_raw: bool) -> None:
    sources = objects(["openai/gsm8k", "math_dapo", "math_dapo", "x\x1b"])
    rows = [{"acc": 1}, {"rm_scores": 1, "uid": 2}, {"reserved": 3, "tool": 4}, {"data_source": 5}]
    batch = scored(rows, data_source=sources, tool=SparseNonTensor([{}] * 4))
    before = snapshot(batch)
    with pytest.raises(FieldCollisionError) as caught:
        batch.finalize(reserved=iter(["reserved", "unused"]), keep_raw=keep_raw)
    assert caught.value.collisions == {
        "rm_scores": "a tensor of this batch",
        "uid": "a column of this batch",
        "reserved": "a reserved name",
        "tool": "the raw column itself",
        "data_source": "a column of this batch",
    }
    assert "'rm_scores' (first in row 1, data source 'math_dapo')" in str(caught.value)
    assert r"'data_source' (first in row 3, data source 'x\x1b')" in str(caught.value)
    assert snapshot(batch) == before


def test_a_reserved_mapping_says_where_and_an_iterable_only_that() -> None:
    with pytest.raises(FieldCollisionError, match=r"'acc' .* is already a column of the prompts"):
        batch_of().finalize(reserved={"acc": "a column of the prompts"})
    for reserved in (["acc"], {"acc"}, ("acc",), (name for name in ["acc"])):
        with pytest.raises(FieldCollisionError, match=r"'acc' .* is already a reserved name"):
            batch_of().finalize(reserved=reserved)
    with pytest.raises(TypeError, match="single str 'acc'"):
        batch_of().finalize(reserved="acc")


def test_two_raw_columns_that_flatten_to_one_name_are_refused_in_either_order() -> None:
    rewards = SparseNonTensor([{"tool/calls": 1}])
    tools = SparseNonTensor([{"calls": 2}])
    for columns, first in (
        ({RAW_COLUMN: rewards, "tool": tools}, RAW_COLUMN),
        ({"tool": tools, RAW_COLUMN: rewards}, "tool"),
    ):
        with pytest.raises(FieldCollisionError, match=rf"'tool/calls' .* is already a key of the raw column '{first}'"):
            SparseDataProto(non_tensor_batch=columns).finalize()


def test_a_key_that_only_a_flattened_name_shares_is_no_collision() -> None:
    batch = SparseDataProto(
        non_tensor_batch={"acc": objects([1]), "tool": SparseNonTensor([{"acc": 2, "tool": 3, "uid": 4}])}
    )
    assert list(batch.finalize(keep_raw=False).non_tensor_batch) == ["acc", "tool/acc", "tool/tool", "tool/uid"]
