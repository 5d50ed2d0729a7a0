"""Batches that a trainer joins after it has united them, as dynamic sampling does: plain `DataProto`s with rewards."""

import copy

import numpy as np
import pytest
import torch
from marks import slow_after
from verl import DataProto
from verl.trainer.ppo.reward import extract_reward
from verl.utils import tensordict_utils as tu

from . import recipes
from .recipes import joined, united
from .surroundings import (
    DAPO,
    GSM8K,
    assert_same,
    assert_whole,
    infos_of,
    lost,
    orders,
    outcome,
    prompts,
    rows_of,
)

SCHEMAS = {
    "the short schema first": ([GSM8K, GSM8K], [DAPO, DAPO]),
    "the long schema first": ([DAPO, DAPO], [GSM8K, GSM8K]),
    "no keys first": ([{}, {}], [DAPO, DAPO]),
    "no keys last": ([DAPO, DAPO], [{}, {}]),
    "nothing in common": ([{"judge": "good"}], [{"steps": 3}]),
    "three batches": ([GSM8K], [DAPO], [{"acc": 0.5, "judge": "bad"}]),
}


@pytest.mark.parametrize("batches", SCHEMAS.values(), ids=SCHEMAS)
def test_batches_of_different_schemas_are_joined_with_every_value_at_its_row(batches, verl, stock):
    assert_whole(joined(verl, *batches), [info for batch in batches for info in batch])
    with stock():
        assert isinstance(outcome(lambda: joined(verl, *batches)), AssertionError)


@pytest.mark.parametrize("order", slow_after(6, orders(rows=4)))
def test_all_orders_of_two_schemas_over_two_batches_are_joined_with_every_value_at_its_row(order, verl):
    infos = infos_of(order)
    assert_whole(joined(verl, infos[:2], infos[2:]), infos)


def test_an_optional_key_that_a_later_row_has_is_no_crash_where_stock_trains_without_it(verl, stock):
    rare = {**GSM8K, "truncated": True}
    with stock():
        theirs = joined(verl, [GSM8K, rare], [GSM8K, GSM8K])
        assert lost(theirs, [GSM8K, rare, GSM8K, GSM8K]) == [
            (row, "truncated", True if row == 1 else None) for row in range(4)
        ]
    assert_whole(joined(verl, [GSM8K, rare], [GSM8K, GSM8K]), [GSM8K, rare, GSM8K, GSM8K])


BENT = {
    "numbers beside text": ([42, 7], ["x", "yy"]),
    "text beside numbers": (["x", "yy"], [42, 7]),
    "an integer that float64 cannot hold beside floats": ([2**53 + 1, 1], [0.5, 1.5]),
    "lists of other lengths": ([[1, 2], [3, 4]], [[1, 2, 3], [4, 5, 6]]),
    "None beside numbers": ([None, None], [0.5, 1.5]),
}


@pytest.mark.parametrize("values", BENT.values(), ids=BENT)
def test_values_that_numpy_bends_or_refuses_are_joined_as_they_were(values, verl, stock):
    batches = [[{"acc": 1.0, "value": value} for value in part] for part in values]
    infos = [info for batch in batches for info in batch]
    with stock():
        theirs = outcome(lambda: joined(verl, *batches))
    assert isinstance(theirs, ValueError) or values[0][0] is None or lost(theirs, infos) != []
    assert_whole(joined(verl, *batches), infos)


@pytest.mark.parametrize("infos", [[GSM8K] * 2, [DAPO] * 2, [{}] * 2, [{"vector": [1, 0.5], "text": "a"}] * 2], ids=str)
def test_batches_of_one_schema_are_joined_bit_for_bit_as_on_stock_and_in_the_same_class(infos, verl, stock):
    with stock():
        theirs = joined(verl, infos, infos)
    assert_same(joined(verl, infos, infos), theirs)


def test_batches_that_hold_no_rewards_go_through_verls_own_code(verl, stock):
    batches = [DataProto.from_single_dict({"prompts": torch.ones(2, 1), name: np.array([1, 2])}) for name in "ab"]
    with stock():
        theirs = outcome(lambda: DataProto.concat(batches))
    ours = outcome(lambda: DataProto.concat(batches))
    assert (type(ours), str(ours)) == (type(theirs), str(theirs))


# --- what happens to a batch on the way -------------------------------------------------------------------------


def _loaded_again(batch, tmp_path):
    batch.save_to_disk(tmp_path / "batch")
    return DataProto.load_from_disk(tmp_path / "batch")


def _reordered(batch):
    batch.reorder(torch.tensor([1, 0]))
    return batch


def _made_anew(batch):
    """As a recipe that puts a batch together by itself from the parts of another."""
    return DataProto.from_single_dict({**batch.batch, **batch.non_tensor_batch}, meta_info=dict(batch.meta_info))


