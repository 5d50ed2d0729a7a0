"""Teaches the agent loop to carry each sample's reward dict from the worker to the manager, and to align them there.

verl's worker takes the keys from its first sample, and the manager's `concat` asserts that all workers have the same.
So the dicts are taken out before verl's own `_postprocess` and attached to its result as a raw column, and the manager
finalizes what it has concatenated. Workers do so only for a request with the manager's mark, and mark their reply.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

import verl_ext
from verl_ext.column import MANAGER_FINALIZES, RAW_COLUMN, SparseNonTensor, ordered_keys
from verl_ext.errors import shown
from verl_ext.plugin._guard import refusing_mixed_rows
from verl_ext.plugin._sendable import refuse_unsendable
from verl_ext.plugin._site import REST, Function, PatchSite, State, holding, warn_once
from verl_ext.plugin._trial import MIXED_ROWS, aligned, unless, verls_own
from verl_ext.plugin._workers import REQUEST, driver_runs_plugin, marked, refuse_untaught, untaught_blamed
from verl_ext.plugin.reward_loop import missing_score, required_scores, told_by
from verl_ext.schema import same_value

site = PatchSite(
    name="agent_loop",
    module="verl.experimental.agent_loop.agent_loop",
    purpose="reward keys that the first sample of a worker lacks are lost, and workers with different keys cannot be "
    "concatenated",
    requires=("protocol",),
    guard=refusing_mixed_rows,
)

KEPT_BY_TRAINER = ("data_source", "reward_model", "extra_info", "uid")
"""The prompts' columns that the trainer keeps and unites with the output (`RayPPOTrainer._get_gen_batch`)."""

REPLY = "verl_ext/reply"
"""Column by which a worker says, row by row, that it acted on the mark: its version of verl-ext, and the names of the
prompts' columns that the output only carries along (all of them, where nothing scores in the loop)."""

UNSCORED = "verl_ext/unscored"
"""Extra field of a sample whose score is `None`: why. The v1 trainer reads it, since a worker's error is lost there."""

_ABSENT = object()


def _scores_several_outputs(module: Any) -> bool:
    """Not so verl 0.7: one session of an agent loop may have several outputs, as the v1 trainer uses it."""
    function = getattr(getattr(module, "AgentLoopWorker", None), "_compute_score", None)
    return function is None or "output" not in inspect.signature(function).parameters


class _Sample:
    """One sample of an agent loop, as far as a worker's `_postprocess` looks at it."""

    def __init__(self, row: dict[str, Any]) -> None:
        import torch

        ids = ("prompt_ids", "response_ids", "response_mask", "attention_mask", "input_ids", "position_ids")
        vars(self).update({name: torch.ones(1, 2, dtype=torch.long) for name in ids})
        self.reward_score, self.num_turns = 0.0, 1
        self.extra_fields = {RAW_COLUMN: row}
        self.metrics = SimpleNamespace(model_dump=dict)

    def __getattr__(self, name: str) -> None:
        """What verl may ask for besides (log-probs, images, ...): there is none."""


def aligns_keys(module: Any) -> bool:
    """A worker's own assembly of two samples of which only the second has a key, and verl's `concat` of two workers."""
    from verl.protocol import DataProto

    worker, postprocess = _Sample({}), verls_own(module.AgentLoopWorker, "_postprocess")
    together = postprocess(worker, [_Sample(row) for row in MIXED_ROWS])
    apart = verls_own(DataProto, "concat")([postprocess(worker, [_Sample(row)]) for row in MIXED_ROWS])
    return aligned(together) and aligned(apart)


@site.wraps("AgentLoopWorker.generate_sequences", "self", "batch", needed=unless(aligns_keys))
def _worker_generate_sequences(stock: Function) -> Function:
    async def generate_sequences(self: Any, batch: Any) -> Any:
        if REQUEST not in batch.meta_info:
            return await stock(self, batch)
        with holding(MANAGER_FINALIZES, True):
            output = await stock(self, batch)
        columns = output.non_tensor_batch
        carried = frozenset(name for name, column in batch.non_tensor_batch.items() if columns.get(name) is column)
        columns[REPLY] = np.fromiter([(verl_ext.__version__, carried)] * len(output), dtype=object)
        return output

    return generate_sequences


