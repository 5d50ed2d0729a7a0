"""Samples that abstain in the legacy trainer: they train nothing and count nowhere; the others train as ever."""

import json
import math

import numpy as np
import pytest
import torch
from marks import slow_after

from verl_ext.errors import MissingRewardError, SettingsError

from . import legacy
from .legacy import PROMPTS, STEPS, N, question

pytestmark = pytest.mark.ray

ABSTAIN = ["+verl_ext.unscored=abstain"]
UNSCORED = "judge_times_out"


@pytest.fixture(scope="module")
def shared(ray_session, rows, model_dir):
    """The managers, whose workers let samples abstain."""
    with legacy.managers(model_dir, rows, ABSTAIN) as managers:
        yield managers


@pytest.fixture
def train(shared, tmp_path_factory):
    """A function from rows and overrides to the run of their trainer; it validates on the first four."""

    def run(rows, *overrides):
        workdir = tmp_path_factory.mktemp("run")
        trainer = legacy.legacy_trainer(rows, rows[:4], [*ABSTAIN, *overrides], workdir, shared)
        return legacy.fit(trainer)

    return run


def judged(count=STEPS * PROMPTS, scorer=UNSCORED):
    return [question(scorer, number) for number in range(count)]


def parsed(lines):
    return [json.loads(line) for line in lines]


def rows_given(batch):
    """What the actor was given, by sample: whether it was scored, and of its tokens the advantages and the mask."""
    texts = batch["rm_scores"].isnan().any(dim=1)
    return zip((~texts).tolist(), batch["advantages"], batch["response_mask"], batch["loss_mask"], strict=True)


ALGORITHMS = {
    name: [*overrides, "algorithm.kl_ctrl.type=adaptive"] if "reference" in name else overrides
    for name, overrides in legacy.ALGORITHMS.items()
    if name != "gdpo"
} | {"gdpo": ["algorithm.adv_estimator=gdpo", "+algorithm.gdpo_reward_keys=[acc,score]"]}


@pytest.mark.parametrize("algorithm", slow_after(1, ALGORITHMS))
def test_a_run_trains_and_validates_to_the_end_and_its_unscored_samples_train_nothing(algorithm, train):
    if algorithm == "remax" and not legacy.REMAX_TAKES_REWARDS_APART:
        pytest.skip("verl 0.7's REMAX unites the greedy answers' reward columns with the sampled ones'")
    run = train(judged(), *ALGORITHMS[algorithm])
    assert run.error is None
    assert run.steps_done == STEPS
    for step, batch in enumerate(run.batches, start=1):
        lines, metrics = parsed(run.rollouts[step]), run.metrics[step]
        told = [line for line in lines if line["score"] is None]
        assert [line["unscored"] for line in told] == ["the judge timed out"] * len(told)
        assert all(line["unscored"] is None for line in lines if line["score"] is not None)
        scores = [line["score"] for line in lines if line["score"] is not None]

        given = list(rows_given(batch))
        assert sum(not scored for scored, *_ in given) == len(told) > 0
        for scored, advantages, mask, counted in given:
            assert advantages.isfinite().all()
            if not scored:
                assert not (advantages.any() or mask.any() or counted.any())
        trains = [bool(mask.any()) for _, _, mask, _ in given]
        if algorithm != "remax":  # there a sample without a baseline trains nothing either
            assert sum(trains) == len(scores)
            assert metrics["critic/score/mean"] == pytest.approx(np.mean(scores))
        assert metrics["reward_extra/unscored/count"] == len(trains) - sum(trains)
        assert metrics["reward_extra/unscored/share"] == pytest.approx(1 - np.mean(trains))
        assert all(math.isfinite(value) for name, value in metrics.items() if name.startswith("critic/"))
        if "reference" in algorithm:
            assert math.isfinite(metrics["actor/reward_kl_penalty"])

    # of the four questions one has no score for either answer, and one none for the right one
    assert run.metrics[STEPS][f"val-core/{UNSCORED}/acc/mean@1"] == pytest.approx(np.mean([0.0, 1.0]))
    assert run.metrics[STEPS][f"val-aux/{UNSCORED}/reward/coverage@1"] == 0.5
    assert [line["reward"] for line in parsed(run.validations[STEPS])].count(None) == 2


