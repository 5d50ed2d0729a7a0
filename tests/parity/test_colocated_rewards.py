"""A colocated reward model of the v1 trainer: what verl writes to the queue is written, and the dicts beside it."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from on_stock import on_stock
from queue_in_memory import QueueInMemory
from sites import covers
from values import values_of_a_family
from verl.protocol import DataProto

from verl_ext import FieldCollisionError
from verl_ext.schema import same_value

v1 = pytest.importorskip("verl.trainer.ppo.v1.trainer_base", reason="this verl has no v1 trainer")

KEYS = ["u_0_0", "u_1_0"]


class Batch:
    """What the trainer knows of a batch in the queue."""

    keys, partition_id = KEYS, "train"

    def __len__(self) -> int:
        return len(KEYS)


class RewardModel:
    """A double for the reward loop manager: it has scored the samples, and reports these columns beside the scores."""

    def __init__(self, columns: dict[Any, np.ndarray]) -> None:
        self.columns = columns

    def compute_rm_score(self, data: Any) -> DataProto:
        scores = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        scores[:, 0] = torch.tensor([0.5, 1.0])
        return DataProto.from_dict(
            tensors={"rm_scores": scores}, non_tensors=self.columns, meta_info={"reward_extra_keys": list(self.columns)}
        )


def scored(columns: dict[Any, np.ndarray]) -> dict[str, dict[str, Any]]:
    """The samples in the queue, once the reward model has scored them."""
    queue = QueueInMemory()
    queue.partitions["train"] = {
        key: {
            "prompts": torch.ones(3, dtype=torch.long),
            "responses": torch.ones(2 + row, dtype=torch.long),
            "raw_prompt": [{"role": "user", "content": key}],
            "extra_fields": {"turns": row},
        }
        for row, key in enumerate(KEYS)
    }
    trainer = SimpleNamespace(
        reward_loop_manager=RewardModel(columns),
        tokenizer=SimpleNamespace(pad_token_id=0),
        _lengths_to_mask=v1.PPOTrainer._lengths_to_mask,
    )
    with queue.in_place():
        v1.PPOTrainer._compute_reward_colocate(trainer, Batch())
    return queue.partitions["train"]


def outcome(columns: dict[Any, np.ndarray]) -> Any:
    try:
        return scored(columns)
    except Exception as error:
        return error


@covers("trainer_v1", "PPOTrainer._compute_reward_colocate")
@settings(max_examples=60, deadline=None)
@given(values_of_a_family(len(KEYS)))
def test_what_verl_writes_to_the_queue_is_written_and_the_dicts_beside_it(values):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            columns = {"judge": np.array(values)}
    except Exception:  # ragged, or of a dtype that NumPy lacks: on stock verl the reward loop itself ends here
        assume(False)
    ours = outcome(columns)
    with on_stock():
        stock = outcome(columns)
    if isinstance(stock, Exception):
        assert isinstance(ours, type(stock) | dict)
        return
    for row, key in enumerate(KEYS):
        assert stock[key]["extra_fields"] == {"turns": row}
        for name in ("rm_scores", "judge"):
            assert same_value(ours[key][name], stock[key][name])
        fields = dict(ours[key]["extra_fields"].data)  # as the queue's storage packs a dict
        assert same_value(fields.pop("reward_extra_info").get("judge"), columns["judge"].tolist()[row])
        assert fields == {"turns": row}


def test_what_verl_cannot_put_into_the_queue_is_among_the_dicts_alone():
    steps = np.empty(2, dtype=object)
    steps[:] = [torch.ones(1), torch.ones(2)]
    columns = {"acc": np.array([0.5, 1.0]), "steps": steps, 7: np.array([1, 2])}
    with on_stock():
        for name, refused in (("steps", "doesn't support torch.Tensor"), (7, "")):
            assert refused in str(outcome({name: columns[name]}))
            assert isinstance(outcome({name: columns[name]}), Exception)
    for row, sample in enumerate(scored(columns).values()):
        assert sample["acc"].data == columns["acc"][row]
        assert not {"steps", 7} & sample.keys()
        found = dict(dict(sample["extra_fields"].data)["reward_extra_info"])
        assert torch.equal(found.pop("steps"), steps[row])
        assert found == {"acc": columns["acc"][row], 7: row + 1}


def test_a_key_that_names_a_field_of_the_samples_is_refused():
    with pytest.raises(FieldCollisionError, match="'responses' is already a field of the samples in TransferQueue"):
        scored({"responses": np.array([1, 2])})
