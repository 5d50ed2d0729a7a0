"""Teaches the fully-async trainer's `MetricsAggregator`, which logs several steps as one, to weigh by counts.

It averages what is called mean over the steps that have one, each alike, and what it knows no rule for likewise.
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