def test_grpo_gives_the_scored_of_a_group_what_they_have_without_the_others(train):
    run = train(judged())
    for batch in run.batches:
        groups = {}
        for uid, (scored, advantages, mask, _) in zip(legacy.tu.get(batch, "uid"), rows_given(batch), strict=True):
            if scored:
                groups.setdefault(uid, []).append(float(advantages[mask.bool()][0]))
        # a sample alone has its score, two that differ by one have half the root of two
        assert {tuple(np.round(sorted(group), 3)) for group in groups.values()} <= {(0.0,), (-0.707, 0.707)}


def test_a_run_in_which_all_are_scored_is_the_same_to_the_last_bit(
    rows, tmp_path_factory, model_dir, ray_session, train
):
    with legacy.managers(model_dir, rows) as managers:
        workdir = tmp_path_factory.mktemp("run")
        plain = judged(scorer="plain")
        without = legacy.fit(legacy.legacy_trainer(plain, plain[:4], [], workdir, managers))
    abstain = train(plain)
    assert abstain.error is without.error is None
    assert abstain.rollouts == without.rollouts
    assert abstain.validations == without.validations
    for ours, theirs in zip(abstain.batches, without.batches, strict=True):
        assert ours.keys() == theirs.keys()
        for name in ("advantages", "returns", "response_mask", "rm_scores"):
            assert torch.equal(ours[name], theirs[name])
    for step in range(1, STEPS + 1):
        logged, expected = (
            {name: value for name, value in run.metrics[step].items() if not name.startswith(("timing", "perf"))}
            for run in (abstain, without)
        )
        assert logged == expected


def test_a_batch_without_any_score_is_a_named_error(train):
    run = train(judged(scorer="never_scored"))
    assert isinstance(run.error, MissingRewardError)
    assert f"none of the {PROMPTS * N} samples of a batch has a score" in str(run.error)


def test_what_cannot_be_done_with_such_samples_is_a_named_error_at_start(train):
    with pytest.raises(SettingsError, match="use_pf_ppo"):
        train(judged(), "++algorithm.use_pf_ppo=true")


# --- the other trainers on DataProto -----------------------------------------------------------------------------

TOKENS = 2
"""Of an answer: a digit, and the end."""


@pytest.fixture(scope="module")
def around(shared, rows):
    pytest.importorskip("transfer_queue", reason="the matrix of trainers has verl's v1 trainer, too")
    matrix = pytest.importorskip("e2e.matrix", reason="not every verl has all of the trainers")
    with matrix.surroundings(rows, shared) as surroundings:
        yield surroundings


@pytest.mark.slow
@pytest.mark.parametrize(
    "trainer",
    ["separation", "separation, scores itself", "one-step-off", "one-step-off, scores itself", "fully async"],
)
def test_each_of_the_other_trainers_goes_on_and_trains_on_the_scored(trainer, around):
    from e2e import matrix

    class Judged(matrix.Case):
        """Questions to the judge that times out."""

        @property
        def overrides(self):
            return [*ABSTAIN, "algorithm.adv_estimator=grpo"]

        def rows(self, rows):
            return judged()

    run = matrix.TRAINERS[trainer](Judged(trainer, "GRPO", "made"), around)
    assert run.error is None
    assert run.steps == STEPS
    told = [columns["unscored"] for _, columns in run.arrived]
    assert len(told) == STEPS * PROMPTS * N
    assert {why for why in told if why is not None} == {"the judge timed out"}
    assert all((columns["score"] is None) == (columns["unscored"] is not None) for _, columns in run.arrived)
    trained = torch.cat(run.advantages)  # the tokens whose mask is not zero
    assert trained.isfinite().all()
    assert trained.numel() == TOKENS * told.count(None)
    assert trained.any()
