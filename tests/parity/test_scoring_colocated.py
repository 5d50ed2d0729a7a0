"""A colocated reward model of the v1 trainer beside ours: what it puts into the queue."""

from __future__ import annotations

import copy
from pathlib import Path
from unittest import mock

import pytest
import torch
from actors import Loops, in_this_process
from compared import carried_by_stock, columns_of_all_families, equal, rows_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sites import covers

from verl_ext import FieldCollisionError
from verl_ext.demo import rig

few = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
BY_RESPONSE = [
    "reward.reward_manager.source=importlib",
    "reward.reward_manager.name=ByResponse",
    f"reward.reward_manager.module.path='{Path(__file__).with_name('colocated.py')}'",
]


class Queue:
    """A double for TransferQueue: samples by key, in this process."""

    def __init__(self, samples):
        self.samples = samples

    def kv_batch_get(self, keys, partition_id, select_fields=None):
        from tensordict import NonTensorStack, TensorDict

        columns = {
            field: [self.samples[key][field] for key in keys] for field in select_fields or self.samples[keys[0]]
        }
        return TensorDict(
            {
                field: torch.nested.as_nested_tensor(column, layout=torch.jagged)
                if isinstance(column[0], torch.Tensor)
                else NonTensorStack(*column)
                for field, column in columns.items()
            },
            batch_size=len(keys),
        )

    def kv_batch_put(self, keys, partition_id, fields):
        for field in fields.keys():
            for key, value in zip(keys, fields.get(field).unbind(0), strict=True):
                self.samples[key][field] = getattr(value, "data", value)


@pytest.fixture(scope="module")
def loops(tmp_path_factory):
    with in_this_process():
        yield Loops(rig.build_model_dir(tmp_path_factory.mktemp("model")), "as_told", *BY_RESPONSE)


def scored(loops, answers, own=None):
    """The samples in the queue after verl's v1 trainer had a colocated reward model score them."""
    import transfer_queue as tq
    from verl.trainer.ppo.v1 import get_trainer_cls

    batch = loops.scored_batch(answers)
    samples = {
        f"uid-{number}_0_0": {
            "prompts": prompt,
            "responses": response[: int(mask.sum())],
            "raw_prompt": raw_prompt,
            "extra_fields": copy.deepcopy(own or {}),
        }
        for number, (prompt, response, mask, raw_prompt) in enumerate(
            zip(
                batch.batch["prompts"],
                batch.batch["responses"],
                batch.batch["response_mask"],
                batch.non_tensor_batch["raw_prompt"],
                strict=True,
            )
        )
    }
    queue = Queue(samples)
    trainer = object.__new__(get_trainer_cls("sync"))
    trainer.reward_loop_manager, trainer.tokenizer = loops.rewards, loops.loop._instance.tokenizer
    meta = tq.KVBatchMeta(keys=list(samples), tags=[{} for _ in samples], partition_id="train")
    with mock.patch.multiple(tq, kv_batch_get=queue.kv_batch_get, kv_batch_put=queue.kv_batch_put):
        trainer._compute_reward_colocate(meta, metrics={})
    return list(samples.values())


@covers("trainer_v1", "PPOTrainer._compute_reward_colocate")
@few
@given(st.integers(1, 3).flatmap(columns_of_all_families))
def test_what_a_colocated_reward_model_reports_is_where_verl_puts_it_and_among_the_extra_fields(loops, stock, columns):
    rows = [{"score": 0.5, **row} for row in rows_of(carried_by_stock(columns))]
    answers = [lambda row=row: copy.copy(row) for row in rows]
    ours = scored(loops, answers)
    with stock():
        theirs = scored(loops, answers)
    for sample, their_sample, row in zip(ours, theirs, rows, strict=True):
        assert equal(sample.pop("extra_fields"), {"reward_extra_info": row})
        assert their_sample.pop("extra_fields") == {}
        assert list(sample) == list(their_sample)
        assert [field for field in sample if not equal(sample[field], their_sample[field])] == []


def test_what_verl_cannot_put_into_the_queue_is_among_the_extra_fields_alone(loops, stock):
    rows = [{"score": 0.5, "steps": torch.tensor([1.0])}, {"score": 0.25, "steps": torch.tensor([1.0, 2.0])}]
    answers = [lambda row=row: dict(row) for row in rows]
    with stock(), pytest.raises(ValueError, match="inhomogeneous"):
        scored(loops, answers)
    for sample, row in zip(scored(loops, answers), rows, strict=True):
        assert equal(sample["extra_fields"], {"reward_extra_info": row})
        assert "steps" not in sample
        assert sample["score"] == row["score"]


def test_what_the_agent_loop_reported_stays_beside_it(loops):
    own = {"reward_extra_info": {"turn": 1, "score": 9.0}, "sandbox": "s-1"}
    (sample,) = scored(loops, [lambda: {"score": 0.5}], own)
    assert sample["extra_fields"] == {"reward_extra_info": {"turn": 1, "score": 0.5}, "sandbox": "s-1"}


def test_a_key_that_names_a_field_of_the_samples_is_refused(loops):
    with pytest.raises(FieldCollisionError, match="'responses' is already a field of the samples in TransferQueue"):
        scored(loops, [lambda: {"score": 0.5, "responses": 1}])
