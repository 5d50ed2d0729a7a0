"""verl's own `MetricsAggregator`, which logs several fully-async steps as one."""

from types import SimpleNamespace

import numpy as np
import pytest

from verl_ext import assemble_reward_extra_info, plugin
from verl_ext.plugin import _run


@pytest.fixture
def aggregator():
    plugin.activate()
    utils = pytest.importorskip("verl.experimental.fully_async_policy.detach_utils")
    return utils.MetricsAggregator(total_gpus=1)


@pytest.fixture
def take_step():
    """A function that takes a trainer's step: from its samples' reward dicts to the metrics that it adds."""
    run = _run.of(SimpleNamespace(config=None))

    def step(*rows):
        columns = assemble_reward_extra_info(list(rows))
        return {"actor/loss": 1.0, **run.metrics.step(columns, None, len(rows))}

    return step


def reward_metrics(aggregator):
    found = aggregator.get_aggregated_metrics()
    assert found.pop("actor/loss") == 1.0
    return found


def test_counts_add_up_and_means_weigh_by_them(aggregator, take_step, stock):
    steps = [take_step({"acc": 1.0}, {}, {}), take_step({"acc": 0.0}, {"acc": 0.25}, {"acc": 0.5})]
    with stock():
        for step in steps:
            aggregator.add_step_metrics(step, sample_count=3)
        assert aggregator.get_aggregated_metrics()["reward_extra/acc/mean"] == 0.625  # of 1.0 and 0.25
        aggregator.reset()

    for rows in ([{"acc": 1.0}, {}, {}], [{"acc": 0.0}, {"acc": 0.25}, {"acc": 0.5}]):
        aggregator.add_step_metrics(take_step(*rows), sample_count=3)
    values = [1.0, 0.0, 0.25, 0.5]
    assert reward_metrics(aggregator) == pytest.approx(
        {
            "reward_extra/acc/mean": np.mean(values),
            "reward_extra/acc/std": np.std(values),
            "reward_extra/acc/min": 0.0,
            "reward_extra/acc/max": 1.0,
            "reward_extra/acc/count": 4.0,
            "reward_extra/acc/coverage": 4 / 6,
        }
    )


def test_the_samples_before_a_key_was_lacked_count_too(aggregator, take_step):
    for rows in ([{"acc": 1.0}] * 3, [{"acc": 0.0}, {}], [{}, {}]):
        aggregator.add_step_metrics(take_step(*rows), sample_count=len(rows))
    found = reward_metrics(aggregator)
    assert (found["reward_extra/acc/count"], found["reward_extra/acc/mean"]) == (4.0, 0.75)
    assert found["reward_extra/acc/coverage"] == pytest.approx(4 / 7)


def test_what_was_logged_is_forgotten_and_a_series_goes_on_without_a_step_that_has_the_key(aggregator, take_step):
    aggregator.add_step_metrics(take_step({"acc": 1.0}, {}), sample_count=2)
    aggregator.reset()
    assert aggregator.get_aggregated_metrics() == {}
    aggregator.add_step_metrics(take_step({}, {}), sample_count=2)
    assert reward_metrics(aggregator) == {"reward_extra/acc/count": 0.0, "reward_extra/acc/coverage": 0.0}


def test_metrics_that_come_between_two_steps_count_no_step_twice(aggregator, take_step):
    aggregator.add_step_metrics(take_step({"acc": 1.0}, {}), sample_count=2)
    aggregator.add_step_metrics({"actor/loss": 1.0}, sample_count=2)
    assert reward_metrics(aggregator)["reward_extra/acc/count"] == 1.0


def test_uniform_steps_add_up_to_what_stock_verl_makes_of_them(aggregator, take_step):
    for _ in range(2):
        aggregator.add_step_metrics(take_step({"acc": 1.0}, {"acc": 0.0}), sample_count=2)
    assert reward_metrics(aggregator) == {}
