"""The trainer's `batch.union(output)` after a real rollout, with the plugin: nothing is overwritten, nothing lost.

Batches are split, generated, scored and united as `RayPPOTrainer.fit` and `_validate` do it, by verl's own methods.
"""

import copy

import numpy as np
import pytest
import rollouts
import torch
from oracle import keys_of
from rollouts import emitting, lost, lost_or_raised, up_to_extra_fields
from verl import DataProto
from verl.protocol import pad_dataproto_to_divisor, unpad_dataproto
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.reward import extract_reward

from verl_ext import FieldCollisionError, SparseNonTensor, attach_reward_extra_info
from verl_ext.column import MANAGER_FINALIZES
from verl_ext.demo import rig
from verl_ext.plugin._site import holding

pytestmark = pytest.mark.ray

MIXED = ("gsm8k dapo odd", "dapo nothing gsm8k")
UNIFORM = ("dapo dapo", "dapo dapo")
OTHER = "a column of the batch it is united with, with other values"


@pytest.fixture(scope="module")
def loops(model_dir, rows):
    loops = rollouts.Rollouts(model_dir, rows, workers=2)
    yield loops
    loops.release()


def dataset_batch(rows):
    """A batch as the trainer takes it from its data loader, with the `uid`s that it adds."""
    columns = rig.prompt_batch(rows).non_tensor_batch
    return DataProto.from_dict(tensors={"dummy_tensor": torch.zeros(len(rows), 1)}, non_tensors=columns)


def split(batch):
    """What the trainer keeps of `batch`, and what it generates with: by verl's own method, which needs no trainer."""
    return batch, RayPPOTrainer._get_gen_batch(None, batch)


def train(loops, rows, n=1):
    """A training step up to the rewards: the batch that the trainer goes on with."""
    batch, prompts = split(dataset_batch(rows))
    output = loops.manager(2, scorers=loops.scorers).generate_sequences(prompts.repeat(n, interleave=True))
    del output.meta_info["timing"]
    return batch.repeat(n, interleave=True).union(output)


def validate(loops, rows):
    """A validation step up to the rewards, padded so that the workers get equal shares."""
    batch, prompts = split(dataset_batch(rows))
    prompts.meta_info["validate"] = True
    padded, pad = pad_dataproto_to_divisor(prompts, 2)
    output = loops.manager(2, scorers=loops.scorers).generate_sequences(padded)
    return batch.union(unpad_dataproto(output, pad_size=pad))


def colocated(loops, rows):
    """A rollout that nothing scores: the trainer's batch, the output, and the manager that scores afterwards."""
    batch, prompts = split(dataset_batch(rows))
    output = loops.manager(2).generate_sequences(prompts)
    del output.meta_info["timing"]
    return batch, output, loops.rewards


def colocated_training(loops, rows):
    """As `fit`: the batch is united with the output, then scored, then united with its rewards."""
    batch, output, rewards = colocated(loops, rows)
    batch = batch.union(output)
    return batch.union(rewards.compute_rm_score(batch))


def colocated_validation(loops, rows):
    """As `_validate`: the output is scored, then united with its rewards, then the batch with both."""
    batch, output, rewards = colocated(loops, rows)
    return batch.union(output.union(rewards.compute_rm_score(output)))


STEPS = [train, validate, colocated_training, colocated_validation]
steps = pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
two_orders = pytest.mark.parametrize("step", STEPS[2:], ids=lambda step: step.__name__)


def snapshot(batch):
    """All that a batch holds, by identity of its arrays and tensors."""
    tensors = {name: id(tensor) for name, tensor in batch.batch.items()} if batch.batch is not None else {}
    return (
        tensors,
        {name: id(column) for name, column in batch.non_tensor_batch.items()},
        copy.deepcopy(batch.meta_info),
    )


def refused(one, other):
    """The collision that stops `one.union(other)`, once it is known that both are as they were."""
    before = snapshot(one), snapshot(other)
    with pytest.raises(FieldCollisionError) as caught:
        one.union(other)
    assert (snapshot(one), snapshot(other)) == before
    return caught.value


def unscored_with(loops, infos):
    """The trainer's batch, and a rollout whose output carries `infos` as a raw column that nobody has finalized."""
    batch, output, _ = colocated(loops, loops.rows[: len(infos)])
    with holding(MANAGER_FINALIZES, True):
        return batch, attach_reward_extra_info(output, infos)


# --- what the trainer goes on with -------------------------------------------------------------------------------


