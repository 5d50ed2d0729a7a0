"""What the rig needs of the trainer in the form that it has since verl 0.9: `verl.trainer.ppo.v1`."""

import time
from unittest import mock

import transfer_queue as tq
from verl.trainer.ppo.v1 import agent_loop_tq, get_trainer_cls, replay_buffer, trainer_base, trainer_separate_async

from . import doubles

AgentLoopManager, AgentLoopWorker = agent_loop_tq.AgentLoopManagerTQ, agent_loop_tq.AgentLoopWorkerTQ
PPOTrainer, ReplayBuffer = trainer_base.PPOTrainer, replay_buffer.ReplayBuffer

MANAGER = "agent_loop_manager"
"""The trainer's attribute for its agent loop manager."""

PATIENCE = 60
"""Seconds after which a rollout that never finishes is given up; verl would poll for ever."""

# Without batches in advance, which a step may train on instead of its own.
MODES = {
    "sync": ["trainer.v1.trainer_mode=sync"],
    "colocate_async": ["trainer.v1.trainer_mode=colocate_async", "trainer.v1.colocate_async.num_warmup_batches=0"],
    "separate_async": [
        "trainer.v1.trainer_mode=separate_async",
        "trainer.v1.separate_async.num_warmup_batches=0",
        "trainer.v1.separate_async.parameter_sync_step=1",
        "actor_rollout_ref.rollout.nnodes=1",
        "actor_rollout_ref.rollout.n_gpus_per_node=1",
        "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
    ],
}
"""The overrides for each of the trainer's modes."""


def made(config, stand_ins, manager_class):
    """The trainer that the configuration names, set up by its own `init`, and its agent loop manager.

    Args:
        config: verl's.
        stand_ins: doubles by the names of what they stand in for.
        manager_class: the agent loop manager's.
    """
    with (
        mock.patch.multiple(trainer_base, **stand_ins),
        mock.patch.multiple(
            trainer_separate_async,
            LLMServerManager=stand_ins["LLMServerManager"],
            CheckpointEngineManager=doubles.StandaloneCheckpoints,
        ),
    ):
        trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config=config)
        trainer.init()
    trainer.agent_loop_manager = manager_class.create(  # as `TaskRunnerV1` does
        config=config,
        llm_client=trainer.get_llm_client(),
        teacher_client=trainer.get_teacher_client(),
        reward_loop_worker_handles=trainer.get_reward_handles(),
    )
    _be_impatient(trainer.replay_buffer)
    return trainer


def _be_impatient(buffer):
    """Poll more often than every two seconds, and not for ever."""
    buffer.poll_interval = 0.05
    poll, sampled = buffer._wait_for_next_poll, buffer.sample
    until = [0.0]

    def sample(*args, **kwargs):
        until[0] = time.monotonic() + PATIENCE
        return sampled(*args, **kwargs)

    def wait(*args):
        if time.monotonic() > until[0]:
            raise TimeoutError(f"no full batch after {PATIENCE} s; the queue holds {dict(buffer.partitions)}")
        return poll(*args)

    buffer.sample, buffer._wait_for_next_poll = sample, wait


def step(trainer, metrics, timing):
    """verl's `step` and what follows it in the training loop, up to the new weights: the batch."""
    trainer.timing_raw, trainer.curr_step_profile = timing, False
    batch = trainer.step(metrics, timing)
    trainer.on_step_end()
    return batch


def rollout(trainer):
    """The beginning of verl's `step`: a batch, as it comes out of the queue."""
    trainer._add_batch_to_generate()
    size = trainer.config.data.train_batch_size
    return trainer.replay_buffer.sample(trainer.global_steps, "train", size)[0]


def fit(trainer):
    """verl's `fit`."""
    trainer.fit(trainer.agent_loop_manager)


def clear(trainer, batch):
    """Drop a batch that was trained on, as the training loop does."""
    tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)
