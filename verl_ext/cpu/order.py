"""Requests and samples in one order, whatever finishes first. Of verl: `agent_loop_config_path`, which names the agent
loop of this file, and `trainer.v1.sampler.custom_sampler`, which names its replay buffer.

The default trainer (v1) tells the model server nothing by which it could tell a prompt's rollouts apart, and takes the
samples as they arrive: with either, no two runs are the same in the last digits.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import transfer_queue
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

ROLLOUTS = 1_000_000
"""More than a prompt has rollouts."""


class NumberedAgentLoop(SingleTurnAgentLoop):  # type: ignore[misc]
    """verl's single-turn agent loop, whose requests are numbered by row and rollout in the v1 trainer, too."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        """As verl's; `session_id` is the v1 trainer's number of a rollout, `index` the row's."""
        if "session_id" in kwargs:
            kwargs["priority"] = int(kwargs.get("index", 0)) * ROLLOUTS + int(kwargs["session_id"])
        return await super().run(sampling_params, **kwargs)


class OrderedReplayBuffer(ReplayBuffer):  # type: ignore[misc]
    """verl's replay buffer of the sync trainer, which gives the samples by row and rollout, and looks more often."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"poll_interval": 0.05, **kwargs})

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        """As verl's, in order."""
        batch, metrics = super().sample(*args, **kwargs)
        data = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["index"])
        rows = [int(getattr(index, "data", index)) for index in data["index"]]
        # A key is <uid>_<rollout>_<output>, and the uid a new one in each run.
        places = [tuple(map(int, key.rsplit("_", 2)[1:])) for key in batch.keys]
        order = sorted(range(len(rows)), key=lambda position: (rows[position], *places[position]))
        ordered = dataclasses.replace(batch, keys=[batch.keys[n] for n in order], tags=[batch.tags[n] for n in order])
        return ordered, metrics