@steps
def test_mixed_rewards_reach_the_trainer_whole_where_stock_verl_fails_or_loses_some(step, loops, stock):
    rows = loops.kinds(*MIXED)
    infos, scores = loops.emitted(rows)

    batch = step(loops, rows)

    assert lost(batch.non_tensor_batch, infos) == []
    tensor, columns = extract_reward(batch)
    assert list(columns) == keys_of(infos)
    assert tensor.sum(dim=1).tolist() == pytest.approx(scores)
    assert [row["index"] for row in batch.non_tensor_batch["extra_info"]] == [r["extra_info"]["index"] for r in rows]
    assert not any(isinstance(column, SparseNonTensor) for column in batch.non_tensor_batch.values())
    with stock():
        assert lost_or_raised(lambda: step(loops, rows), infos)


def test_n_rollouts_of_each_prompt_are_united_with_its_row(loops):
    rows = loops.kinds("gsm8k dapo")
    infos, _ = loops.emitted(rows)
    batch = train(loops, rows, n=2)
    assert lost(batch.non_tensor_batch, [info for info in infos for _ in range(2)]) == []


@steps
def test_uniform_rewards_reach_the_trainer_bit_for_bit_as_on_stock_verl(step, loops, stock):
    rows = loops.kinds(*UNIFORM)
    ours = step(loops, rows)
    with stock():
        theirs = step(loops, rows)

    assert type(ours) is DataProto
    assert list(ours.batch.keys()) == list(theirs.batch.keys())
    assert all(ours.batch[name].equal(tensor) for name, tensor in theirs.batch.items())
    assert ours.non_tensor_batch.keys() == theirs.non_tensor_batch.keys()
    assert up_to_extra_fields(ours.non_tensor_batch) == up_to_extra_fields(theirs.non_tensor_batch)
    for name, column in theirs.non_tensor_batch.items():
        assert ours.non_tensor_batch[name].dtype == column.dtype
        assert name == "uid" or ours.non_tensor_batch[name].tolist() == column.tolist()
    metas = [{name: value for name, value in batch.meta_info.items() if name != "timing"} for batch in (ours, theirs)]
    assert metas[0] == metas[1]


# --- names that are taken ----------------------------------------------------------------------------------------

WHERE = {
    "responses": "a tensor of the batch that was scored",
    "rm_scores": "a tensor of this batch",
}
"""Where a name is taken for the reward loop already; the others are refused by `union`."""


@two_orders
@pytest.mark.parametrize("case", rollouts.collisions(), ids=lambda case: case["key"])
def test_scored_afterwards_a_key_that_names_any_field_is_refused_at_the_first_batch(case, step, loops):
    rows = [emitting(row, {"acc": 1.0, case["key"]: "mine"}) for row in loops.rows[:2]]
    with pytest.raises(FieldCollisionError) as caught:
        step(loops, rows)
    assert caught.value.collisions == {case["key"]: WHERE.get(case["key"], OTHER)}
    assert f"'reward_{case['key']}'" in str(caught.value)


@pytest.mark.parametrize("key", ["uid", "data_source", "__num_turns__", "turn_scores"])
def test_a_refused_union_leaves_both_sides_as_they_were(key, loops):
    batch, output, rewards = colocated(loops, [emitting(row, {"acc": 1.0, key: "mine"}) for row in loops.rows[:2]])
    scored = rewards.compute_rm_score(output)
    assert refused(output, scored).collisions == {key: OTHER}
    assert refused(scored, output).collisions == {key: OTHER}
    batch.union(output)
    assert refused(batch, scored).collisions == {key: OTHER}


def test_a_key_that_names_a_column_which_a_trainer_keeps_of_its_own_accord_is_refused(loops):
    batch, prompts = split(dataset_batch([emitting(row, {"level": "easy"}) for row in loops.rows[:2]]))
    batch.non_tensor_batch["level"] = np.array(["hard", "hard"], dtype=object)
    output = loops.manager(2, scorers=loops.scorers).generate_sequences(prompts)
    assert refused(batch, output).collisions == {"level": OTHER}


def test_all_collisions_are_named_at_once(loops):
    rows = [emitting(row, {"uid": 0, "acc": 1.0, "data_source": 0}) for row in loops.rows[:2]]
    _, output, rewards = colocated(loops, rows)
    assert refused(output, rewards.compute_rm_score(output)).collisions == {"uid": OTHER, "data_source": OTHER}


