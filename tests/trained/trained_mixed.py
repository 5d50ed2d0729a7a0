"""Three data sources whose scorers return different keys, trained to where the tiny model has learned the task."""

import math

import pytest
import torch

from verl_ext.cpu import task
from verl_ext.cpu.outcome import synced, weights

TRAINERS = ["legacy", "v1"]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_grpo_learns_and_every_value_arrives(mixed_grpo, trainer):
    outcome = mixed_grpo(trainer)
    assert not outcome.error
    assert outcome.steps == outcome.run.steps
    assert outcome.learned, outcome.rewards
    assert not outcome.lost
    assert outcome.moved and outcome.finite


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_key_that_some_samples_lack_is_in_the_metrics_of_every_step(mixed_grpo, trainer):
    for step in mixed_grpo(trainer).run.logged():
        assert step["reward_extra/marks/mean"] >= 0
        assert step["reward_extra/format/coverage"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_dumps_say_for_each_sample_what_its_scorer_returned(mixed_grpo, trainer):
    dumped = mixed_grpo(trainer).run.dumped()
    assert {line["pred"] is None for line in dumped} == {True, False}
    for line in dumped:
        source = next(kind for kind, wanted in task.KINDS.items() if wanted[:10] in line["input"])
        returned = task.compute_score(source, line["output"], "", {})
        assert {key: line.get(key) for key in returned} == returned
        assert all(line[key] is None for key in {"pred", "marks", "format"} - returned.keys())


@pytest.mark.parametrize("trainer", TRAINERS)
def test_gdpo_learns_with_a_fill_where_a_component_is_missing(train, trainer):
    outcome = train(trainer, "GDPO", "verl-ext")
    assert not outcome.error
    assert outcome.learned, outcome.rewards
    assert not outcome.lost
    assert all(math.isfinite(step["actor/grad_norm"]) for step in outcome.run.logged())


def test_stock_gdpo_goes_through_all_steps_and_leaves_the_weights_as_they_were(train):
    outcome = train("legacy", "GDPO", "stock verl", steps=6)
    assert not outcome.error
    assert outcome.steps == 6
    first, last = synced(outcome.run.weights)[0], synced(outcome.run.weights)[-1]
    assert first != last
    before, after = weights(first), weights(last)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_stock_gdpo_on_the_default_trainer_ends_with_a_key_error(train):
    outcome = train("v1", "GDPO", "stock verl", steps=6)
    assert outcome.steps == 0
    assert outcome.error.startswith("KeyError")
    assert "prompts" in outcome.error
