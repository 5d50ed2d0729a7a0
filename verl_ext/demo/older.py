"""verl's agent loop before 0.9 in the form of 0.9, as far as the rig needs it; verl's own classes do the work.

verl 0.9 tells the model server which row of the batch asks, as `priority`: by that, a recorded client tells the answers
to one prompt apart. verl 0.7 has no client to hand over: its manager starts servers, and its workers ask those.
"""

from __future__ import annotations

import inspect
from contextvars import ContextVar
from typing import Any

import numpy as np
import ray
from verl.experimental.agent_loop import AgentLoopManager, AgentLoopWorker
from verl.utils.ray_utils import auto_await

TAKES_CLIENT = "llm_client" in inspect.signature(AgentLoopWorker.__init__).parameters

_asking: ContextVar[int] = ContextVar("verl_ext_demo_asking")


class _Numbering:
    """A client that is told which answer to a prompt is asked for."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        return await self._client.generate(*args, priority=_asking.get(), **kwargs)


class Worker(AgentLoopWorker):  # type: ignore[misc]
    """verl's worker, which asks a client as that of verl 0.9 does."""

    def __init__(
        self, config: Any, llm_client: Any, teacher_client: Any = None, reward_loop_worker_handles: Any = None
    ) -> None:
        if TAKES_CLIENT:
            super().__init__(config, _Numbering(llm_client), teacher_client, reward_loop_worker_handles)
        else:
            # From verl 0.7's manager, what stands for the load balancer; and no servers.
            self.server_manager = _Numbering(llm_client or teacher_client)
            super().__init__(config, [], None, reward_loop_worker_handles)

    async def _run_agent_loop(self, sampling_params: Any, trajectory: Any, **kwargs: Any) -> Any:
        # Each sample runs in a task, thus in a context, of its own.
        _asking.set(int(kwargs.get("priority", 0)))
        return await super()._run_agent_loop(sampling_params, trajectory, **kwargs)


class ServerlessManager(AgentLoopManager):  # type: ignore[misc]
    """verl 0.7's manager without its servers: the client takes the place of the load balancer in front of them."""

    rollout_replica_class = None

    def __init__(self, config: Any, llm_client: Any, *, reward_loop_worker_handles: Any = None) -> None:
        super().__init__(config, worker_group=llm_client, reward_loop_worker_handles=reward_loop_worker_handles)
        self.llm_client = self.global_load_balancer = llm_client
        self.server_addresses = self.server_handles = ()

    @classmethod
    @auto_await  # type: ignore[untyped-decorator]
    async def create(cls, *args: Any, **kwargs: Any) -> Any:
        """As verl's own, but for the servers."""
        manager = cls(*args, **kwargs)
        await manager._init_agent_loop_workers()
        return manager


def with_older_workers(manager_class: Any) -> Any:
    """A manager class of verl's, with these workers, and with a number for each row as verl 0.9 gives it."""

    class Manager(manager_class if TAKES_CLIENT else ServerlessManager):  # type: ignore[misc]
        agent_loop_workers_class = ray.remote(Worker)

        @auto_await  # type: ignore[untyped-decorator]
        async def generate_sequences(self, prompts: Any) -> Any:
            prompts.non_tensor_batch.setdefault("priority", np.arange(len(prompts)))
            return await super().generate_sequences(prompts)

    return Manager
