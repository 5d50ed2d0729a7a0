"""Teaches the fully-async trainer's `MetricsAggregator`, which logs several steps as one, to weigh by counts.

It averages what is called mean over the steps that have one, each alike, and what it knows no rule for likewise.
"""

from __future__ import annotations

from typing import Any

from verl_ext.plugin import _run
from verl_ext.plugin._site import REST, Function, PatchSite
from verl_ext.reward_metrics import logged, merged

site = PatchSite(
    name="aggregator",
    module="verl.experimental.fully_async_policy.detach_utils",
    purpose="fully-async steps are averaged without regard to how many of their samples have a reward key",
)

_STEPS = "_verl_ext_steps"
"""Attribute of an aggregator: the summaries of the steps that it has been given."""


@site.wraps("MetricsAggregator.add_step_metrics", "self", "metrics", REST)
def _add_step_metrics(stock: Function) -> Function:
    def add_step_metrics(self: Any, metrics: Any, *args: Any, **kwargs: Any) -> Any:
        last = _run.current().metrics.last
        if logged(last).keys() <= metrics.keys():
            setattr(self, _STEPS, [*getattr(self, _STEPS, ()), last])
        return stock(self, metrics, *args, **kwargs)

    return add_step_metrics


@site.wraps("MetricsAggregator.get_aggregated_metrics", "self", REST)
def _get_aggregated_metrics(stock: Function) -> Function:
    def get_aggregated_metrics(self: Any, *args: Any, **kwargs: Any) -> Any:
        return {**stock(self, *args, **kwargs), **logged(merged(getattr(self, _STEPS, ())))}

    return get_aggregated_metrics


@site.wraps("MetricsAggregator.reset", "self")
def _reset(stock: Function) -> Function:
    def reset(self: Any) -> Any:
        setattr(self, _STEPS, [])
        return stock(self)

    return reset
