"""Teaches `RewardLoopManager.compute_rm_score` to return every key of every row, on any number of workers.

verl's manager takes the batch's keys from its first row. So each worker hands its rows back in an envelope under one
constant key, which verl's own assembly sees as one uniform schema, and the manager's result is unwrapped and finalized.
Workers do so only for a request that carries the manager's mark; a worker that does not is a named error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import verl_ext
from verl_ext.column import RAW_COLUMN, Row, SparseNonTensor
from verl_ext.dump_fields import ABSTAINED
from verl_ext.errors import MissingRewardError, shown
from verl_ext.plugin._abstain import SETTING, abstaining, may_abstain, promise_to_leave_out, unscored
from verl_ext.plugin._guard import refusing_mixed_rows
from verl_ext.plugin._raised import as_named, comes_from_outside, current_task
from verl_ext.plugin._sendable import changed, sendable
from verl_ext.plugin._site import REST, Function, PatchSite, log
from verl_ext.plugin._trial import MIXED_ROWS, aligned, seeing, unless, verls_own
from verl_ext.plugin._workers import REQUEST, marked, refuse_untaught, untaught_blamed
from verl_ext.settings import Settings

site = PatchSite(
    name="reward_loop",
    module="verl.experimental.reward_loop.reward_loop",
    purpose="reward keys that the first row of a batch lacks are lost, and keys that a later row lacks are a KeyError",
    guard=refusing_mixed_rows,
)

ENVELOPE = "verl_ext/reward_extra_info"
"""The one reward key that verl's own assembly sees in a reply: `{"version": ..., "row": ...}` for every row."""


ROWS = "_verl_ext_rows"
"""Attribute of what the manager returns: the rows as they came, for a caller in this process."""


@site.wraps("RewardLoopWorker.compute_score", "self", "data")
def _compute_score(stock: Function) -> Function:
    async def compute_score(self: Any, data: Any) -> Any:
        # A discriminative reward model answers without extra info. The manager reads that as {}, but the agent loop,
        # which asks for single samples, indexes it: KeyError.
        sample = f"a sample{told_by(0, data.non_tensor_batch)}"
        task = current_task()
        try:
            answer = await stock(self, data)
        except BaseException as error:
            named = None if comes_from_outside(error, task) else as_named(error, sample, _scorer(self.config))
            if named is None:
                raise
            raise named from None  # the text of the error may be what ends the worker
        answer = {**answer, "reward_extra_info": answer.get("reward_extra_info", {})}
        if may_abstain(self.config):
            answer = abstaining(answer, as_number(answer["reward_score"]), Settings.of(self.config), sample)
        return sendable(answer, sample)

    return compute_score


def _aligns_keys(module: Any) -> bool:
    """The manager's assembly, on two rows of which only the second has a key."""
    import torch
    from verl.protocol import DataProto

    scored = [{"reward_score": 0.0, "reward_extra_info": row} for row in MIXED_ROWS]
    manager = SimpleNamespace(
        reward_model_manager=None,
        reward_loop_workers=[SimpleNamespace(compute_score_batch=SimpleNamespace(remote=lambda chunk: chunk))],
        reward_manager_cls=SimpleNamespace(assemble_rm_scores=lambda data, scores: torch.zeros(len(data), 1)),
    )
    names = ("prompts", "responses", "attention_mask")
    batch = DataProto.from_dict(tensors={name: torch.ones(len(scored), 1, dtype=torch.long) for name in names})
    ray = SimpleNamespace(get=lambda chunks: [scored])
    reply = seeing(verls_own(module.RewardLoopManager, "compute_rm_score"), ray=ray)(manager, batch)
    return aligned(reply)


@site.wraps("RewardLoopWorker.compute_score_batch", "self", "data", needed=unless(_aligns_keys))
def _compute_score_batch(stock: Function) -> Function:
    async def compute_score_batch(self: Any, data: Any) -> Any:
        outputs = await stock(self, data)
        if REQUEST not in data.meta_info:
            return outputs
        kind = as_number if _makes_a_tensor_of_numbers(self) else _as_it_is
        scores = required_scores(
            [output["reward_score"] for output in outputs], data.non_tensor_batch, self.config, kind
        )
        return [
            changed(output, reward_score=score, reward_extra_info=_envelope(output.get("reward_extra_info")))
            for output, score in zip(outputs, scores, strict=True)
        ]

    return compute_score_batch


def _makes_a_tensor_of_numbers(worker: Any) -> bool:
    """Whether the scores go into a tensor as they are; a reward manager may assemble what it likes by itself."""
    from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

    own, base = (
        inspect.getattr_static(cls, "assemble_rm_scores", None)
        for cls in (type(worker.reward_manager), RewardManagerBase)
    )
    return own is base


def as_number(score: Any) -> float | None:
    """The number that a tensor of scores holds for a score, or `None`; an array-like of one number counts as that."""
    import torch

    if type(score) is float:
        return score
    if isinstance(score, bytes | bytearray | memoryview):  # torch would take b"1" for 49
        return None
    for scores in ([0.0, score], [score]):
        try:
            found = torch.tensor(scores, dtype=torch.float32)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            continue
        if found.numel() == len(scores):
            return float(found[-1].item())
    return None


def _as_it_is(score: Any) -> Any:
    return score