def _united_again(batch):
    return batch.union(DataProto.from_single_dict({"old_log_probs": torch.zeros(len(batch), 1)}))


WAYS = {
    "a list of indices": (lambda batch, _: batch[[1, 0]], [1, 0]),
    "a mask": (lambda batch, _: batch[np.array([False, True])], [1]),
    "a slice": (lambda batch, _: batch[1:], [1]),
    "select": (lambda batch, _: batch.select(deepcopy=True), [0, 1]),
    "select_idxs": (lambda batch, _: batch.select_idxs([1]), [1]),
    "pop of its tensors": (lambda batch, _: (batch.pop(batch_keys=["input_ids"]), batch)[1], [0, 1]),
    "repeat": (lambda batch, _: batch.repeat(2, interleave=True), [0, 0, 1, 1]),
    "reorder": (lambda batch, _: _reordered(batch), [1, 0]),
    "chunk": (lambda batch, _: batch.chunk(2)[1], [1]),
    "from_single_dict": (lambda batch, _: _made_anew(batch), [0, 1]),
    "union with a worker's answer": (lambda batch, _: _united_again(batch), [0, 1]),
    "deep copy, which goes by pickle": (lambda batch, _: copy.deepcopy(batch), [0, 1]),
    "save and load": (_loaded_again, [0, 1]),
}


@pytest.mark.parametrize(("way", "rows"), WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("dicts", [True, False], ids=["with the dicts", "without the dicts"])
def test_what_marks_a_batch_survives_this_way_to_the_join(way, rows, dicts, verl, tmp_path):
    parts, infos = [], []
    for part in ([GSM8K, {**GSM8K, "judge": "good"}], [DAPO, {**DAPO, "pred": None}]):
        batch = united(verl, part)
        if not dicts:
            del batch.non_tensor_batch["reward_extra_info"]
        parts.append(way(batch, tmp_path))
        infos += [part[row] for row in rows]
    assert_whole(DataProto.concat(parts), infos)


def test_a_joined_batch_goes_on_through_chunks_and_tensordicts_to_the_workers(verl):
    infos = [GSM8K, {}, DAPO, {"judge": ["a", {"b": 1}]}]
    batch = joined(verl, infos[:2], infos[2:])
    chunks = [DataProto.from_tensordict(chunk.to_tensordict()) for chunk in batch.chunk(2)]
    assert lost(DataProto.concat(chunks), infos) == []


def test_tensordicts_of_different_schemas_are_joined_by_verls_helper_with_every_value_at_its_row(verl, stock):
    if not hasattr(tu, "concat_tensordict"):
        pytest.skip("this verl has no such helper")

    def through_tensordicts():
        parts = [recipes.scored(united(verl, [info])).to_tensordict() for info in (GSM8K, DAPO)]
        return DataProto.from_tensordict(tu.concat_tensordict(parts))

    with stock():
        theirs = outcome(through_tensordicts)
    assert isinstance(theirs, Exception) or lost(theirs, [GSM8K, DAPO]) != []
    assert lost(through_tensordicts(), [GSM8K, DAPO]) == []


# --- samples that a recipe has scored one by one ------------------------------------------------------------------


def _scored_one_by_one(verl, infos, fails=()):
    rows = rows_of(infos)
    for row in fails:
        rows[row]["extra_info"]["fails"] = True
    outputs = [verl.manager(scores=False).generate_sequences(prompts([row])) for row in rows]
    answers = []
    for output, row in zip(outputs, rows, strict=True):
        output.meta_info.pop("timing", None)
        output.non_tensor_batch["extra_info"][0] = row["extra_info"]
        answers.append(outcome(lambda output=output: verl.scorer.compute_score.remote(output).get()))
    return outputs, [None if isinstance(answer, Exception) else answer for answer in answers]


@pytest.mark.parametrize("failed", [0, 1], ids=["of the first sample", "of the second"])
def test_a_group_of_which_the_scoring_failed_is_joined_with_others(failed, verl, stock):
    """As the reward_queue recipe: the keys are those of a group's first sample; none where its scoring failed."""

    def batch():
        groups = [_scored_one_by_one(verl, [GSM8K, GSM8K], [failed]), _scored_one_by_one(verl, [GSM8K, GSM8K])]
        return DataProto.concat([recipes.of_first_sample(*group) for group in groups])

    with stock():
        theirs = outcome(batch)
        assert isinstance(theirs, AssertionError) == (failed == 0)
    ours = batch()
    acc = [1.0] * 4
    acc[failed] = None
    assert ours.non_tensor_batch["acc"].tolist() == ([None, None, 1.0, 1.0] if failed == 0 else acc)
    assert extract_reward(ours)[1].keys() == {"acc"}
