"""Teaches the agent loop to carry each sample's reward dict from the worker to the manager, and to align them there.

verl's worker takes the keys from its first sample, and the manager's `concat` asserts that all workers have the same.
So the dicts are taken out before verl's own `_postprocess` and attached to its result as a raw column, and the manager
finalizes what it has concatenated. Workers do so only for a request with the manager's mark, and mark their reply.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

import verl_ext
from verl_ext.column import RAW_COLUMN, SparseNonTensor
from verl_ext.plugin._site import Function, PatchSite
from verl_ext.plugin._workers import REQUEST, marked, refuse_untaught
from verl_ext.plugin.reward_loop import refuse_missing_scores

site = PatchSite(
    name="agent_loop",
    module="verl.experimental.agent_loop.agent_loop",
    purpose="reward keys that the first sample of a worker lacks are lost, and workers with different keys cannot be "
    "concatenated",
)

KEPT_BY_TRAINER = ("data_source", "reward_model", "extra_info", "uid")
"""The prompts' columns that the trainer keeps and unites with the output (`RayPPOTrainer._get_gen_batch`)."""

REPLY = "verl_ext/reply"
"""Column by which a worker says, row by row, that it acted on the mark: its version of verl-ext."""

_asked: ContextVar[bool] = ContextVar("verl_ext_asked", default=False)
_ABSENT = object()


@site.wraps("AgentLoopWorker.generate_sequences", "self", "batch")
def _worker_generate_sequences(stock: Function) -> Function:
    async def generate_sequences(self: Any, batch: Any) -> Any:
        if REQUEST not in batch.meta_info:
            return await stock(self, batch)
        token = _asked.set(True)
        try:
            output = await stock(self, batch)
        finally:
            _asked.reset(token)
        output.non_tensor_batch[REPLY] = np.full(len(output), verl_ext.__version__, dtype=object)
        return output

    return generate_sequences


@site.wraps("AgentLoopWorker._postprocess", "self", "inputs", "input_non_tensor_batch")
def _postprocess(stock: Function) -> Function:
    def _postprocess(self: Any, inputs: Any, input_non_tensor_batch: Any = None, *args: Any, **kwargs: Any) -> Any:
        from verl_ext.protocol import attach_reward_extra_info

        if not _asked.get():
            return stock(self, inputs, input_non_tensor_batch, *args, **kwargs)
        if self.reward_loop_worker_handles is not None:
            refuse_missing_scores([s.reward_score for s in inputs], input_non_tensor_batch or {}, self.config)
        rows = [sample.extra_fields.pop(RAW_COLUMN, _ABSENT) for sample in inputs]
        try:
            output = stock(self, inputs, input_non_tensor_batch, *args, **kwargs)
        finally:
            for sample, row in zip(inputs, rows, strict=True):
                if row is not _ABSENT:
                    sample.extra_fields[RAW_COLUMN] = row
        return attach_reward_extra_info(output, [None if row is _ABSENT else row for row in rows])

    return _postprocess


@site.wraps("AgentLoopManager.generate_sequences", "self", "prompts")
def _manager_generate_sequences(stock: Function) -> Function:
    from verl.utils.ray_utils import auto_await

    # `auto_await` looks at its caller's frame: it must stay outermost, so we wrap the coroutine inside it.
    coroutine: Any = inspect.unwrap(stock, stop=inspect.iscoroutinefunction)

    async def generate_sequences(self: Any, prompts: Any) -> Any:
        try:
            output = await coroutine(self, marked(prompts))
        except (KeyError, AssertionError) as error:  # what stock workers beside ours lead to
            refuse_untaught(self.agent_loop_workers, site.name, error)
            raise
        return finalized(output, prompts, self.agent_loop_workers)

    taught: Function = auto_await(generate_sequences)
    return taught


def _loses_default_extra_fields(module: Any) -> bool:
    """verl 0.8.0, 0.9.0: `extra_fields` that were only added to are not among Pydantic's set fields (report 7486)."""
    output: Any = getattr(module, "AgentLoopOutput", None)
    if not hasattr(output, "as_dict"):
        return False
    sample = output(prompt_ids=[], response_ids=[], response_mask=[], metrics=module.AgentLoopMetrics())
    sample.extra_fields["added"] = True
    try:
        return "added" not in sample.as_dict()["extra_fields"]
    except KeyError:
        return True


@site.wraps("AgentLoopOutput.as_dict", "self", needed=_loses_default_extra_fields)
def _as_dict(stock: Function) -> Function:
    def as_dict(self: Any) -> Any:
        if "extra_fields" in self.model_fields_set:
            return stock(self)
        output = stock(self.model_copy(update={"extra_fields": {}}))
        fields = dict(self.extra_fields)
        promoted = {name: fields.pop(name, None) for name in ("teacher_ids", "teacher_logprobs")}
        output.update({name: value for name, value in promoted.items() if value is not None})
        return {**output, "extra_fields": fields}

    return as_dict


def finalized(output: Any, prompts: Any, workers: Sequence[Any]) -> Any:
    """What the manager hands on: the workers' output, finalized, once it is known that every worker runs the plugin.

    Raises:
        PluginMissingError: a worker does not run the plugin.
        FieldCollisionError: a reward key names a column or tensor of the output, or a column that the trainer keeps.
    """
    from verl_ext.protocol import is_sparse

    replies = output.non_tensor_batch.pop(REPLY, None)
    if replies is None or any(reply != verl_ext.__version__ for reply in replies):
        refuse_untaught(workers, site.name)
    if not is_sparse(output):  # a worker class with a _postprocess of its own
        return output
    raw = output.non_tensor_batch.get(RAW_COLUMN)
    keys = set(raw.keys()) if isinstance(raw, SparseNonTensor) else set()
    # Where nothing scores in the loop, the output carries the prompts' columns along. Those that only the agent loop
    # reads (index, priority, ...) give way to a reward key of that name, as on stock verl.
    for name in keys & (prompts.non_tensor_batch.keys() - set(KEPT_BY_TRAINER)):
        output.non_tensor_batch.pop(name, None)
    output.finalize(reserved=dict.fromkeys(KEPT_BY_TRAINER, "a column of the batch that the trainer keeps"))
    if all(row is None for row in output.non_tensor_batch.get(RAW_COLUMN, ())):  # verl has no such column then
        output.non_tensor_batch.pop(RAW_COLUMN, None)
    return output
