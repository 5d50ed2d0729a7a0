"""What stands in for GPUs and a model in the v1 trainer, each double by its name; and what a user brings along.

The trainer, data loaders, agent loop, reward loop, replay buffer, TransferQueue, checkpoint engine, advantages,
metrics, logger and dumps are verl's own. Ray's workers import this file by name, and verl loads it by its path.
"""

import ast
import copy
import threading
import time
from collections import Counter

import ray
import torch
from tensordict import TensorDict
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.single_controller.base.worker_group import WorkerGroup
from verl.single_controller.ray import ResourcePoolManager
from verl.single_controller.ray.base import func_generator
from verl.utils import tensordict_utils as tu
from verl.utils.reward_score import default_compute_score
from verl.utils.tokenizer import hf_tokenizer

from verl_ext.demo import rig

# --- doubles -----------------------------------------------------------------------------------------------------

GONE = "the model server is gone"
"""A recorded answer that is none: the server raises instead."""


class Server(rig.RecordedClient):
    """A double for the model server: the sessions of a prompt get the answers recorded for it, in turn.

    The v1 agent loop passes no number by which the sessions of one prompt could be told apart; but they all run in one
    worker process, which counts.
    """

    def __init__(self, rows, config):
        super().__init__(rows, config, global_steps=0)
        self._turns = Counter()
        self._gone = hf_tokenizer(config.actor_rollout_ref.model.path).encode(GONE, add_special_tokens=False)

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        turn = self._turns[tuple(prompt_ids)]
        self._turns[tuple(prompt_ids)] += 1
        answer = await super().generate(
            request_id, prompt_ids=prompt_ids, sampling_params=sampling_params, priority=turn
        )
        if answer.token_ids[:-1] == self._gone:
            raise ConnectionError(GONE)
        return answer


class Servers:
    """A double for `LLMServerManager`: hands out the client, and has no replicas that could sleep or be profiled."""

    def __init__(self, client):
        self.client = client
        self.rollout_replicas, self.server_addresses, self.server_handles = [], [], []
        self.global_load_balancer = Balancer()

    def create(self, **_):
        return self

    def get_client(self, client_cls=None, **_):
        return self.client

    def get_replicas(self):
        return self.rollout_replicas


class Balancer:
    """A double for the actor that spreads requests over replicas."""

    class Nothing:
        def remote(self, *_):
            return ray.put(None)

    add_servers = remove_servers = clear_sticky_cache = Nothing()


class StandaloneCheckpoints:
    """A double for the `CheckpointEngineManager` that sends weights over NCCL to servers on other GPUs."""

    def __init__(self, config, actor_wg, replicas):
        pass

    def update_weights(self, global_steps=None):
        return {}


class RewardModel:
    """A double for `RewardModelManager`, the servers of a reward model: there is none to wake up."""

    def __init__(self, config, resource_pool=None):
        pass

    def get_router_address(self):
        return None

    def wake_up(self):
        pass

    def sleep(self):
        pass


class Pools(ResourcePoolManager):
    """verl's resource pools, without the check that the machine has the GPUs."""

    def _check_resource_available(self):
        pass


class ActorWorker:
    """A double for `ActorRolloutRefWorker`, the model: log-probs that say nothing, updates that change nothing.

    What it was given to train on is kept in `trained_on`.
    """

    def __init__(self):
        self.trained_on = []

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_log_prob(self, data):
        said = [torch.full((len(ids),), -0.5) for ids in data["input_ids"].unbind()]
        nested = torch.nested.as_nested_tensor(said, layout=torch.jagged)
        return TensorDict({"log_probs": nested, "entropy": nested.neg()}, batch_size=len(data))

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def update_actor(self, data):
        self.trained_on.append(data)
        return tu.get_tensordict({}, {"metrics": {"mfu": 0.0, "loss": 0.0, "grad_norm": 0.0}})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self):
        pass

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def update_weights(self, global_steps=None, mode="auto"):
        pass

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_model_to_cpu(self, n):
        pass


