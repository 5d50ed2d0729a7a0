"""Patches verl's metrics: training logs reward keys, and validation those that some samples lack, or cannot average.

How validation averages a key is in `_averages`. Here is what it averages, and under which names.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from verl_ext.dump_fields import ABSTAINED
from verl_ext.names import Names
from verl_ext.plugin import _run
from verl_ext.plugin._abstain import unscored
from verl_ext.plugin._averages import Averages, Metrics, Samples
from verl_ext.plugin._site import REST, Function, PatchSite
from verl_ext.plugin._trial import ALIGNED, unless, verls_own
from verl_ext.plugin.aggregator import data_sources
from verl_ext.reward_metrics import scalar

site = PatchSite(
    name="metrics",
    module="verl.trainer.ppo.metric_utils",
    purpose="validation ends with a TypeError for reward keys that are no numbers everywhere, or splits their series",
)


# --- training ----------------------------------------------------------------------------------------------------


@site.wraps("compute_data_metrics", "batch", REST)
def _compute_data_metrics(stock: Function) -> Function:
    def compute_data_metrics(batch: Any, *args: Any, **kwargs: Any) -> Any:
        from verl_ext.protocol import REWARD_KEYS

        run, metrics, columns = _run.current(), stock(batch, *args, **kwargs), {}
        if run.settings.abstains:
            missing = unscored(batch.batch)
            columns[ABSTAINED] = missing.tolist()
            if missing.any():
                scored = stock(batch.select_idxs(~missing), *args, **kwargs)
                metrics = {**metrics, **{name: scored[name] for name in scored if name.startswith("critic/")}}
        if REWARD_KEYS not in batch.meta_info:  # the v1 trainer's, whose rewards are in the queue
            return metrics
        held = batch.non_tensor_batch
        columns = {**{key: held[key] for key in batch.meta_info[REWARD_KEYS] if key in held}, **columns}
        return {**metrics, **run.metrics.step(columns, data_sources(batch), len(batch))}

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
    averages = Averages(stock)

    def process_validation_metrics(
        data_sources: Sequence[Any],
        sample_uids: Sequence[Any],
        infos_dict: Mapping[Any, Sequence[Any]],
        seed: int = 42,
        expected_acc_counts: Mapping[tuple[Any, Any], int] | None = None,  # verl >= 0.9.1
        **rest: Any,
    ) -> Any:
        run = _run.current()
        if run.settings.abstains:
            infos_dict = _of_the_scored(infos_dict)
        found: dict[tuple[Any, Any], Metrics] = {}
        for samples in _by_source(data_sources, sample_uids, infos_dict, expected_acc_counts or {}):
            if run.settings.nan == "missing":
                samples = samples.without(lambda value: run.settings.misses(scalar(value)))
            metrics = averages.of(samples, seed, **rest)
            found.update({(samples.source, key): metrics[key] for key in metrics})
        return _as_verls(found, run.validated, stock([], [], {}))

    return process_validation_metrics


def _of_the_scored(infos: Mapping[Any, Sequence[Any]]) -> Mapping[Any, Sequence[Any]]:
    """The lists of a validation, where a sample without a score has no values: it counts in no mean."""
    whys = infos.get(ABSTAINED, ())
    if not any(whys):
        return infos
    return {
        key: [None if why else value for value, why in zip(values, whys, strict=True)]
        for key, values in infos.items()
        if key != ABSTAINED
    }


def _by_source(
    data_sources: Sequence[Any],
    uids: Sequence[Any],
    infos: Mapping[Any, Sequence[Any]],
    sessions: Mapping[tuple[Any, Any], int],
) -> Iterator[Samples]:
    """The samples of each data source; `sessions` by data source and prompt."""
    rows_by_source: dict[Any, list[int]] = {}
    for row, source in enumerate(data_sources):
        # NaN, where no data source was given, is another in each row; it is one here.
        rows_by_source.setdefault(source if source == source else math.nan, []).append(row)
    sessions_by_source: dict[Any, dict[Any, int]] = {}
    for (source, uid), count in sessions.items():
        sessions_by_source.setdefault(source, {})[uid] = count
    for source, rows in rows_by_source.items():
        yield Samples(
            source,
            [uids[row] for row in rows],
            {key: [values[row] for row in rows] for key, values in infos.items()},
            sessions_by_source.get(source, {}),
        )


def _as_verls(found: Mapping[tuple[Any, Any], Metrics], names: Names[tuple[Any, Any]], verls: Any) -> Any:
    """The metrics by data source and key in verl's own dict, with another key where verl would log two as one.

    verl logs them as `<data source>/<key>/...`, and of two of one name the last. That one keeps its name, or the
    headline.
    """
    last_first = list(found)[::-1]
    for source, key in sorted(last_first, key=lambda series: series[1] not in ("acc", "reward")):
        names.of((source, key), f"{source}/{key}")
    for (source, key), metrics in found.items():
        path, name = f"{source}/", names.of((source, key), "")
        verls[source][key if name == f"{path}{key}" else name.removeprefix(path)].update(metrics)
    return verls
