"""Plain stays plain, on weights: a run of one schema is the same with the plugin and without, bit for bit."""

import re
from pathlib import Path

import pytest
import torch

from verl_ext.cpu.outcome import synced, weights

STEPS = 4

UNIFORM = str(Path(__file__).with_name("uniform.py"))

MEASURED = ("timing", "perf/")
"""What depends on the clock or the memory."""

UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _metrics(outcome):
    return [
        {name: value for name, value in step.items() if not any(part in name for part in MEASURED)}
        for step in outcome.run.logged()
    ]


def _dump(outcome, step):
    """The file of a step, but for what the v1 trainer calls a prompt: a name by chance."""
    return UUID.sub("", (outcome.run.rollouts / f"{step}.jsonl").read_text())


def _assert_same(one, other):
    assert not one.error and not other.error
    assert one.steps == other.steps == STEPS
    assert _metrics(one) == _metrics(other)
    for step in range(1, STEPS + 1):
        assert _dump(one, step) == _dump(other, step)
    versions = [synced(outcome.run.weights) for outcome in (one, other)]
    assert [path.name for path in versions[0]] == [path.name for path in versions[1]]
    for paths in zip(*versions, strict=True):
        mine, theirs = map(weights, paths)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("trainer", ["legacy", "v1"])
def test_the_plugin_changes_no_bit_of_a_uniform_run(train, trainer):
    runs = [train(trainer, "GRPO", side, steps=STEPS, reward=UNIFORM) for side in ("stock verl", "verl-ext")]
    assert runs[0].moved
    _assert_same(*runs)