@site.wraps(
    "AgentLoopWorker._postprocess", "self", "inputs", "input_non_tensor_batch", REST, needed=unless(aligns_keys)
)
def _postprocess(stock: Function) -> Function:
    def _postprocess(self: Any, inputs: Any, input_non_tensor_batch: Any = None, *args: Any, **kwargs: Any) -> Any:
        from verl_ext.protocol import attach_reward_extra_info

        if not (MANAGER_FINALIZES.get() or driver_runs_plugin()):
            _warn_of_mixed_rows([sample.extra_fields.get(RAW_COLUMN) for sample in inputs])
            return stock(self, inputs, input_non_tensor_batch, *args, **kwargs)
        if self.reward_loop_worker_handles is not None and hasattr(self, "config"):
            required_scores([s.reward_score for s in inputs], input_non_tensor_batch or {}, self.config)
        for number, sample in enumerate(inputs):
            where = f"row {number} of {len(inputs)}{told_by(number, input_non_tensor_batch or {})}"
            refuse_unsendable(sample.extra_fields.get(RAW_COLUMN), where)
        rows = [sample.extra_fields.pop(RAW_COLUMN, _ABSENT) for sample in inputs]
        try:
            output = stock(self, inputs, input_non_tensor_batch, *args, **kwargs)
        finally:
            for sample, row in zip(inputs, rows, strict=True):
                if row is not _ABSENT:
                    sample.extra_fields[RAW_COLUMN] = row
        held, infos = output.non_tensor_batch, [None if row is _ABSENT else row for row in rows]
        if not MANAGER_FINALIZES.get():  # columns of the prompts give way, as in `finalized`
            carried = {name for name, column in (input_non_tensor_batch or {}).items() if held.get(name) is column}
            for name in carried.intersection(ordered_keys(infos)) - set(KEPT_BY_TRAINER):
                del held[name]
        return attach_reward_extra_info(output, infos)

    return _postprocess


def _warn_of_mixed_rows(rows: Sequence[Any]) -> None:
    schemas = {frozenset(row or ()) for row in rows}
    if len(schemas) > 1:
        sparse = frozenset().union(*schemas) - frozenset.intersection(*schemas)
        warn_once(
            "unmarked",
            "an agent-loop worker was asked by a driver that does not say that it runs verl-ext, so it acts as stock: "
            f"reward keys that not every sample has ({', '.join(sorted(map(shown, sparse))[:8])}) are lost there. "
            "Install verl-ext where the driver runs, and pass "
            "runtime_env=verl.trainer.constants_ppo.get_ppo_ray_runtime_env() to ray.init",
        )


@site.wraps("AgentLoopWorker._compute_score", "self", "outputs", "kwargs", needed=_scores_several_outputs)
def _compute_score(stock: Function) -> Function:
    async def _compute_score(self: Any, outputs: Any, kwargs: Any) -> Any:
        *earlier, final = outputs
        own = _dict(final.extra_fields.get(RAW_COLUMN)) if earlier else {}
        await stock(self, outputs, kwargs)
        if final.reward_score is None and self.reward_loop_worker_handles is not None:
            columns = {name: [value] for name, value in kwargs.items()}
            final.extra_fields[UNSCORED] = missing_score(None, 0, 1, columns, self.config)
            return
        if earlier:  # verl indexes the last one's reward info, which a loop that sets its own score may lack
            final.extra_fields.setdefault(RAW_COLUMN, {})
        if own:
            scored = _dict(final.extra_fields[RAW_COLUMN])
            final.extra_fields[RAW_COLUMN] = {**scored, **own, **scored}
        for output in earlier:
            if _dict(output.extra_fields.get(RAW_COLUMN)):
                output.extra_fields = _EarlierFields(output.extra_fields)

    return _compute_score


class _EarlierFields(dict[str, Any]):
    """The extra fields of an output that is not the last of its session.

    verl's v1 worker puts the last one's reward info in the place of its own (`AgentLoopWorkerTQ`,
    `_agent_loop_postprocess`). Here it gets it beside its own.
    """

    def __setitem__(self, name: str, value: Any) -> None:
        if name == RAW_COLUMN:
            value = {**_dict(value), **_dict(self.get(name))}
        super().__setitem__(name, value)


def _dict(found: Any) -> dict[Any, Any]:
    return found if isinstance(found, dict) else {}


@site.wraps("AgentLoopManager.generate_sequences", "self", "prompts", needed=unless(aligns_keys))
def _manager_generate_sequences(stock: Function) -> Function:
    from verl.utils.ray_utils import auto_await

    # `auto_await` looks at its caller's frame: it must stay outermost, so we wrap the coroutine inside it.
    taught: Function = auto_await(
        finalizing(inspect.unwrap(stock, stop=inspect.iscoroutinefunction), skip_role="rollout")
    )
    return taught


