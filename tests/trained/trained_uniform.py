"""Plain stays plain, on weights: a run of one schema is the same with the plugin and without, bit for bit."""

from pathlib import Path

import pytest
import torch

from verl_ext.cpu.outcome import synced, weights

STEPS = 4

UNIFORM = str(Path(__file__).with_name("uniform.py"))

MEASURED = ("timing", "perf/", "actor/perf", "critic/perf", "mfu")
"""What depends on the clock or the memory."""


def _metrics(outcome):
    return [
        {name: value for name, value in step.items() if not any(part in name for part in MEASURED)}
        for step in outcome.run.logged()
    ]


def _assert_same(one, other):
    assert not one.error and not other.error
    assert one.steps == other.steps == STEPS
    assert _metrics(one) == _metrics(other)
    for step in range(1, STEPS + 1):
        dumps = [(outcome.run.rollouts / f"{step}.jsonl").read_bytes() for outcome in (one, other)]
        assert dumps[0] == dumps[1]
    versions = [synced(outcome.run.weights) for outcome in (one, other)]
    assert [path.name for path in versions[0]] == [path.name for path in versions[1]]
    for paths in zip(*versions, strict=True):
        mine, theirs = map(weights, paths)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("trainer", ["legacy", "v1"])
@pytest.mark.parametrize("algorithm", ["GRPO"])
def test_stock_verl_trains_the_same_weights_in_every_run(train, trainer, algorithm):
    runs = [train(trainer, algorithm, "stock verl", steps=STEPS, reward=UNIFORM, number=n) for n in range(2)]
    _assert_same(*runs)


@pytest.mark.parametrize("trainer", ["legacy", "v1"])
@pytest.mark.parametrize("algorithm", ["GRPO"])
def test_the_plugin_changes_no_bit_of_a_uniform_run(train, trainer, algorithm):
    runs = [train(trainer, algorithm, side, steps=STEPS, reward=UNIFORM) for side in ("stock verl", "verl-ext")]
    assert runs[0].moved
    _assert_same(*runs)
