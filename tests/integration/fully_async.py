"""verl's fully-async rollouter, queue and trainer on a CPU, in surroundings without data sets, servers and models.

Where verl has no such trainer, importing this is a ModuleNotFoundError.
"""

import asyncio
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import ray
import torch
from verl.experimental.fully_async_policy.detach_utils import RolloutSample, prepare_single_generation_data
from verl.experimental.fully_async_policy.fully_async_rollouter import FullyAsyncRollouter
from verl.experimental.fully_async_policy.fully_async_trainer import FullyAsyncTrainer
from verl.experimental.fully_async_policy.message_queue import MessageQueue, MessageQueueClient

from verl_ext.demo import rig

__all__ = ["OLDEST_WEIGHTS", "Rollouter", "Trainer", "message_queue", "rollout_samples"]

OLDEST_WEIGHTS = 3


class Rollouter(FullyAsyncRollouter.__ray_metadata__.modified_class):
    """verl's rollouter in this process, without data sets, servers and the loop that feeds it."""

    def __init__(self, manager, queue):
        self.async_rollout_manager, self.message_queue_client = manager, queue
        self.active_tasks, self.pending_queue = set(), asyncio.Queue()
        self.total_generated_samples = self._step_generated_samples = self.processed_sample_count = 0
        self.staleness_samples = self.dropped_stale_samples = 0
        self.max_required_samples = self.required_samples = self.max_queue_size = self.max_concurrent_samples = 1000
        self.staleness_threshold = 1

    async def send(self, samples, at_once=False):
        """Generate the samples and put them into the queue: one after another, or all at once."""
        for group in [samples] if at_once else [[sample] for sample in samples]:
            await asyncio.gather(*map(self._process_single_sample_streaming, group))


class Trainer(FullyAsyncTrainer.__ray_metadata__.modified_class):
    """verl's trainer in this process, without models, worker groups and a rollouter of its own."""

    def __init__(self, config, queue, required_samples):
        self.config, self.message_queue_client, self.required_samples = config, queue, required_samples
        self.tokenizer, self.use_rm, self.dynamic_schedule_enabled = None, False, False
        self.metrics, self.timing_raw, self._step_wait_times, self._step_wait_samples = {}, {}, [], []
        self.current_param_version, self.stale_trajectory_processed = OLDEST_WEIGHTS + 1, 0
        # two data-parallel ranks, for which `_balance_batch` reorders the rows
        self.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": [0, 1]})


def rollout_samples(rows, config):
    """The rollout samples that verl's rollouter feeds: each for the n answers to one row."""
    samples = []
    for number, row in enumerate(rows):
        batch = {**rig.prompt_batch([row]).non_tensor_batch, "dummy_tensor": torch.zeros(1, 1, dtype=torch.uint8)}
        full_batch = prepare_single_generation_data(batch, config)
        # By this scheduling hint, the recorded client tells the n answers to one prompt apart.
        full_batch.non_tensor_batch["priority"] = np.arange(config.actor_rollout_ref.rollout.n)
        samples.append(RolloutSample(full_batch, f"sample_0_{number}", 0, {}))
    return samples


@contextmanager
def message_queue(config):
    """A client of verl's message queue, which has an actor of its own on the running Ray."""
    actor = MessageQueue.remote(config, 1000)
    try:
        yield MessageQueueClient(actor)
    finally:
        ray.kill(actor)