def required_scores(
    scores: Sequence[Any], columns: Mapping[str, Any], config: Any, kind: Callable[[Any], Any] = as_number
) -> list[Any]:
    """The scores, each as `kind` makes it.

    On stock verl, where one is `None`, `rm_scores` vanish for the whole batch, or a KeyError or TypeError follows.

    Args:
        scores: by row.
        columns: the batch's `non_tensor_batch`, for the data source and the index of the row.
        config: verl's configuration, for the name of the scorer.
        kind: makes of a score what is needed, and `None` of what does not serve.

    Raises:
        MissingRewardError: names the first row without a score, the data source and the scorer.
    """
    found = [kind(score) for score in scores]
    for row, score in enumerate(found):
        if score is None:
            raise MissingRewardError(missing_score(scores[row], row, len(scores), columns, config))
    return found


def missing_score(score: Any, row: int, rows: int, columns: Mapping[str, Any], config: Any) -> str:
    """What to say of a sample without a score: the other arguments are those of `required_scores`."""
    return (
        f"the score of row {row} of {rows}{told_by(row, columns)} is {shown(score)} (from {_scorer(config)}): "
        "return a number, for example 0.0 for an answer that cannot be scored"
        + (f"; or let a sample whose score is None train nothing: {SETTING}" if score is None else "")
    )


def _scorer(config: Any) -> str:
    custom = config.reward.get("custom_reward_function") or {}
    function = f"{custom.get('path')}:{custom.get('name')}" if custom.get("path") else "verl's own scorer"
    return f"{function}, reward manager {shown(str(config.reward.reward_manager.name))}"


def told_by(row: int, columns: Mapping[str, Any]) -> str:
    """By what a user tells a row from others: its data source and its index, as far as the columns have them."""
    source = f", data source {shown(str(columns['data_source'][row]))}" if "data_source" in columns else ""
    info = columns["extra_info"][row] if "extra_info" in columns else None
    index = f", index {shown(info['index'])}" if isinstance(info, dict) and "index" in info else ""
    return source + index


def _envelope(row: Row) -> dict[str, Any]:
    # In a dict, since NumPy would open a tuple or a list.
    return {ENVELOPE: {"version": verl_ext.__version__, "row": row}}


@site.wraps("RewardLoopManager.__init__", "self", "config", REST)
def _init(stock: Function) -> Function:
    def init(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        promise_to_leave_out(config)  # in the driver, whatever its trainer
        stock(self, config, *args, **kwargs)

    return init


@site.wraps("RewardLoopManager.compute_rm_score", "self", "data", needed=unless(_aligns_keys))
def _compute_rm_score(stock: Function) -> Function:
    def compute_rm_score(self: Any, data: Any) -> Any:
        from verl_ext.protocol import SparseDataProto

        if len(data) == 0:  # verl looks into row 0
            return _without_rows(data).finalize(keep_raw=False)
        with untaught_blamed(self.reward_loop_workers, site.name), _asleep_after_errors(self.reward_model_manager):
            reply = stock(self, marked(data))
        envelopes = reply.non_tensor_batch.pop(ENVELOPE, None)
        if envelopes is None:
            refuse_untaught(self.reward_loop_workers, site.name)
            log.warning(
                "verl-ext: the reward workers answer by a compute_score_batch of their own, which replaces verl's: "
                "reward keys that not every row has are treated as by stock verl"
            )
            return reply
        if any(envelope["version"] != verl_ext.__version__ for envelope in envelopes):
            refuse_untaught(self.reward_loop_workers, site.name)
        rows = SparseNonTensor(envelope["row"] for envelope in envelopes)
        scored = SparseDataProto(batch=reply.batch, non_tensor_batch={RAW_COLUMN: rows})
        tensors = dict.fromkeys(data.batch.keys(), "a tensor of the batch that was scored")
        scored.finalize(reserved=tensors, keep_raw=False)
        setattr(scored, ROWS, rows.tolist())
        if may_abstain(self.config):
            _keep_missing(scored.batch, [bool((row or {}).get(ABSTAINED)) for row in rows.tolist()])
        return scored

    return compute_rm_score


def _keep_missing(scored: Any, missing: Sequence[bool]) -> None:
    """See to it that the scores of samples that have none are NaN, whatever a reward manager has assembled of them.

    Raises:
        MissingRewardError: its assembly has made NaN of the score of a sample that has one.
    """
    import torch

    rows, found, scores = torch.tensor(missing), unscored(scored), scored["rm_scores"]
    if bool((found & ~rows).any()):
        raise MissingRewardError(
            "the reward manager's own assemble_rm_scores has made NaN of the scores of samples that have one: it must "
            f"leave out those that are NaN, which have none ({SETTING})"
        )
    if bool((rows & ~found).any()):
        scored["rm_scores"] = torch.where(rows.reshape(-1, *[1] * (scores.ndim - 1)), torch.nan, scores)


@contextmanager
def _asleep_after_errors(reward_model: Any) -> Iterator[None]:
    """For a call that wakes the reward model: where it fails, stock verl leaves the model awake, on the GPU's memory.

    Args:
        reward_model: verl's `RewardModelManager`, or `None`.
    """
    try:
        yield
    except BaseException:
        if reward_model is not None:
            try:
                reward_model.sleep()
            except Exception:  # the error that brought us here says more
                log.warning("verl-ext: the reward model could not be put back to sleep", exc_info=True)
        raise


def _without_rows(data: Any) -> Any:
    import torch
    from tensordict import TensorDict

    from verl_ext.protocol import SparseDataProto

    scores = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
    return SparseDataProto(
        batch=TensorDict({"rm_scores": scores}, batch_size=0), non_tensor_batch={RAW_COLUMN: SparseNonTensor()}
    )
