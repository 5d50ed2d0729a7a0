"""Plain stays plain, on weights: a run of one schema is the same with the plugin and without, bit for bit."""

import json
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

ADDED = {"legacy": set(), "v1": {"acc", "format", "passed", "tokens", "pred"}}
"""Fields of a line of the dump that only verl-ext writes: stock verl's v1 trainer leaves the reward keys out."""


def _metrics(outcome):
    return [
        {name: value for name, value in step.items() if not any(part in name for part in MEASURED)}
        for step in outcome.run.logged()
    ]


def _dumped(outcome, step):
    """The lines of a step. What the v1 trainer calls a prompt, and sorts by, is by chance: the names are left out."""
    text = UUID.sub("", (outcome.run.rollouts / f"{step}.jsonl").read_text())
    return sorted(map(json.loads, text.splitlines()), key=lambda line: (line["input"], line["output"], line.get("uid")))


def _assert_same(stock, ours):
    assert not stock.error and not ours.error
    assert stock.steps == ours.steps == STEPS
    assert _metrics(stock) == _metrics(ours)
    for step in range(1, STEPS + 1):
        for plain, line in zip(_dumped(stock, step), _dumped(ours, step), strict=True):
            assert list(line.items())[: len(plain)] == list(plain.items())
            assert line.keys() - plain.keys() == ADDED[ours.run.trainer]
    versions = [synced(outcome.run.weights) for outcome in (stock, ours)]
    assert [path.name for path in versions[0]] == [path.name for path in versions[1]]
    for paths in zip(*versions, strict=True):
        theirs, mine = map(weights, paths)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("trainer", ["legacy", "v1"])
def test_the_plugin_changes_no_bit_of_a_uniform_run(train, trainer):
    runs = [train(trainer, "GRPO", side, steps=STEPS, reward=UNIFORM) for side in ("stock verl", "verl-ext")]
    assert runs[0].moved
    _assert_same(*runs)
