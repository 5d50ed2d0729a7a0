"""Agent loop workers that other projects have, in small: some replace verl's `_postprocess`, some inherit nothing.

A process of Ray's gets them by value.
"""

import numpy as np
import torch
from integration.agent_loops import AgentLoopWorker
from tensordict import TensorDict
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics


def own_batch(samples):
    """Tensors and columns of samples that a worker has put into shape, without any reward keys."""
    names = {"prompts": "prompt_ids", "responses": "response_ids", "attention_mask": "attention_mask"}
    tensors = {name: torch.cat([getattr(sample, field) for sample in samples]) for name, field in names.items()}
    scores = [sample.reward_score for sample in samples]
    if None not in scores:
        tensors["rm_scores"] = torch.tensor(scores, dtype=torch.float32).unsqueeze(-1)
    return DataProto(
        batch=TensorDict(tensors, batch_size=len(samples)),
        non_tensor_batch={"__num_turns__": np.array([sample.num_turns for sample in samples], dtype=np.int32)},
        meta_info={"metrics": [sample.metrics.model_dump() for sample in samples]},
    )


def with_keys(batch, samples, keys):
    """The batch with these reward keys as columns, and their list where there are scores."""
    infos = [sample.extra_fields.get("reward_extra_info", {}) for sample in samples]
    for key in keys:
        batch.non_tensor_batch[key] = np.array([info[key] for info in infos])
    if "rm_scores" in batch.batch.keys():
        batch.meta_info["reward_extra_keys"] = keys
    return batch


def with_extra_fields(batch, samples, without=()):
    """The batch with every extra field of its samples as a column of objects: the dicts are one of them."""
    for name in sorted({name for sample in samples for name in sample.extra_fields} - set(without)):
        column = np.empty(len(samples), dtype=object)
        column[:] = [sample.extra_fields.get(name) for sample in samples]
        batch.non_tensor_batch[name] = column
    return batch


def keys_of_all(samples):
    """The keys that every sample has."""
    infos = [set(sample.extra_fields.get("reward_extra_info", {})) for sample in samples]
    return sorted(set.intersection(*infos))


# --- workers of verl's, with a `_postprocess` of their own ------------------------------------------------------


class Intersection(AgentLoopWorker):
    """Columns for the keys that all of its samples have; the dicts stay in a column of their own."""

    def _postprocess(self, inputs, input_non_tensor_batch=None, validate=False):
        return with_extra_fields(with_keys(own_batch(inputs), inputs, keys_of_all(inputs)), inputs)


class FirstSample(AgentLoopWorker):
    """Columns for the keys of its first sample."""

    def _postprocess(self, inputs, input_non_tensor_batch=None, validate=False):
        keys = list(inputs[0].extra_fields.get("reward_extra_info", {}))
        return with_extra_fields(with_keys(own_batch(inputs), inputs, keys), inputs)


class Dictless(AgentLoopWorker):
    """Columns for the keys that all of its samples have, and no dicts: what the others had is gone."""

    def _postprocess(self, inputs, input_non_tensor_batch=None, validate=False):
        batch = with_keys(own_batch(inputs), inputs, keys_of_all(inputs))
        return with_extra_fields(batch, inputs, without=["reward_extra_info"])


class Attaching(AgentLoopWorker):
    """As our page for such workers says: the dicts are handed over in one call."""

    def _postprocess(self, inputs, input_non_tensor_batch=None, validate=False):
        import verl_ext

        infos = [sample.extra_fields.get("reward_extra_info") for sample in inputs]
        return verl_ext.attach_reward_extra_info(own_batch(inputs), infos)


# --- workers that inherit nothing --------------------------------------------------------------------------------


class Sample:
    """One sample, as far as these workers need it."""

    def __init__(self, prompt_ids, response_ids, scored):
        self.prompt_ids, self.response_ids = torch.tensor([prompt_ids]), torch.tensor([response_ids])
        self.attention_mask = torch.ones(1, len(prompt_ids) + len(response_ids), dtype=torch.long)
        self.reward_score = scored.get("reward_score")
        self.extra_fields = {"seed": 7}
        if "reward_extra_info" in scored:
            self.extra_fields["reward_extra_info"] = scored["reward_extra_info"]
        self.num_turns, self.metrics = 1, AgentLoopMetrics()


class NoSubclass:
    """A worker for another kind of model: takes verl's place, and inherits none of it.

    It generates nothing; its samples are numbers. They are scored while they are rolled out, where it gets handles.
    """

    def __init__(self, config, llm_client, teacher_client=None, reward_loop_worker_handles=None):
        self.config = config
        self.reward_loop_worker_handles = reward_loop_worker_handles

    async def generate_sequences(self, batch):
        samples = [await self.sample(batch[row : row + 1]) for row in range(len(batch))]
        return self._postprocess(samples, input_non_tensor_batch=batch.non_tensor_batch)

    async def sample(self, row):
        scored = {}
        if self.reward_loop_worker_handles:
            data = DataProto.from_dict(tensors={"prompts": torch.ones(1, 1)}, non_tensors=dict(row.non_tensor_batch))
            scored = await self.reward_loop_worker_handles[0].compute_score.remote(data)
        number = row.non_tensor_batch["extra_info"][0]["index"]
        return Sample([1, 2], [number, 3], scored)

    def _postprocess(self, inputs, input_non_tensor_batch=None):
        batch = own_batch(inputs)
        batch.non_tensor_batch.update(input_non_tensor_batch or {})
        return with_extra_fields(with_keys(batch, inputs, keys_of_all(inputs)), inputs)


class OfNoSubclass(NoSubclass):
    """A worker that builds on the former as others build on verl's."""

    def _postprocess(self, inputs, input_non_tensor_batch=None):
        output = super()._postprocess(inputs, input_non_tensor_batch)
        output.batch["llm_rm_scores"] = torch.zeros(len(inputs), 1)
        return output


# --- workers that are called otherwise than by verl's manager ----------------------------------------------------


class PromptByPrompt(AgentLoopWorker):
    """Rolls out the n samples of one prompt, and puts them together outside `generate_sequences`."""

    async def generate_for_prompt(self, batch):
        import asyncio

        names = ["single_turn_agent"] * len(batch)
        batch.non_tensor_batch["agent_name"] = np.array(names, dtype=object)
        trajectory = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": False}
        rows = [{name: column[row] for name, column in batch.non_tensor_batch.items()} for row in range(len(batch))]
        params = {"temperature": 1.0, "logprobs": False}
        outputs = await asyncio.gather(
            *(self._run_agent_loop(dict(params), dict(trajectory), trace=False, **row) for row in rows)
        )
        return self._postprocess(outputs, input_non_tensor_batch=batch.non_tensor_batch, validate=False)


class Scores:
    """A double for the handle of a reward worker, for a process that has no other beside it: it says what rows say."""

    class compute_score:  # noqa: N801 - as a method of an actor's handle
        @staticmethod
        async def remote(data):
            row = data.non_tensor_batch["extra_info"][0]
            return {"reward_score": row["reward"], "reward_extra_info": row["emit"]}
