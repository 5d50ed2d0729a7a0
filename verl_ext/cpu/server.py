"""A model server on a CPU: transformers, with the weights that verl sends. Of verl: the registries of rollout replicas
and adapters, which `actor_rollout_ref.rollout.name=transformers` asks, and `model.external_lib`, which imports this.

One request at a time and one token at a time, so that an answer depends on the weights, the prompt and the request's
noise, and on nothing that runs beside it: runs are the same bit for bit.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
import torch
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

NAME = "transformers"
"""For `actor_rollout_ref.rollout.name`."""

WEIGHTS_DIR = "weights_dir"
"""The key of `rollout.custom` that names a directory: there each version of the weights is kept, as it was synced."""


class SamplingError(ValueError):
    """The server is asked for a way of sampling that it does not have."""


class Server:
    """Answers requests with the model as it was last synced. The methods' names are those that verl calls."""

    def __init__(self, path: str, response_length: int, weights_dir: str | None = None) -> None:
        """Load the model of `path`; its weights on disk serve until the first sync."""
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)  # as Ray sets it, too; more would cost the other processes theirs
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
        ends = self._model.config.eos_token_id
        self._ends = frozenset(ends if isinstance(ends, list) else [ends])
        self._response_length = response_length
        self._weights_dir = Path(weights_dir) if weights_dir else None
        self._version: int | None = None

    async def generate(
        self,
        request_id: str,
        *,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        **_: Any,
    ) -> TokenOutput:
        """An answer and the log-probability of each of its tokens.

        Noise is drawn by request: `request_id` (verl's own is the same in each run where `rollout.full_determinism` is
        set), prompt and version of the weights give its seed.

        Raises:
            SamplingError: `top_k` or `top_p` leave tokens out.
        """
        if sampling_params.get("top_k", -1) not in (-1, 0) or sampling_params.get("top_p", 1.0) != 1.0:
            raise SamplingError(f"top_k and top_p must leave no token out: {dict(sampling_params)}")
        temperature = float(sampling_params.get("temperature", 1.0))
        limit = sampling_params.get("max_tokens") or sampling_params.get("max_new_tokens") or self._response_length
        noise = torch.Generator().manual_seed(_seed(request_id, prompt_ids, self._version))
        ids = list(prompt_ids)
        tokens: list[int] = []
        log_probs: list[float] = []
        with torch.inference_mode():
            while len(tokens) < limit and not (tokens and tokens[-1] in self._ends):
                logits = self._model(torch.tensor([ids])).logits[0, -1]
                if temperature == 0:
                    token = int(logits.argmax())
                else:
                    logits = logits / temperature
                    uniform = torch.rand(logits.shape, generator=noise).clamp_min(1e-20)
                    token = int((logits - (-uniform.log()).log()).argmax())  # Gumbel noise: a sample of the softmax
                ids.append(token)
                tokens.append(token)
                log_probs.append(float(logits.log_softmax(-1)[token]))
        return TokenOutput(
            token_ids=tokens,
            log_probs=log_probs if sampling_params.get("logprobs") else None,
            stop_reason="completed",
            extra_fields={"global_steps": self._version},
        )

    async def set_weights(self, weights: Mapping[str, torch.Tensor], version: int | None) -> None:
        """Take the weights, all of them, and keep them on disk where that is asked for."""
        self._model.load_state_dict(weights)
        self._version = version
        if self._weights_dir is not None:
            self._weights_dir.mkdir(parents=True, exist_ok=True)
            torch.save(dict(weights), self._weights_dir / f"{version}.pt")

    async def idle(self, *_: Any, **__: Any) -> None:
        """There is no memory of a device to free, no cache to clear and nothing to profile."""

    sleep = wake_up = clear_kv_cache = release_kv_cache = resume_kv_cache = idle
    abort_all_requests = resume_generation = start_profile = stop_profile = idle


def _seed(request_id: str, prompt_ids: Sequence[int], version: int | None) -> int:
    digest = hashlib.sha256(f"{request_id} {list(prompt_ids)} {version}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # a signed 64-bit number


class Replica(RolloutReplica):  # type: ignore[misc]
    """One server, beside the actor or, in trainers that separate them, by itself."""

    async def launch_servers(self) -> None:
        """Start the server, under the name by which the adapter finds it."""
        name = server_name(self.replica_rank)
        kept = (self.config.custom or {}).get(WEIGHTS_DIR) if self.replica_rank == 0 else None  # all have the same
        server = (
            ray.remote(Server)
            .options(name=name, num_cpus=1, max_concurrency=self.max_concurrency)
            .remote(self.model_config.path, self.config.response_length, kept)
        )
        self.servers = [server]
        self._server_handle, self._server_address = server, name


def server_name(replica: int) -> str:
    """The name of a replica's actor; Ray keeps the names of different runs apart by namespace."""
    return f"{NAME}_server_{replica}"


class Adapter(base.BaseRollout):  # type: ignore[misc]
    """Lives in the actor's worker, and hands its weights to the server."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1, **_: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self.is_leader_rank = True

    async def update_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None, **_: Any
    ) -> None:
        """Hand on the weights: full tensors, by name. Every rank calls it: together they gather the tensors."""
        from verl.workers.rollout.utils import ensure_async_iterator

        state = {name: tensor.detach().clone() async for name, tensor in ensure_async_iterator(weights)}
        await ray.get_actor(server_name(self.replica_rank)).set_weights.remote(state, global_steps)

    async def resume(self, tags: list[str]) -> None:
        """Nothing was released."""

    async def release(self) -> None:
        """There is no memory of a device to free."""


RolloutReplicaRegistry.register(NAME, lambda: Replica)
base._ROLLOUT_REGISTRY[NAME, "async"] = f"{__name__}.{Adapter.__name__}"  # verl has no function for it
