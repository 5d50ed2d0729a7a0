"""Agent loops, worker classes and a manager that a user might have; the worker processes import this file by name."""

import numpy as np
import ray
import torch
from tensordict import TensorDict
from verl import DataProto
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

import verl_ext
from verl_ext.demo import rig

if rig.tells_rows_apart():
    from verl.experimental.agent_loop import AgentLoopManager, AgentLoopWorker
else:
    from verl.experimental import agent_loop

    from verl_ext.demo import older

    AgentLoopManager, AgentLoopWorker = older.with_older_workers(agent_loop.AgentLoopManager), older.Worker

# --- agent loops -------------------------------------------------------------------------------------------------


class OwnFields(SingleTurnAgentLoop):
    """A single turn that reports fields of its own."""

    async def run(self, sampling_params, **kwargs):
        output = await super().run(sampling_params, **kwargs)
        output.extra_fields.update(sandbox="s-1", plan=["look", "answer"])
        return output


class ScoresItself(SingleTurnAgentLoop):
    """A single turn that knows its reward, as SWE-agent does: `extra_info` says what it finds out."""

    async def run(self, sampling_params, **kwargs):
        output = await super().run(sampling_params, **kwargs)
        found = kwargs["extra_info"]
        output.reward_score = found["reward"]
        if found["emit"] is not None:
            output.extra_fields["reward_extra_info"] = found["emit"]
        return output


NAMES = {"own_fields": OwnFields, "scores_itself": ScoresItself}
"""The loops' names in the column `agent_name` and in verl's `agent_loop_config_path`."""


# --- worker classes ----------------------------------------------------------------------------------------------


class CallsSuper(AgentLoopWorker):
    """A worker for text only: drops a column of what verl's methods return, adds one, and hands its request on."""

    async def generate_sequences(self, batch):
        output = await super().generate_sequences(batch)
        output.meta_info.update(batch.meta_info)
        return output

    def _postprocess(self, inputs, *args, **kwargs):
        output = super()._postprocess(inputs, *args, **kwargs)
        del output.non_tensor_batch["multi_modal_inputs"]
        output.non_tensor_batch["seen"] = np.fromiter((dict(sample.extra_fields) for sample in inputs), dtype=object)
        return output


class ReplacesPostprocess(AgentLoopWorker):
    """Puts its batch together by itself, as verl-omni's diffusion worker does; the keys are the first sample's."""

    def _postprocess(self, inputs, input_non_tensor_batch=None, validate=False):
        output = self.own_batch(inputs)
        infos = [sample.extra_fields["reward_extra_info"] for sample in inputs]
        for key in infos[0]:
            output.non_tensor_batch[key] = np.array([info[key] for info in infos])
        return output

    def own_batch(self, inputs):
        names = {"prompts": "prompt_ids", "responses": "response_ids", "attention_mask": "attention_mask"}
        tensors = {name: torch.cat([getattr(sample, field) for sample in inputs]) for name, field in names.items()}
        tensors["rm_scores"] = torch.tensor([[sample.reward_score] for sample in inputs])
        return DataProto(
            batch=TensorDict(tensors, batch_size=len(inputs)),
            non_tensor_batch={"own_column": np.arange(len(inputs))},
            meta_info={"metrics": [sample.metrics.model_dump() for sample in inputs]},
        )


class AdoptsColumn(ReplacesPostprocess):
    """The same with the one line that adopts the raw column."""

    def _postprocess(self, inputs, input_non_tensor_batch=None, validate=False):
        infos = [sample.extra_fields["reward_extra_info"] for sample in inputs]
        return verl_ext.attach_reward_extra_info(self.own_batch(inputs), infos)


class OwnManager(AgentLoopManager):
    """A manager that starts a worker class of the user's, in the way that verl's constructor allows for."""

    def __init__(self, *args, **kwargs):
        self.agent_loop_workers_class = ray.remote(CallsSuper)
        super().__init__(*args, **kwargs)
