"""Teaches validation metrics about reward keys that some samples lack, and about keys that are no numbers everywhere.

verl averages each key of each data source as it finds it. A key that every sample of a data source has goes through
verl's own function, bit for bit; the rest is averaged here, with verl's own bootstrap, over the values that are there.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from verl_ext.errors import shown
from verl_ext.plugin import _run
from verl_ext.plugin._site import REST, Function, PatchSite, warn_once
from verl_ext.plugin._trial import ALIGNED, unless, verls_own
from verl_ext.plugin.aggregator import data_sources
from verl_ext.schema import is_machine_number

site = PatchSite(
    name="metrics",
    module="verl.trainer.ppo.metric_utils",
    purpose="validation ends with a TypeError for reward keys that are no numbers everywhere, or splits their series",
)

Metrics: TypeAlias = dict[str, float]
BOOTSTRAPS = 1000


# --- training ----------------------------------------------------------------------------------------------------


@site.wraps("compute_data_metrics", "batch", REST)
def _compute_data_metrics(stock: Function) -> Function:
    def compute_data_metrics(batch: Any, *args: Any, **kwargs: Any) -> Any:
        from verl_ext.protocol import REWARD_KEYS

        metrics = stock(batch, *args, **kwargs)
        if REWARD_KEYS not in batch.meta_info:  # the v1 trainer's, whose rewards are in the queue
            return metrics
        held = batch.non_tensor_batch
        columns = {key: held[key] for key in batch.meta_info[REWARD_KEYS] if key in held}
        return {**metrics, **_run.current().metrics.step(columns, data_sources(batch), len(batch))}

    return compute_data_metrics


# --- validation --------------------------------------------------------------------------------------------------


def _averages_what_is_there(module: Any) -> bool:
    """verl's own averages of keys that a sample lacks, or that are no numbers everywhere."""
    average = verls_own(module, "process_validation_metrics")
    counts = {"expected_acc_counts": {("s", "a"): 1, ("s", "b"): 1}}
    known = counts.keys() & inspect.signature(average).parameters
    samples = {"found": ALIGNED, "acc": ALIGNED, "mixed": [1.0, "text"]}
    metrics = average(["s", "s"], ["a", "b"], samples, **{name: counts[name] for name in known})
    return bool(metrics["s"]["found"]["mean@1"] == metrics["s"]["acc"]["mean@1"] == 1.0)


@site.wraps(
    "process_validation_metrics",
    "data_sources",
    "sample_uids",
    "infos_dict",
    "seed",
    REST,
    needed=unless(_averages_what_is_there),
)
def _process_validation_metrics(stock: Function) -> Function:
    passable = {NUMBERS, TEXT, *([SPARSE_TEXT] if _leaves_none_out(stock) else [])}

    def process_validation_metrics(
        data_sources: Sequence[Any],
        sample_uids: Sequence[Any],
        infos_dict: Mapping[str, Sequence[Any]],
        seed: int = 42,
        **rest: Any,
    ) -> dict[Any, dict[str, Metrics]]:
        settings = _run.current().settings
        if settings.nan == "missing":
            infos_dict = {
                key: [None if settings.misses(value) else value for value in values]
                for key, values in infos_dict.items()
            }
        # verl >= 0.9.1: how many sessions of a prompt were started, failed ones included
        expected_acc_counts: Mapping[tuple[str, str], int] = rest.get("expected_acc_counts") or {}
        rows_by_source: dict[Any, list[int]] = {}
        for row, source in enumerate(data_sources):
            rows_by_source.setdefault(source, []).append(row)
        kinds = {
            source: {key: _kind([values[row] for row in rows]) for key, values in infos_dict.items()}
            for source, rows in rows_by_source.items()
        }
        for source, by_key in kinds.items():
            for key in (key for key, kind in by_key.items() if kind == MIXED):
                warn_once(
                    ("validation", key),
                    f"validation metrics: {shown(key)} is not a number in every sample of data source "
                    f"{shown(str(source))}, nor text in every one; it is left out",
                )
        if all(kind in passable for by_key in kinds.values() for kind in by_key.values()):
            result: dict[Any, dict[str, Metrics]] = stock(data_sources, sample_uids, infos_dict, seed, **rest)
            return result

        merged: dict[Any, dict[str, Metrics]] = {}
        for source, rows in rows_by_source.items():
            uids = [sample_uids[row] for row in rows]
            infos = {key: [values[row] for row in rows] for key, values in infos_dict.items()}
            dense = {key: values for key, values in infos.items() if kinds[source][key] in passable}
            counts = {key: count for key, count in expected_acc_counts.items() if key[0] == str(source)}
            own = rest | {"expected_acc_counts": counts if "acc" in dense else {}} if counts else rest
            averaged = dict(stock([source] * len(rows), uids, dense, seed, **own).get(source, {}))
            for key in (key for key in infos if kinds[source][key] == SPARSE):
                failed = _failed_sessions(counts, uids) if key == "acc" else {}
                averaged[key] = _sparse_metrics(uids, infos[key], infos.get("pred"), failed, seed)
                if failed:
                    averaged["acc_success_only"] = _sparse_metrics(uids, infos[key], None, {}, seed)
            merged[source] = {key: averaged[key] for key in dict.fromkeys([*infos, *averaged]) if key in averaged}
        return merged

    return process_validation_metrics


