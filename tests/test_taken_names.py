"""Reward keys whose name is taken: with the same values what comes out is what stock verl makes of it, else an error.

Through verl's own agent-loop manager and the trainer's `union`, in one process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("verl")

from agent_loops_in_process import generated, prompts_of
from strategies import objects
from verl.protocol import DataProto
from verl.trainer.ppo.ray_trainer import RayPPOTrainer

from verl_ext import FieldCollisionError, plugin
from verl_ext.column import RAW_COLUMN, SparseNonTensor
from verl_ext.plugin._guard import _samples
from verl_ext.protocol import SparseDataProto

BESIDE_DICTS = f"{RAW_COLUMN}/{RAW_COLUMN}"

in_the_loop = pytest.mark.parametrize("scores_in_the_loop", [True, False], ids=["scored in the loop", "own score"])


@pytest.fixture(autouse=True)
def active_plugin():
    plugin.activate()


def columns_of(batch: Any) -> list[Any]:
    """Names, dtypes and values, in order up to the agent loop's extra fields, which verl collects in a set."""
    columns = [(name, str(column.dtype), column.tolist()) for name, column in batch.non_tensor_batch.items()]
    first_field = [name for name, *_ in columns].index("multi_modal_inputs")
    return columns[:first_field] + sorted(columns[first_field:])


def trained_on(planned: Any, **how: Any) -> Any:
    """The trainer's batch, united with the output of its agent loops."""
    batch = prompts_of(planned)
    RayPPOTrainer._get_gen_batch(None, batch)  # leaves in it what the trainer keeps
    output = generated(planned, **how)
    del output.meta_info["timing"]
    return batch.union(output)


# --- equal values ------------------------------------------------------------------------------------------------

REPEATED = {
    "an extra field, as tau2 repeats it": [
        ({"acc": 1.0, "sample_index": float(n)}, {"sample_index": n}) for n in (3, 4)
    ],
    "an extra field that some samples lack": [({"acc": 1.0, "tries": 2}, {"tries": 2}), ({"acc": 0.0}, {})],
    "an extra field that is a list": [({"turns": (1, 2), "acc": n}, {"turns": [1, 2]}) for n in (0, 1)],
    "the number of turns": [({"acc": n, "__num_turns__": 2.0}, {}) for n in (0, 1)],
    "inputs of images": [({"multi_modal_inputs": {}, "acc": n}, {}) for n in (0, 1)],
}