def finalizing(stock: Function, skip_role: str) -> Function:
    """verl's coroutine function by which a manager asks its workers, such that it finalizes what they answer.

    verl >= 0.9 dumps to disk, and replays, what the coroutine inside `SkipManager.annotate` returns. So that one is
    wrapped: a dump holds a finalized batch, which replays without the plugin too, and never one that was refused.
    """
    annotated = stock.__globals__["__name__"] == "verl.utils.skip.skip_manager"
    coroutine: Function = stock.__wrapped__ if annotated else stock  # type: ignore[attr-defined]

    async def generate(self: Any, prompts: Any) -> Any:
        if site.state is not State.ACTIVE:  # others have wrapped this function, and hold it after deactivation
            return await coroutine(self, prompts)
        with untaught_blamed(self.agent_loop_workers, site.name):
            output = await coroutine(self, marked(prompts))
        return finalized(output, self.agent_loop_workers, prompts.non_tensor_batch)

    if not annotated:
        return generate
    from verl.utils.skip import SkipManager

    taught: Function = SkipManager.annotate(role=skip_role)(generate)
    return taught


def _keeps_added_extra_fields(module: Any) -> bool:
    """Not so verl 0.8.0, 0.9.0: `extra_fields` that were only added to are not among Pydantic's (report 7486)."""
    output: Any = getattr(module, "AgentLoopOutput", None)
    if not hasattr(output, "as_dict"):
        return True
    sample = output(prompt_ids=[], response_ids=[], response_mask=[], metrics=module.AgentLoopMetrics())
    sample.extra_fields["added"] = True
    return "added" in sample.as_dict()["extra_fields"]


@site.wraps("AgentLoopOutput.as_dict", "self", needed=unless(_keeps_added_extra_fields))
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


def finalized(output: Any, workers: Sequence[Any], prompts: Mapping[str, Any]) -> Any:
    """What the manager hands on: the workers' output, finalized, once it is known that every worker runs the plugin.

    Args:
        output: what the workers returned, concatenated.
        workers: their Ray actor handles.
        prompts: the `non_tensor_batch` of what they were asked.

    Raises:
        PluginMissingError: a worker does not run the plugin.
        FieldCollisionError: a reward key names a tensor of the output, or, with other values, a column of the output or
            one that the trainer keeps of the prompts.
    """
    from verl_ext.protocol import JOINED_KEYS, REWARD_KEYS, completed, finalized_output

    columns = output.non_tensor_batch
    replies: list[tuple[str | None, frozenset[str]]]
    replies = [reply or (None, frozenset()) for reply in columns.pop(REPLY, [None])]
    if any(version != verl_ext.__version__ for version, _ in replies):
        refuse_untaught(workers, site.name)
    output.meta_info.pop(REQUEST, None)  # a worker class may hand on what it was asked
    raw = columns.get(RAW_COLUMN)
    if isinstance(raw, SparseNonTensor):
        # Columns that only the agent loop reads (index, priority, ...) give way to a reward key of that name, in their
        # place, as on stock.
        carried = frozenset(columns).intersection(*(names for _, names in replies)) - set(KEPT_BY_TRAINER)
        for name in carried.intersection(raw.keys()):
            columns[name] = np.fromiter(((row or {}).get(name) for row in raw.tolist()), dtype=object)
        kept = {name: prompts.get(name, "a column that the trainer keeps") for name in KEPT_BY_TRAINER}
        return finalized_output(output, kept)
    if REWARD_KEYS in output.meta_info:  # of the first worker
        output.meta_info[REWARD_KEYS] = getattr(output, JOINED_KEYS, None) or output.meta_info[REWARD_KEYS]
    named = output.meta_info.get(REWARD_KEYS) or ()
    if raw is not None:  # a worker class with a _postprocess of its own
        carried = frozenset(name for name, column in prompts.items() if same_value(columns.get(name), column))
        return completed(output, carried - {*named, *KEPT_BY_TRAINER, RAW_COLUMN})
    if named:
        warn_once(
            "own postprocess",
            "the agent-loop workers answer by a _postprocess of their own, which replaces verl's and hands on no "
            f"{RAW_COLUMN}: reward keys that not every sample has are what it makes of them. "
            "verl_ext.attach_reward_extra_info(output, dicts) carries them all",
        )
    return output
