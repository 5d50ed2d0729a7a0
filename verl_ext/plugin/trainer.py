"""Teaches the DataProto trainers (legacy, one-step-off, fully async) what they do with reward columns after the reward.

Settings are checked at start, validation batches of different schemas are kept in line, and dumps write what is there.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import numpy as np

from verl_ext.column import RAW_COLUMN
from verl_ext.dump_fields import ABSTAINED
from verl_ext.errors import SettingsError, shown
from verl_ext.names import Names
from verl_ext.plugin import _run
from verl_ext.plugin._abstain import (
    SETTING,
    as_a_scored_one,
    refuse_all_unscored,
    refuse_where_not_left_out,
    silence,
    spread,
    unscored,
)
from verl_ext.plugin._dump import GENERATIONS, dumping_dumpable, writes_rows_whole, writing_dumpable
from verl_ext.plugin._site import REST, Function, PatchSite, binder, holding, warn_once
from verl_ext.plugin._trial import mentions, unless, verls_own
from verl_ext.plugin.advantage import component_keys
from verl_ext.settings import COMPARED, Settings, training_values

site = PatchSite(
    name="trainer",
    module="verl.trainer.ppo.ray_trainer",
    purpose="validation over batches of different reward schemas ends in an assertion, and dumps lose scores",
)

OWN_METRIC = "reward"
"""The list that verl's validation fills itself; a reward key of this name would be counted twice."""

RENAMED = f"reward_extra/{OWN_METRIC}"
"""Where a reward function's own key of that name is kept."""


def _writes_in_the_background(module: Any) -> bool:
    """verl >= 0.8: `_dump_generations` hands over to `_write_generations` in a thread."""
    return hasattr(getattr(module, "RayPPOTrainer", None), "_write_generations")