@in_the_loop
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("planned", REPEATED.values(), ids=REPEATED)
def test_a_key_that_repeats_a_column_of_the_output_comes_out_as_on_stock_verl(
    planned, workers, scores_in_the_loop, stock
):
    ours = generated(planned, workers, scores_in_the_loop)
    keys = list(dict.fromkeys(key for reward, _ in planned for key in reward))
    assert ours.meta_info["reward_extra_keys"] == keys
    if planned is REPEATED["an extra field that some samples lack"]:  # stock verl: KeyError, or other keys by worker
        assert ours.non_tensor_batch["tries"].tolist() == [2, None]
        return
    with stock():
        theirs = generated(planned, workers, scores_in_the_loop)
    assert columns_of(ours) == columns_of(theirs)
    assert ours.meta_info["reward_extra_keys"] == theirs.meta_info["reward_extra_keys"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_key_takes_the_place_of_a_column_that_only_the_agent_loop_reads(workers, stock):
    planned = [({"acc": 1.0, "index": 7, "priority": 2}, {}), ({"acc": 0.0, "index": 8, "priority": 2}, {})]
    ours = generated(planned, workers, scores_in_the_loop=False)
    with stock():
        assert columns_of(ours) == columns_of(generated(planned, workers, scores_in_the_loop=False))
    mixed = generated([({"index": 7}, {}), ({}, {})], workers, scores_in_the_loop=False)
    assert mixed.non_tensor_batch["index"].tolist() == [7, None]


@in_the_loop
def test_a_key_that_repeats_a_column_which_the_trainer_keeps_is_trained_on(scores_in_the_loop, stock):
    planned = [({"reward_model": {"ground_truth": str(n)}, "acc": 1.0}, {}) for n in (0, 1)]
    ours = trained_on(planned, scores_in_the_loop=scores_in_the_loop)
    with stock():
        theirs = trained_on(planned, scores_in_the_loop=scores_in_the_loop)
    for batch in (ours, theirs):
        assert batch.non_tensor_batch["reward_model"].tolist() == [{"ground_truth": "0"}, {"ground_truth": "1"}]
        assert batch.meta_info["reward_extra_keys"] == ["reward_model", "acc"]


@in_the_loop
def test_text_that_repeats_the_data_source_or_the_id_is_no_collision_though_stock_verl_compares_dtypes(
    scores_in_the_loop, stock
):
    planned = [({"data_source": f"source {n}", "uid": f"uid {n}"}, {}) for n in (0, 1)]
    with stock(), pytest.raises(AssertionError, match="are not the same object"):
        trained_on(planned, scores_in_the_loop=scores_in_the_loop)
    batch = trained_on(planned, scores_in_the_loop=scores_in_the_loop)
    assert batch.meta_info["reward_extra_keys"] == ["data_source", "uid"]
    assert batch.non_tensor_batch["data_source"].dtype == object, "the trainer's own column stays"
    assert batch.non_tensor_batch["uid"].tolist() == ["uid 0", "uid 1"]


# --- other values ------------------------------------------------------------------------------------------------


@in_the_loop
def test_keys_with_other_values_are_all_refused_at_once_and_by_place(scores_in_the_loop):
    rewards = {"sample_index": 5, "__num_turns__": 2, "data_source": "source 0", "uid": "mine", "responses": [1, 2]}
    planned = [({**rewards, "acc": 1.0}, {"sample_index": n}) for n in (5, 4)]
    with pytest.raises(FieldCollisionError) as caught:
        generated(planned, scores_in_the_loop=scores_in_the_loop)
    kept = "a column of the batch it is united with, with other values"
    kept = kept if scores_in_the_loop else "a column of this batch"  # which then carries the prompts' columns
    assert caught.value.origin["sample_index"].startswith("first in row 1"), "the first with another value"
    assert caught.value.collisions == {
        "sample_index": "a column of this batch",
        "data_source": kept,
        "uid": kept,
        "responses": "a tensor of this batch",
    }


def test_a_sample_that_lacks_the_key_does_not_repeat_the_column():
    with pytest.raises(FieldCollisionError, match=r"'sample_index' \(first in row 0\) is already a col"):
        generated([({"sample_index": 3}, {"sample_index": 3}), ({}, {"sample_index": 4})])


def test_a_name_is_reserved_whatever_the_values_where_they_are_not_known():
    batch = SparseDataProto(non_tensor_batch={RAW_COLUMN: SparseNonTensor([{"uid": 1}])})
    with pytest.raises(FieldCollisionError, match=r"'uid' .* is already written later"):
        batch.finalize(reserved={"uid": "written later"})
    with pytest.raises(FieldCollisionError, match=r"'uid' .* is already a column of the batch it is united with"):
        batch.finalize(reserved={"uid": np.array([2])})
    assert batch.finalize(reserved={"uid": objects([1.0])}).non_tensor_batch["uid"].tolist() == [1]


def test_names_reserved_with_their_values_are_compared_again_when_the_batch_is_finalized_again():
    batch = SparseDataProto(non_tensor_batch={RAW_COLUMN: SparseNonTensor([{"uid": 1}])}).finalize()
    assert batch.finalize(reserved={"uid": objects([1])}) is batch
    with pytest.raises(FieldCollisionError):
        batch.finalize(reserved={"uid": objects([2])})


# --- a reward key that is called as the raw column ---------------------------------------------------------------

BY_TASK = [
    ({"score": 1.0, RAW_COLUMN: {"steps": 3}}, {}),
    ({"score": 0.0, RAW_COLUMN: {"acc": 0.5, "uid": "not the id"}}, {}),
]


@in_the_loop
@pytest.mark.parametrize("workers", [1, 2])
def test_a_nested_dict_under_the_name_of_the_raw_column_is_carried_beside_the_dicts(workers, scores_in_the_loop, stock):
    nested, rows = [reward[RAW_COLUMN] for reward, _ in BY_TASK], [reward for reward, _ in BY_TASK]
    with stock():
        theirs = trained_on(BY_TASK, workers=workers, scores_in_the_loop=scores_in_the_loop)
    assert theirs.non_tensor_batch[RAW_COLUMN].tolist() == rows, "verl writes its own extra field over the reward key"

    ours = trained_on(BY_TASK, workers=workers, scores_in_the_loop=scores_in_the_loop)
    assert ours.non_tensor_batch[RAW_COLUMN].tolist() == rows
    assert ours.non_tensor_batch[BESIDE_DICTS].tolist() == nested
    assert ours.meta_info["reward_extra_keys"] == ["score", BESIDE_DICTS]
    assert ours.non_tensor_batch["score"].dtype == theirs.non_tensor_batch["score"].dtype
    assert ours.non_tensor_batch["uid"].tolist() == ["uid 0", "uid 1"]


def test_the_dicts_that_stock_verl_writes_over_the_column_of_such_a_key_are_told_from_it(stock):
    with stock():
        theirs = generated(BY_TASK)
    rows = [reward for reward, _ in BY_TASK]
    ours = generated([({"score": 0.5}, {})])
    for batch in (theirs, ours):
        del batch.meta_info["timing"]
    joined = DataProto.concat([ours, theirs])
    assert joined.non_tensor_batch[RAW_COLUMN].tolist() == [{"score": 0.5}, *rows]
    assert joined.non_tensor_batch["score"].tolist() == [0.5, 1.0, 0.0]


def test_where_no_dicts_are_left_the_key_has_its_own_name_as_on_stock_verl():
    nested = [reward[RAW_COLUMN] for reward, _ in BY_TASK]
    scored = SparseDataProto.from_dict(
        {"rm_scores": torch.zeros(2, 1)}, {RAW_COLUMN: SparseNonTensor([reward for reward, _ in BY_TASK])}
    ).finalize(keep_raw=False)
    assert scored.non_tensor_batch[RAW_COLUMN].tolist() == nested
    assert scored.meta_info["reward_extra_keys"] == ["score", RAW_COLUMN]
    batch = prompts_of(BY_TASK).union(scored)
    assert batch.non_tensor_batch[RAW_COLUMN].tolist() == nested
    assert batch.non_tensor_batch["uid"].tolist() == ["uid 0", "uid 1"], "no row, and its keys no columns"
    assert list(_samples(batch)) == [], "nor rows of another schema to the guard of a verl that we do not know"


def test_a_key_that_is_spelt_as_that_column_is_refused():
    rows = [{RAW_COLUMN: 1, BESIDE_DICTS: 2}]
    with pytest.raises(FieldCollisionError, match=f"'{BESIDE_DICTS}' .* is already a key of the raw column"):
        SparseDataProto(non_tensor_batch={RAW_COLUMN: SparseNonTensor(rows)}).finalize()