NUMBERS, TEXT, SPARSE, SPARSE_TEXT, MIXED, NOTHING = "numbers", "text", "sparse", "sparse text", "mixed", "nothing"


def _leaves_none_out(stock: Function) -> bool:
    """verl >= 0.9.1 drops `None`s before it averages; verl before takes the mean of them: TypeError."""
    try:
        stock(["source"], ["prompt"], {"key": [None]})
    except TypeError:
        return False
    return True


def _kind(values: Sequence[Any]) -> str:
    """What the values of one key are within one data source: the first line that fits."""
    present = [value for value in values if value is not None]
    texts = sum(isinstance(value, str) for value in present)
    counted = sum(map(_can_be_averaged, present))
    if not present:
        return NOTHING
    if texts == len(present):
        return TEXT if texts == len(values) else SPARSE_TEXT
    if counted < len(present):
        return MIXED
    return NUMBERS if len(present) == len(values) else SPARSE


def _can_be_averaged(value: Any) -> bool:
    """By NumPy, as verl does it: not so fractions, and integers whose sum may be beyond float64."""
    return is_machine_number(value) and not (isinstance(value, int) and abs(value) > 1e300)


def _failed_sessions(counts: Mapping[tuple[str, str], int], uids: Iterable[Any]) -> dict[str, int]:
    """By prompt, how many sessions were started and left no sample: verl counts each as accuracy 0."""
    failed = {uid: count for (_, uid), count in counts.items()}
    for uid in uids:
        if str(uid) in failed:
            failed[str(uid)] -= 1
    return {uid: max(count, 0) for uid, count in failed.items()}


def _sparse_metrics(
    uids: Sequence[Any],
    values: Sequence[Any],
    preds: Sequence[Any] | None,
    failed: Mapping[str, int],
    seed: int,
) -> Metrics:
    """verl's metrics of one key in one data source, over the values that are there.

    First over a prompt's responses that have the key, then over the prompts that have any. A series is named by the
    prompt's number of responses, so that it does not split by how many happened to have the key; `coverage@N` is the
    share of them that do, over all prompts.
    """
    prompts: dict[str, list[tuple[Any, Any]]] = {uid: [] for uid, count in failed.items() if count}
    for row, uid in enumerate(uids):
        prompts.setdefault(str(uid), []).append((values[row], preds[row] if preds is not None else None))
    series: dict[str, list[float]] = {}
    for uid, samples in prompts.items():
        zeros = [(0.0, None)] * failed.get(uid, 0)
        present = [sample for sample in [*samples, *zeros] if sample[0] is not None]
        responses = len(samples) + len(zeros)
        series.setdefault(f"coverage@{responses}", []).append(len(present) / responses)
        if present:
            for name, value in _prompt_metrics(present, responses, seed).items():
                series.setdefault(name, []).append(value)
    return {name: float(np.mean(per_prompt)) for name, per_prompt in series.items()}


def _prompt_metrics(present: Sequence[tuple[Any, Any]], responses: int, seed: int) -> Metrics:
    """The metrics of one prompt: `present` are its (value, prediction) pairs, of `responses` responses."""
    from verl.trainer.ppo.metric_utils import bootstrap_metric, calc_maj_val

    values = [value for value, _ in present]
    metrics = {f"mean@{responses}": float(np.mean(values))}
    if responses == 1:
        return metrics
    metrics[f"std@{responses}"] = float(np.std(values))
    votes = [{"val": value, "pred": pred} for value, pred in present if pred is not None]
    draw = partial(bootstrap_metric, n_bootstrap=BOOTSTRAPS, seed=seed)
    for size in _subset_sizes(responses):
        best, worst = draw(data=values, subset_size=size, reduce_fns=[np.max, np.min])
        drawn = {"best": best, "worst": worst}
        if votes:
            drawn["maj"] = draw(
                data=votes, subset_size=size, reduce_fns=[partial(calc_maj_val, vote_key="pred", val_key="val")]
            )[0]
        for name, (mean, std) in drawn.items():
            metrics |= {f"{name}@{size}/mean": mean, f"{name}@{size}/std": std}
    return metrics


def _subset_sizes(responses: int) -> list[int]:
    """The powers of two below the number of responses, and that number: the series that verl logs."""
    return [*(2**power for power in range(1, responses.bit_length()) if 2**power < responses), responses]
