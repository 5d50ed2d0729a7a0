"""A third of one data source's samples has no score: a run in which they abstain learns all, one that gives 0.0 less.

A right answer begins with a digit, and for half of those the judge times out. With 0.0 an answer earns more if it does
not: the run holds on to wrong answers.
"""

from pathlib import Path

import numpy as np
import pytest

JUDGED = str(Path(__file__).with_name("judged.py"))
LAST = 5


@pytest.fixture
def judged(train):
    """A function from what an outage means to the run."""

    def run(outage):
        overrides = [f"+reward.custom_reward_function.reward_kwargs.outage={outage}"]
        if outage == "abstain":
            overrides.append("+verl_ext.unscored=abstain")
        return train("v1", "GRPO", "verl-ext", reward=JUDGED, overrides=tuple(overrides))

    return run


def curve(outcome, key):
    """By step, the mean of a key over the answers to the data source whose judge fails."""
    steps = {}
    for line in outcome.run.dumped():
        if "0123456789" in line["input"]:
            steps.setdefault(line["step"], []).append(line[key])
    return [float(np.mean(steps[step])) for step in sorted(steps)]


def test_a_run_learns_what_it_learns_without_the_outage_where_samples_abstain_and_less_where_they_earn_nothing(judged):
    outcomes = {outage: judged(outage) for outage in ("whole", "abstain", "zero")}
    worth, first = ({outage: curve(outcome, key) for outage, outcome in outcomes.items()} for key in ("worth", "first"))
    for outage, outcome in outcomes.items():
        print(
            outage,
            *(f"{key} {np.round(found[outage], 2).tolist()}" for key, found in (("worth", worth), ("first", first))),
        )
        assert not outcome.error
        assert outcome.moved and outcome.finite and not outcome.lost
    for found in (worth, first):
        ends = {outage: float(np.mean(of_run[-LAST:])) for outage, of_run in found.items()}
        assert ends["abstain"] > ends["whole"] - 0.05
        assert ends["zero"] < ends["whole"] - 0.1

    logged = outcomes["abstain"].run.logged()
    counts = [
        step["reward_extra/digits/unscored/share"] for step in logged if "reward_extra/digits/unscored/share" in step
    ]
    assert 0.2 < np.mean(counts) < 0.55
    assert all(np.isfinite(step["actor/grad_norm"]) for step in logged)