def test_a_key_with_the_values_that_the_field_has_is_no_collision(loops):
    rows = [emitting(row, {"index": row["extra_info"]["index"], "acc": 1.0}) for row in loops.rows[:4]]
    batch = colocated_training(loops, rows)
    assert batch.meta_info["reward_extra_keys"] == ["index", "acc"]
    assert batch.non_tensor_batch["index"].tolist() == [0, 1, 2, 3]
    assert batch.non_tensor_batch["index"].dtype == object, "the trainer's own column stays"


def test_equal_numbers_are_equal_in_any_dtype(loops):
    rows = [emitting(loops.rows[0], {"acc": 1.0}), emitting(loops.rows[1], {"acc": float("nan")})]
    _, output, rewards = colocated(loops, rows)
    output.union(rewards.compute_rm_score(output))
    other = copy.deepcopy(output)
    other.non_tensor_batch["acc"] = np.array([1, float("nan")], dtype=object)
    output.union(other)
    assert output.non_tensor_batch["acc"].dtype == np.float64
    other.non_tensor_batch["acc"] = np.array([1, None], dtype=object)
    assert refused(output, other).collisions == {"acc": OTHER}


def test_uniting_twice_changes_nothing(loops):
    rows = loops.kinds(*MIXED)
    batch, output, rewards = colocated(loops, rows)
    scored = rewards.compute_rm_score(output)
    batch.union(output).union(scored)
    names, before = list(batch.non_tensor_batch), snapshot(batch)[2]
    batch.union(output).union(scored)
    assert list(batch.non_tensor_batch) == names
    assert batch.meta_info == before


# --- raw columns -------------------------------------------------------------------------------------------------

INFOS = [{"acc": 1.0}, {"acc": 0.0, "pred": "7"}]


@pytest.mark.parametrize("cls", ["ours", "verl's"])
def test_a_raw_column_is_finalized_by_the_union_and_never_carried_as_data(cls, loops):
    batch, raw = unscored_with(loops, INFOS)
    if cls == "verl's":  # a plain batch that carries the column
        raw = DataProto(batch=raw.batch, non_tensor_batch=raw.non_tensor_batch, meta_info=raw.meta_info)
    for united in (copy.deepcopy(batch).union(raw), copy.deepcopy(raw).union(batch)):
        assert lost(united.non_tensor_batch, INFOS) == []
        assert type(united.non_tensor_batch["reward_extra_info"]) is np.ndarray
        assert united.non_tensor_batch["reward_extra_info"].tolist() == INFOS
    assert isinstance(raw.non_tensor_batch["reward_extra_info"], SparseNonTensor), "the argument is not changed"


def test_a_raw_column_whose_keys_name_fields_is_refused_and_stays_raw(loops):
    batch, raw = unscored_with(loops, [{"acc": 1.0}, {"acc": 0.0, "turn_scores": 1}])
    for one, other in ((batch, raw), (raw, batch)):
        error = refused(one, other)
        assert error.collisions == {"turn_scores": "a column of this batch"}
        assert error.origin["turn_scores"].startswith("first in row 1")


def test_reward_keys_of_both_sides_are_united_in_order(loops, stock):
    batch, output, rewards = colocated(loops, [emitting(row, {"pred": "7", "acc": 1.0}) for row in loops.rows[:2]])
    batch.union(output)
    batch.meta_info["reward_extra_keys"] = ["format", "acc"]
    batch.non_tensor_batch.update(format=np.array([1.0, 0.0]), acc=np.array([1.0, 1.0]))
    scored = rewards.compute_rm_score(output)
    batch.batch["rm_scores"] = scored.batch["rm_scores"]
    with stock(), pytest.raises(AssertionError):
        copy.deepcopy(batch).union(scored)
    batch.union(scored)
    assert batch.meta_info["reward_extra_keys"] == ["format", "acc", "pred"]
    assert {"format", "acc", "pred"} <= batch.non_tensor_batch.keys()


# --- all else is verl's own ---------------------------------------------------------------------------------------


def test_what_is_no_reward_key_conflicts_as_on_stock_verl_and_leaves_both_sides_as_they_were(loops):
    batch, output, rewards = colocated(loops, loops.kinds("gsm8k dapo"))
    batch.union(output)
    scored = rewards.compute_rm_score(output)
    scored.batch["another"] = torch.zeros(2)
    scored.batch["responses"] = torch.zeros(2)
    before = snapshot(batch)
    with pytest.raises(AssertionError, match="responses in tensor_dict1 and tensor_dict2 are not the same object"):
        batch.union(scored)
    assert snapshot(batch) == before