def beginning_run(stock: Function) -> Function:
    """The `__init__` of a trainer of verl's, such that a run begins with it."""

    def init(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        _begin_run(self, config)
        stock(self, config, *args, **kwargs)

    return init


site.wraps("RayPPOTrainer.__init__", "self", "config", REST)(beginning_run)


@site.wraps("RayPPOTrainer._init_dump_executor", "self", needed=_writes_in_the_background)
def _init_dump_executor(stock: Function) -> Function:
    def _init_dump_executor(self: Any) -> Any:
        # The first that every constructor calls: those of fully async's trainer and rollouter skip RayPPOTrainer's.
        _begin_run(self, self.config)
        return stock(self)

    return _init_dump_executor


@site.wraps("RayPPOTrainer.fit", "self")
def _fit(stock: Function) -> Function:
    def fit(self: Any) -> Any:
        _run.of(self)
        return stock(self)

    return fit


def _begin_run(trainer: Any, config: Any) -> None:
    """Refuse wrong settings by name at start, and warn of those that nothing will read."""
    run = _run.of(trainer, config)
    legacy = isinstance(trainer, getattr(sys.modules.get(site.module), "RayPPOTrainer", ()))
    own_filter = _defines_itself(trainer, "fit")
    algorithm = _part(config, "algorithm")
    group_filter = _part(algorithm, "filter_groups")
    metric = group_filter.get("metric", None) if group_filter.get("enable", True) else None
    run.filter_metric = metric if own_filter and metric not in _COMPUTED_METRICS else None
    _refuse_not_supported(run.settings, config, metric if own_filter else None)
    read = {*component_keys(algorithm), metric if own_filter or not legacy else None}
    for key in run.settings.fill.keys() - read:
        warn_once(
            ("fill", key),
            f"verl_ext.fill is set for {shown(key)}, which is neither among algorithm.gdpo_reward_keys nor the metric "
            "of algorithm.filter_groups of a trainer that filters: nothing reads it",
        )
    if legacy and _defines_itself(trainer, "_validate"):
        trainer._validate = MethodType(_in_line(type(trainer)._validate), trainer)


def _refuse_not_supported(settings: Settings, config: Any, filter_metric: str | None) -> None:
    """Refuse by name what cannot be done with samples that abstain."""
    if not settings.abstains:
        return
    refuse_where_not_left_out(settings)
    algorithm = _part(config, "algorithm")
    workers = _part(config, "trainer").get("use_legacy_worker_impl", None) or "disable"  # verl 0.7 has two forms
    policy_loss = _part(config, "actor_rollout_ref", "actor", "policy_loss")
    reasons = {
        "algorithm.use_pf_ppo draws samples by their scores": algorithm.get("use_pf_ppo", False),
        f"algorithm.filter_groups.metric={filter_metric} is computed of a batch's tensors, whoever has a score: name a "
        "reward key, such as score or acc": filter_metric in _COMPUTED_METRICS,
        f"with trainer.use_legacy_worker_impl={workers} the loss of a micro-batch in which nothing is scored is NaN: "
        "set it to disable": workers != "disable",
        "actor_rollout_ref.actor.policy_loss.loss_mode=bypass_mode stops at a micro-batch in which nothing is scored": (
            policy_loss.get("loss_mode", None) == "bypass_mode"
        ),
        "distillation needs no scores, and stops at a micro-batch in which nothing is scored": (
            _part(config, "distillation").get("enabled", False)
        ),
        "in this verl (0.8) a critic's loss of a micro-batch in which nothing is scored is NaN: take an estimator "
        "without a critic": _has_critic(config) and not _sums_value_losses_up(),
    }
    for reason, holds in reasons.items():
        if holds:
            raise SettingsError(f"{SETTING} cannot be: {reason}")


def _has_critic(config: Any) -> bool:
    enabled = _part(config, "critic").get("enable", None)
    return bool(_part(config, "algorithm").get("adv_estimator", None) == "gae" if enabled is None else enabled)


def _sums_value_losses_up() -> bool:
    """Not so verl 0.8, which divides the loss of each micro-batch by its own tokens, of which there may be none."""
    from verl.workers.utils import losses

    return mentions(verls_own(losses, "value_loss"), "batch_num_tokens")


def _part(config: Any, *path: str) -> Any:
    """A part of verl's configuration; an empty one where there is none."""
    for name in path:
        config = config.get(name, None) or {}
    return config


def _defines_itself(trainer: Any, method: str) -> bool:
    """Whether a trainer's method is no verl's: that of a recipe, or of a user's own class."""
    home = next((cls for cls in type(trainer).__mro__ if method in vars(cls)), None)
    return home is not None and home.__module__.partition(".")[0] != "verl"


_COMPUTED_METRICS = ("seq_reward", "seq_final_reward")
"""Metrics of a group filter that recipes compute of a batch's tensors themselves; no reward keys."""


# --- validation --------------------------------------------------------------------------------------------------


@dataclass
class _Ledger:
    """What one run of `_validate` has seen: so many rows, with these reward keys."""

    rows: int = 0
    keys: dict[Any, None] = field(default_factory=dict)
    names: Names[Any] = field(default_factory=Names)

    def in_line(self, infos: Mapping[Any, Any], rows: int) -> dict[Any, Any]:
        """The reward columns of the next batch, such that verl's lists stay as long as the samples.

        verl extends one list per key and batch. So a key that this batch lacks gets `None`s, and a key that comes for
        the first time brings the `None`s of the rows before it.
        """
        names = kept_apart(infos, self.names)
        infos = {names[key]: column for key, column in infos.items()}
        lines = {key: column if key in self.keys else _behind(self.rows, column) for key, column in infos.items()}
        lines.update({key: np.full(rows, None, dtype=object) for key in self.keys if key not in infos})
        self.rows += rows
        self.keys.update(dict.fromkeys(infos))
        return lines


def kept_apart(keys: Iterable[Any], names: Names[Any]) -> dict[Any, Any]:
    """By reward key, itself, or another name for it where verl's validation fills a list of that name itself.

    Args:
        keys: of a batch.
        names: what the keys of the batches before are called.
    """
    keys = dict.fromkeys(keys)
    apart = {key: names.of(key, RENAMED) for key in (RENAMED, OWN_METRIC) if key in keys}
    if OWN_METRIC in apart:
        warn_once(
            "own metric",
            f"the reward function returns a key named {OWN_METRIC!r}, which is also verl's own validation metric; "
            f"it is kept apart as {apart[OWN_METRIC]!r}",
        )
    return {key: apart.get(key, key) for key in keys}


def _behind(rows: int, column: Any) -> Any:
    if rows == 0:
        return column
    values = column.tolist() if isinstance(column, np.ndarray) else column
    return np.fromiter([*[None] * rows, *values], dtype=object)  # an array, as verl's own columns


_ledger: ContextVar[_Ledger | None] = ContextVar("verl_ext_validation", default=None)


@contextmanager
def validation() -> Iterator[None]:
    """While the block runs, what verl's `extract_reward` returns for batch after batch stays in line.

    For a trainer whose validation is its own and that does not inherit verl's: inside the block each list that grows
    by a batch's reward columns is as long as the samples so far, with `None` where a batch lacks a key. One block for
    each validation. Does nothing where the plugin is off.
    """
    with holding(_ledger, _Ledger()):
        yield


def _in_line(stock: Function) -> Function:
    @functools.wraps(stock)
    def _validate(self: Any, *args: Any, **kwargs: Any) -> Any:
        _run.of(self)
        with validation():
            return stock(self, *args, **kwargs)

    return _validate


@site.wraps("RayPPOTrainer._validate", "self", REST)
def _validate(stock: Function) -> Function:
    return _in_line(stock)


@site.wraps("extract_reward", "batch")
def _extract_reward(stock: Function) -> Function:
    def extract_reward(batch: Any) -> Any:
        scores, infos = stock(batch)
        ledger, run = _ledger.get(), _run.current()
        if ledger is None:
            if run.settings.abstains and "response_mask" in batch.batch.keys():
                missing = unscored(batch.batch)
                if run.filter_metric is None:  # a filter asks for other samples then
                    refuse_all_unscored(missing)
                if missing.any():  # before anything is computed over all of the batch's tokens
                    silence(batch, missing)
            return scores, _with_filter_metric(infos, len(scores), batch.non_tensor_batch)
        return scores, ledger.in_line(infos, len(scores))

    return extract_reward


def _with_filter_metric(infos: Mapping[str, Any], rows: int, columns: Mapping[str, Any]) -> Mapping[str, Any]:
    """Reward columns for a trainer that filters groups by one of them, whose `np.std` takes no `None`.

    Raises:
        MissingRewardError: samples lack the metric, and it has no fill value.
    """
    run = _run.current()
    metric, settings = run.filter_metric, run.settings
    whys = infos.get(ABSTAINED, ()) if settings.abstains else ()
    if metric is None or (metric in infos and not any(map(settings.misses, infos[metric])) and not any(whys)):
        return infos
    column = infos.get(metric, [None] * rows)
    if any(whys):
        column = as_a_scored_one(list(column), whys, columns["uid"], 0.0)
    return {**infos, metric: training_values(metric, column, settings, columns.get("data_source"), COMPARED)}


@site.wraps("RayPPOTrainer._merge_validation_results", "self", "result_a", "result_b")
def _merge_validation_results(stock: Function) -> Function:
    def _merge_validation_results(self: Any, result_a: Any, result_b: Any) -> Any:
        results = (result_a, result_b)
        keys = dict.fromkeys(key for result in results if result for key in result["reward_extra_infos_dict"])
        return stock(self, *(_with_keys(result, keys) if result else result for result in results))

    return _merge_validation_results


def _with_keys(result: Mapping[str, Any], keys: Iterable[Any]) -> dict[str, Any]:
    """What a `_validate` has returned, with `None`s for the keys that it has not seen."""
    infos, missing = result["reward_extra_infos_dict"], [None] * len(result["sample_uids"])
    return {**result, "reward_extra_infos_dict": {key: infos.get(key, missing) for key in keys}}


# --- training ----------------------------------------------------------------------------------------------------

_COMPONENTS = "_verl_ext_components"
"""Attribute of a trained batch: of the GDPO components that some of its samples lack, the values of the others."""


@site.wraps("compute_advantage", "data", "adv_estimator", REST)
def _compute_advantage(stock: Function) -> Function:
    bind = binder(stock)

    def compute_advantage(*args: Any, **kwargs: Any) -> Any:
        call = bind(*args, **kwargs)
        config, whole = call.arguments.get("config"), call.arguments["data"]
        missing = unscored(whole.batch) if _abstains(config) else None
        if missing is None or not missing.any():
            data = scored = stock(*args, **kwargs)
        else:
            refuse_all_unscored(missing)
            data, scored = whole, _advantages_of_scored(stock, call, ~missing)
            silence(data, missing)
            _put_filter_metric_back(data.non_tensor_batch, missing.tolist())
        if call.arguments["adv_estimator"] == "gdpo":
            misses = Settings.of(config).misses
            columns = {key: scored.non_tensor_batch.get(key, ()) for key in component_keys(config)}
            present = {key: [value for value in column if not misses(value)] for key, column in columns.items()}
            setattr(data, _COMPONENTS, {key: values for key, values in present.items() if 0 < len(values) < len(data)})
        return data

    return compute_advantage


def _abstains(algorithm: Any) -> bool:
    """Whether samples may abstain, by verl's `config.algorithm`; by the run, where it is no node of a configuration."""
    settings = Settings.of(algorithm) if hasattr(algorithm, "_get_root") else _run.current().settings
    return settings.abstains


def _put_filter_metric_back(columns: dict[str, Any], missing: Sequence[bool]) -> None:
    """Give unscored samples back what they returned as the metric of a group filter, which is at an end by now."""
    metric = _run.current().filter_metric
    if metric in columns:
        rows = columns.get(RAW_COLUMN, [None] * len(missing))
        values = zip(columns[metric].tolist(), rows, missing, strict=True)
        column = [(row or {}).get(metric) if lacks else value for value, row, lacks in values]
        columns[metric] = np.fromiter(column, dtype=object)


def _advantages_of_scored(stock: Function, call: inspect.BoundArguments, rows: Any) -> Any:
    """Give the batch of a call of `compute_advantage` the advantages of the samples `rows`; the others' are zeros.

    Args:
        stock: verl's function.
        call: its arguments.
        rows: the samples that have a score, bool `(batch,)`.

    Returns:
        The batch of those samples.
    """
    data = call.arguments["data"]
    if "response_mask" not in data.batch.keys():
        data.batch["response_mask"] = stock.__globals__["compute_response_mask"](data)
    if call.arguments["adv_estimator"] == "grpo_passk":  # which raises where a sample has none to be compared with
        rows = rows & rows.new_tensor(_has_others(data.non_tensor_batch["uid"], rows.tolist()))
    call.arguments["data"] = data.select_idxs(rows)
    scored = stock(*call.args, **call.kwargs)
    for name in ("advantages", "returns"):
        data.batch[name] = spread(scored.batch[name], rows)
    return scored


def _has_others(groups: Sequence[Any], scored: Sequence[bool]) -> list[bool]:
    """Of which samples the group has more than one scored sample."""
    counts = Counter(group for group, is_scored in zip(groups, scored, strict=True) if is_scored)
    return [counts[group] > 1 for group in groups]


@site.wraps("apply_kl_penalty", "data", "kl_ctrl", REST)
def _apply_kl_penalty(stock: Function) -> Function:
    def apply_kl_penalty(data: Any, kl_ctrl: Any, *args: Any, **kwargs: Any) -> Any:
        missing = unscored(data.batch) if _run.current().settings.abstains else None
        if missing is None or not missing.any():
            return stock(data, kl_ctrl, *args, **kwargs)
        refuse_all_unscored(missing)
        # The controller goes by the mean of the samples that train.
        scored, metrics = stock(data.select_idxs(~missing), kl_ctrl, *args, **kwargs)
        rewards = spread(scored.batch["token_level_rewards"], ~missing, data.batch["token_level_scores"])
        data.batch["token_level_rewards"] = rewards
        return data, metrics

    return apply_kl_penalty


@site.wraps("compute_timing_metrics", "batch", "timing_raw")
def _compute_timing_metrics(stock: Function) -> Function:
    def compute_timing_metrics(batch: Any, timing_raw: Any) -> Any:
        # The first that `fit` calls after it has made NaN of the means of GDPO components that some samples lack.
        metrics = dict(stock(batch, timing_raw))
        for key, present in getattr(batch, _COMPONENTS, {}).items():
            values = np.array(present, dtype=np.float32)
            metrics.update({f"gdpo/{key}/{how.__name__}": float(how(values)) for how in (np.mean, np.std)})
            metrics.update({f"gdpo/{key}/max": float(values.max()), f"gdpo/{key}/min": float(values.min())})
        return metrics

    return compute_timing_metrics


# --- dumps -------------------------------------------------------------------------------------------------------


@site.wraps("RayPPOTrainer._log_rollout_data", "self", "batch", "reward_extra_infos_dict", REST)
def _log_rollout_data(stock: Function) -> Function:
    def _log_rollout_data(self: Any, batch: Any, reward_extra_infos_dict: Any, *args: Any, **kwargs: Any) -> Any:
        # The trainer took these lists before it may have reordered, filtered or cut the batch, which has them still.
        columns = batch.non_tensor_batch
        infos = {key: columns.get(key, values) for key, values in reward_extra_infos_dict.items()}
        return stock(self, batch, infos, *args, **kwargs)

    return _log_rollout_data


def _dumps_rows_whole(module: Any) -> bool:
    return not _writes_in_the_background(module) or writes_rows_whole(
        verls_own(module.RayPPOTrainer, "_write_generations")
    )


@site.wraps("RayPPOTrainer._write_generations", *GENERATIONS, needed=unless(_dumps_rows_whole))
def _write_generations(stock: Function) -> Function:
    return writing_dumpable(stock)


@site.wraps(
    "RayPPOTrainer._dump_generations", "self", *GENERATIONS[:-1], needed=lambda m: not _writes_in_the_background(m)
)
def _dump_generations(stock: Function) -> Function:
    return dumping_dumpable(stock)