class Actors(WorkerGroup):
    """A double for the processes of two data-parallel ranks: they are objects in this process.

    verl's own dispatch cuts the batch, TransferQueue's bridge fetches and stores it, and everything goes through Ray's
    object store.
    """

    def __init__(self):
        super().__init__(resource_pool=None)
        self._workers = [ActorWorker(), ActorWorker()]
        self._dispatch_info = {"actor": [0, 1]}
        self._collect_info = {"actor": [True, True]}
        self._bind_worker_method(ActorWorker, func_generator)

    def execute_all(self, method, *args, **kwargs):
        def of_rank(rank, values):
            value = values[rank]
            return ray.get(value) if isinstance(value, ray.ObjectRef) else value

        return [
            ray.put(
                getattr(worker, method)(
                    *(of_rank(rank, values) for values in args),
                    **{name: of_rank(rank, values) for name, values in kwargs.items()},
                )
            )
            for rank, worker in enumerate(self._workers)
        ]

    @property
    def updates(self):
        """How often the actor was updated."""
        return min(len(worker.trained_on) for worker in self._workers)

    @property
    def trained_on(self):
        """The batches of both ranks that the actor was updated with, in order."""
        return [data for worker in self._workers for data in worker.trained_on]


class WorkerGroups:
    """A double for `RayWorkerGroup` where the trainer starts it: every role gets `Actors`."""

    def __init__(self, resource_pool, ray_cls_with_init, **_):
        pass

    def spawn(self, prefix_set):
        return {role: Actors() for role in prefix_set}


# --- what a user brings along ------------------------------------------------------------------------------------


_reading = threading.Lock()


def earned_by(answer):
    """What an answer says that it earns.

    verl scores in several threads, and CPython 3.11 counts the depth of all threads' syntax trees in one number: where
    the garbage collector lets another thread read in the midst of one, `ast.literal_eval` is a `SystemError`. verl's
    agent loop logs that, in its worker, and the step is trained without the sample. So one thread reads at a time.
    """
    with _reading:
        return ast.literal_eval(answer)


def as_answered(data_source, solution_str, ground_truth, extra_info, **kwargs):
    """The answer is what it earns, written in Python; verl's own scorers for verl's own data sources."""
    if not data_source.startswith("planned"):
        return default_compute_score(data_source, solution_str, ground_truth, extra_info)
    earned = earned_by(solution_str)
    time.sleep(earned.pop("seconds", 0))  # a slow judge: this session finishes after the others
    return earned


class NeedsNoDataSource(RewardManagerBase):
    """A reward manager that is content with prompts and responses, which is all that a colocated reward model sees."""

    def __init__(self, config, tokenizer, compute_score, **kwargs):
        super().__init__(config, tokenizer, compute_score)

    async def run_single(self, data):
        item = data[-1:][0]
        response = item.batch["responses"]
        length = item.batch["attention_mask"][-len(response) :].sum()
        earned = earned_by(self.tokenizer.decode(response[:length], skip_special_tokens=True))
        return {"reward_score": earned["score"], "reward_extra_info": earned}


class ScoresItself(SingleTurnAgentLoop):
    """An agent loop of two outputs that knows its reward, and reports nothing beside it."""

    async def run(self, sampling_params, **kwargs):
        last = await super().run(sampling_params, **kwargs)
        first = last.model_copy(update={"extra_fields": copy.deepcopy(last.extra_fields)})
        last.reward_score = 0.75
        return [first, last]


class OwnFields(SingleTurnAgentLoop):
    """An agent loop that reports fields of its own, which no other loop has."""

    async def run(self, sampling_params, **kwargs):
        output = await super().run(sampling_params, **kwargs)
        output.extra_fields.update(sandbox="s-1", plan=["look", "answer"])
        return output


LOOPS = {"scores_itself": ScoresItself, "own_fields": OwnFields}
"""The loops' names in the column `agent_name` and in verl's `agent_loop_config_path`."""
