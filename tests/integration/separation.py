"""verl's separation and one-step-off trainers on a CPU: their real fit steps, in surroundings without models.

Where verl has no such trainers, importing this is a ModuleNotFoundError.
"""

import asyncio
from types import SimpleNamespace
from unittest import mock

import torch
from verl import DataProto
from verl.experimental.one_step_off_policy.ray_trainer import OneStepOffRayTrainer
from verl.experimental.separation.ray_trainer import SeparateRayPPOTrainer

from verl_ext.demo import rig


class WithoutModels:
    """Surroundings for verl's trainers: what asks a model, or a worker group of models, answers with constants."""

    def __init__(self, config, rollout_manager, reward_manager=None, steps=1):
        self.config, self.async_rollout_manager, self.reward_loop_manager = config, rollout_manager, reward_manager
        self.use_rm = reward_manager is not None
        self.use_critic = self.use_reference_policy = True
        self.checkpoint_manager = SimpleNamespace(sleep_replicas=lambda: None, update_weights=lambda step: None)
        self.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
        self.logger, self.progress_bar = SimpleNamespace(log=lambda **_: None), mock.Mock()
        # two data-parallel ranks, for which `_balance_batch` reorders the rows
        self.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": [0, 1]})
        self.train_dataset = SimpleNamespace(on_batch_end=lambda batch: self.seen.append(batch))
        self.seen = []
        self.global_steps, self.total_training_steps, self.epoch, self.max_steps_duration = 1, steps, 0, 0
        self.prev_step_profile = self.curr_step_profile = self.next_step_profile = False
        self.last_val_metrics = None

    def _compute_old_log_prob(self, batch):
        return DataProto.from_dict(tensors=_zeros(batch, "old_log_probs", "entropys")), 0.0

    def _compute_ref_log_prob(self, batch):
        return DataProto.from_dict(tensors=_zeros(batch, "ref_log_prob"))

    def _compute_values(self, batch):
        return DataProto.from_dict(tensors=_zeros(batch, "values"))

    def _update_critic(self, batch):
        return DataProto(meta_info={"metrics": {"critic/loss": [0.0]}})

    def _update_actor(self, batch):
        return DataProto(meta_info={"metrics": {"actor/loss": [0.0]}})


def _zeros(batch, *names):
    return {name: torch.zeros(batch.batch["responses"].shape) for name in names}


class SeparationTrainer(WithoutModels, SeparateRayPPOTrainer):
    """verl's separation trainer in these surroundings."""

    def train_on(self, batch_dicts):
        for batch_dict in batch_dicts:
            self.fit_step(batch_dict)
        return self.seen


class OneStepOffTrainer(WithoutModels, OneStepOffRayTrainer):
    """verl's one-step-off trainer in these surroundings: each batch is generated while the one before is trained on."""

    def train_on(self, batch_dicts):
        async def fit():  # as `OneStepOffRayTrainer.fit` does once it has loaded a checkpoint and validated
            iterator = iter((0, batch_dict) for batch_dict in batch_dicts)
            future = asyncio.create_task(self._async_gen_next_batch(iterator))
            while future is not None:
                future = await self.fit_step(future, iterator)

        asyncio.run(fit())
        return self.seen


def loaded(rows):
    """The rows as the data loader gives them to the trainer."""
    columns = rig.prompt_batch(rows).non_tensor_batch
    return {**columns, "dummy_tensor": torch.zeros(len(rows), 1, dtype=torch.uint8)}
