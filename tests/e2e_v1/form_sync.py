"""What the rig needs of the trainer in the form that it has in verl 0.8: `verl.trainer.main_ppo_sync`."""

import time
import uuid
from unittest import mock

import numpy as np
import transfer_queue as tq
import verl.trainer.main_ppo_sync as main_ppo_sync  # ModuleNotFoundError where there is none
from verl.utils import tensordict_utils as tu

AgentLoopManager, AgentLoopWorker = main_ppo_sync.AgentLoopManagerTQ, main_ppo_sync.AgentLoopWorkerTQ
PPOTrainer = main_ppo_sync.PPOTrainer

MANAGER = "async_rollout_manager"
PATIENCE = 60
MODES = {"sync": []}


class ReplayBuffer(main_ppo_sync.ReplayBuffer):
    """verl's, which reads what the queue holds when it is asked for samples, not in a thread all the time.

    The thread outlives its trainer. And what it has read just before a batch is dropped, it adds again just after.
    """

    def __init__(self):
        super().__init__(poll_interval=0.05)

    def _poll_from_transfer_queue(self):
        pass

    def sample(self, partition_id, global_steps=None, batch_size=None):
        until = time.monotonic() + PATIENCE
        while not self._finished(partition_id, global_steps):
            if time.monotonic() > until:
                raise TimeoutError(f"no full batch after {PATIENCE} s; the queue holds {dict(self.partitions)}")
            time.sleep(self.poll_interval)
        return super().sample(partition_id, global_steps, batch_size)

    def _finished(self, partition_id, global_steps):
        for partition, items in (tq.kv_list() or {}).items():
            self.add(partition, items)
        return not any(
            tag["status"] == "running" and tag["global_steps"] == global_steps
            for tag in self.partitions[partition_id].values()
        )


def made(config, stand_ins, manager_class):
    """The trainer and what belongs to it, made as `TaskRunner` makes it."""
    runner = main_ppo_sync.TaskRunner.__ray_metadata__.modified_class.__ray_actor_class__()
    with mock.patch.multiple(main_ppo_sync, **stand_ins, AgentLoopManagerTQ=manager_class, ReplayBuffer=ReplayBuffer):
        runner.add_actor_rollout_worker(config)
        runner.add_critic_worker(config)
        runner.init_resource_pool_mgr(config)
        trainer = main_ppo_sync.PPOTrainer(
            config=config,
            role_worker_mapping=runner.role_worker_mapping,
            resource_pool_manager=runner.resource_pool_manager,
        )
        trainer.init_workers()
    trainer._load_checkpoint()  # as `fit` does
    return trainer


def step(trainer, metrics, timing):
    """verl's `step` on the first training batch, and the new weights: the batch."""
    batch = trainer.step(next(iter(trainer.train_dataloader)), metrics, timing)
    trainer.checkpoint_manager.update_weights()
    return batch


def rollout(trainer):
    """The beginning of verl's `step`: the first training batch, as it comes out of the queue."""
    columns = next(iter(trainer.train_dataloader))
    columns["uid"] = np.array([str(uuid.uuid4()) for _ in columns["raw_prompt"]], dtype=object)
    prompts = tu.get_tensordict(columns)
    tu.assign_non_tensor_data(prompts, "global_steps", trainer.global_steps)
    trainer.async_rollout_manager.generate_sequences(prompts)
    return trainer.replay_buffer.sample(partition_id="train", global_steps=trainer.global_steps)


def fit(trainer):
    """verl's `fit`."""
    trainer.fit()


def clear(trainer, batch):
    """Drop a batch that was trained on, as the training loop does."""
    tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)
    trainer.replay_buffer.remove(batch.partition_id, batch.keys)
