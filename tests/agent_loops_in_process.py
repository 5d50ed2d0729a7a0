"""verl's agent-loop manager and workers in this process, without Ray: each sample's output is written in its row.

The double is an agent loop's run, which needs a model; all that verl does with what it returns is verl's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopManager, AgentLoopMetrics, AgentLoopWorker
from verl.protocol import DataProto

PROMPTS = {
    "data_source": lambda number: f"source {number % 2}",
    "reward_model": lambda number: {"ground_truth": str(number)},
    "extra_info": lambda number: {"index": number},
    "uid": lambda number: f"uid {number}",
    "index": lambda number: number,
}
"""What the trainer hands to the agent loop of each prompt, by its number."""


class Worker(AgentLoopWorker):
    """A worker whose samples come as their rows say: the reward dict, and the extra fields beside it."""

    def __init__(self, scores_in_the_loop: bool) -> None:
        self.config = None
        self.reward_loop_worker_handles = ["a reward worker"] if scores_in_the_loop else None
        params = SimpleNamespace(temperature=1.0, top_p=1.0, top_k=-1)
        agent = SimpleNamespace(default_agent_loop="any")
        self.rollout_config = SimpleNamespace(**vars(params), calculate_log_probs=False, val_kwargs=params, agent=agent)

    async def _run_agent_loop(self, sampling_params: Any, trajectory: Any, *, planned: Any, **kwargs: Any) -> Any:
        reward, fields = planned
        ids = ("prompt_ids", "response_ids", "response_mask", "attention_mask", "input_ids", "position_ids")
        absent = ("response_logprobs", "routed_experts", "teacher_logprobs", "teacher_ids")
        return SimpleNamespace(
            **{name: torch.ones(1, 4 if name in ids[3:] else 2, dtype=torch.long) for name in ids},
            **dict.fromkeys(absent),
            reward_score=1.0,
            num_turns=2,
            multi_modal_inputs={},
            metrics=AgentLoopMetrics(),
            extra_fields={"raw_prompt": [], **({} if reward is None else {"reward_extra_info": reward}), **fields},
        )


def prompts_of(planned: Sequence[tuple[Any, Mapping[str, Any]]]) -> DataProto:
    """Prompts whose samples get these rewards, each with its agent loop's extra fields."""
    columns = {name: [make(number) for number in range(len(planned))] for name, make in PROMPTS.items()}
    columns["planned"] = list(planned)
    return DataProto.from_dict(
        tensors={"dummy_tensor": torch.zeros(len(planned), 1)},
        non_tensors={name: np.fromiter(values, dtype=object) for name, values in columns.items()},
    )


def generated(
    planned: Sequence[tuple[Any, Mapping[str, Any]]], workers: int = 1, scores_in_the_loop: bool = True
) -> DataProto:
    """What verl's manager returns for these samples, from so many workers."""
    manager: Any = object.__new__(AgentLoopManager)
    manager.agent_loop_workers = [
        SimpleNamespace(generate_sequences=SimpleNamespace(remote=Worker(scores_in_the_loop).generate_sequences))
        for _ in range(workers)
    ]

    async def run() -> DataProto:
        return await manager.generate_sequences(prompts_of(planned))

    return asyncio.run(run())
