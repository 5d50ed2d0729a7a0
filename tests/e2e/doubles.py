"""The doubles of the end-to-end rigs: the actor's workers, the checkpoint manager and the model server.

They stand in for what needs a GPU and for nothing else. How a batch reaches the actor's workers and comes back is
verl's own: its dispatch chunks, consolidates and pickles, its collect concatenates.
"""

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import ray
import torch
from tensordict import TensorDict
from verl.single_controller.base.decorator import make_nd_compute_dataproto_dispatch_fn, register
from verl.single_controller.base.worker_group import WorkerGroup
from verl.single_controller.ray.base import func_generator
from verl.utils import tensordict_utils as tu

from verl_ext.demo import rig

LOG_PROB, ENTROPY = -0.5, 0.25


class Actor:
    """A double for one rank of verl's `ActorRolloutRefWorker`: no model, the same log-prob for every token."""

    def __init__(self, ranks: int):
        self.ranks, self.batches = ranks, []

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_log_prob(self, data: TensorDict) -> TensorDict:
        return self._infer(data)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="ref"))
    def compute_ref_log_prob(self, data: TensorDict) -> TensorDict:
        return self._infer(data)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update_actor(self, data: TensorDict) -> TensorDict:
        """Cut the batch into verl's mini-batches as `TrainingWorker.train_mini_batch` does, and keep it."""
        size, epochs, seed, loader = (
            tu.pop(data, key=key) for key in ("mini_batch_size", "epochs", "seed", "dataloader_kwargs")
        )
        sizes = [len(part) for part in tu.make_iterator(data, size // self.ranks, epochs, seed, loader)]
        self.batches.append(data)
        return tu.get_tensordict({}, {"metrics": {"mfu": [0.0], "loss": [0.0], "mini_batch_rows": sizes}})

    def _infer(self, data: TensorDict) -> TensorDict:
        tokens = data["input_ids"]

        def per_token(value: float) -> torch.Tensor:
            values = torch.full(tokens.values().shape, value)
            return torch.nested.nested_tensor_from_jagged(values, offsets=tokens.offsets())

        outputs = {"log_probs": per_token(LOG_PROB), "entropy": per_token(ENTROPY)}
        return tu.get_tensordict(outputs, {"metrics": {"mfu": 0.0}})


class ActorGroup(WorkerGroup):
    """A double for verl's `RayWorkerGroup` of data-parallel actors: its ranks live in this process.

    The methods are bound by verl, so that a batch is dispatched to the ranks and collected from them as ever; between
    them it goes through Ray's object store, both ways.
    """

    def __init__(self, ranks: int = 2):
        super().__init__(resource_pool=None)
        self._workers = [Actor(ranks) for _ in range(ranks)]
        self._dispatch_info = {mesh: list(range(ranks)) for mesh in ("actor", "ref")}
        self._collect_info = {mesh: [True] * ranks for mesh in ("actor", "ref")}
        self._bind_worker_method(Actor, func_generator)

    def execute_all(self, method_name: str, *args, **kwargs) -> list[ray.ObjectRef]:
        """What verl's own does by remote calls: the method on each rank, with that rank's share of the arguments."""
        return [
            ray.put(
                getattr(worker, method_name)(
                    *(ray.get(shares[rank]) for shares in args),
                    **{name: ray.get(shares[rank]) for name, shares in kwargs.items()},
                )
            )
            for rank, worker in enumerate(self._workers)
        ]

    @property
    def batches(self) -> list[TensorDict]:
        """What the ranks were given to learn from, together again, one batch for each step."""
        ranks = [worker.batches for worker in self._workers]
        return [tu.concat_tensordict([tu.contiguous(share) for share in shares]) for shares in zip(*ranks, strict=True)]


def flash_attn() -> AbstractContextManager[Any]:
    """For the padding functions of flash-attn, which verl 0.7 needs on CPU too: their copies in transformers."""
    from verl.utils import attention_utils

    def copies() -> tuple[Any, ...]:
        from transformers.modeling_flash_attention_utils import _index_first_axis, _pad_input, _unpad_input

        return _index_first_axis, _pad_input, None, _unpad_input

    return mock.patch.object(attention_utils, "_get_attention_functions", copies)


class CheckpointManager:
    """A double for verl's `CheckpointEngineManager`: there are no weights to send and no replicas to wake."""

    def __init__(self):
        self.versions = []

    def update_weights(self, global_steps: int) -> None:
        self.versions.append(global_steps)

    def sleep_replicas(self) -> None:
        pass


class Client(rig.RecordedClient):
    """The double for the model server, which gives a greedy request (REMAX's baseline) the first answer on record."""

    async def generate(self, request_id, *, sampling_params, priority=0, **kwargs):
        if sampling_params.get("temperature") == 0:
            priority = 0
        return await super().generate(request_id, sampling_params=sampling_params, priority=priority, **kwargs)
