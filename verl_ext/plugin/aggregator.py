"""Patches what the fully-async trainer logs of reward keys: several steps as one, weighed by counts, by data source.

verl's `MetricsAggregator` averages what is called mean over the steps that have one, each alike. And batches reach the
trainer without data sources. Since they must stay as on stock, those travel beside them, on verl's `RolloutSample`.
"""

from __future__ import annotations

from typing import Any

from verl_ext.plugin import _run
from verl_ext.plugin._site import REST, Function, PatchSite
from verl_ext.reward_metrics import Step

site = PatchSite(
    name="aggregator",
    module="verl.experimental.fully_async_policy.detach_utils",
    purpose="fully-async steps are averaged without regard to how many of their samples have a reward key",
)

# --- the data sources --------------------------------------------------------------------------------------------

_SOURCE = "_verl_ext_data_source"
"""Attribute of a `RolloutSample`: the data source of its prompt."""

SOURCES = "_verl_ext_data_sources"
"""Attribute of the batch that the trainer assembles: by `uid`, the data source."""


@site.wraps("RolloutSample.__init__", "self", "full_batch", REST)
def _init(stock: Function) -> Function:
    def init(self: Any, full_batch: Any, *args: Any, **kwargs: Any) -> None:
        stock(self, full_batch, *args, **kwargs)
        sources = getattr(full_batch, "non_tensor_batch", {}).get("data_source", ())
        setattr(self, _SOURCE, next(iter(sources), None))

    return init


@site.wraps("assemble_batch_from_rollout_samples", "rollout_samples", REST)
def _assemble_batch_from_rollout_samples(stock: Function) -> Function:
    def assemble_batch_from_rollout_samples(rollout_samples: Any, *args: Any, **kwargs: Any) -> Any:
        batch = stock(rollout_samples, *args, **kwargs)
        sources: dict[Any, Any] = {}
        for sample in rollout_samples:
            sources.update(
                dict.fromkeys(sample.full_batch.non_tensor_batch.get("uid", ()), getattr(sample, _SOURCE, None))
            )
        setattr(batch, SOURCES, sources)
        return batch

    return assemble_batch_from_rollout_samples


def data_sources(batch: Any) -> Any:
    """By row, where each sample of a trained batch is from; `None` where nothing says it."""
    columns = batch.non_tensor_batch
    if "data_source" in columns or "uid" not in columns:
        return columns.get("data_source")
    known = getattr(batch, SOURCES, {})
    sources = [known.get(uid) for uid in columns["uid"]]
    return None if None in sources else sources


# --- several steps as one ----------------------------------------------------------------------------------------

_TOTAL = "_verl_ext_total"
"""Attribute of an aggregator: the reward keys of the steps that it has been given, as one; `None` without any."""


@site.wraps("MetricsAggregator.add_step_metrics", "self", "metrics", REST)
def _add_step_metrics(stock: Function) -> Function:
    def add_step_metrics(self: Any, metrics: Any, *args: Any, **kwargs: Any) -> Any:
        step = _run.current().metrics.take()
        if step is not None:
            setattr(self, _TOTAL, (getattr(self, _TOTAL, None) or Step()) + step)
        return stock(self, metrics, *args, **kwargs)

    return add_step_metrics


@site.wraps("MetricsAggregator.get_aggregated_metrics", "self", REST)
def _get_aggregated_metrics(stock: Function) -> Function:
    def get_aggregated_metrics(self: Any, *args: Any, **kwargs: Any) -> Any:
        aggregated = stock(self, *args, **kwargs)
        total = getattr(self, _TOTAL, None)
        return aggregated if total is None else {**aggregated, **_run.current().metrics.logged(total)}

    return get_aggregated_metrics


@site.wraps("MetricsAggregator.reset", "self")
def _reset(stock: Function) -> Function:
    def reset(self: Any) -> Any:
        setattr(self, _TOTAL, None)
        return stock(self)

    return reset
