"""Samples that abstain in verl's default trainer: they train nothing and count nowhere; the others train as ever."""

import math

import pytest

from e2e_v1.stock import STOCK

if STOCK is None:
    pytest.skip("verl before 0.8 has no trainer on TransferQueue", allow_module_level=True)
pytest.importorskip("transfer_queue", reason="verl's v1 trainer needs TransferQueue")

from e2e_v1 import v1
from e2e_v1.test_v1 import DAPO, colocated, needs_colocated_reward, needs_group_filter
from e2e_v1.v1 import planned
from verl_ext.errors import MissingRewardError, SettingsError

pytestmark = pytest.mark.ray

ABSTAIN = ["+verl_ext.unscored=abstain"]
NO_VALIDATION = ["trainer.test_freq=-1", "trainer.val_before_train=false"]

RIGHT, WRONG = "{'score': 1.0, 'acc': 1}", "{'score': 0.0, 'acc': 0}"
OUTAGE = "{'score': None, 'unscored': 'the judge timed out'}"
JUDGED = [
    planned("one of four", RIGHT, WRONG, RIGHT, OUTAGE, source="planned/judge"),
    planned("none", RIGHT, WRONG, WRONG, WRONG, source="planned/rules"),
]


def updates(run):
    """What the actor was given, sample by sample: advantage and masks of its first token."""
    given = run.trainer.actor_rollout_wg.trained_on
    return sorted(
        (round(float(advantage[0]), 3), int(mask.sum() > 0), int(counted.sum() > 0))
        for data in given
        for advantage, mask, counted in zip(
            *(data[name].unbind() for name in ("advantages", "response_mask", "loss_mask")), strict=True
        )
    )


@pytest.mark.parametrize("mode", v1.form.MODES)
def test_a_run_goes_on_where_stock_verl_ends_and_its_other_samples_train_as_if_they_were_alone(mode, stock, ours):
    overrides = [*v1.form.MODES[mode], *NO_VALIDATION]
    if mode == "sync":
        with pytest.raises(KeyError, match='"rm_scores" not found'):
            stock(train=JUDGED, overrides=overrides).step()

    run = ours(train=JUDGED, overrides=["trainer.total_training_steps=1", *overrides, *ABSTAIN])
    (metrics,) = run.fit()
    third, half = 3**-0.5, 0.5
    assert updates(run) == sorted(
        [
            (0.0, 0, 0),  # the judge timed out
            *[(round(third, 3), 1, 1)] * 2,  # of 1, 0, 1 the mean is 2/3 and the deviation the root of 1/3
            (round(-2 * third, 3), 1, 1),
            (round(3 * half, 3), 1, 1),  # of 1, 0, 0, 0 they are 1/4 and 1/2
            *[(round(-half, 3), 1, 1)] * 3,
        ]
    )
    assert metrics["critic/score/mean"] == pytest.approx(3 / 7)
    assert metrics["critic/rewards/mean"] == pytest.approx(3 / 7)
    assert all(math.isfinite(value) for name, value in metrics.items() if name.startswith("critic/"))
    assert metrics["reward_extra/unscored/count"] == 1.0
    assert metrics["reward_extra/unscored/share"] == 1 / 8
    assert metrics["reward_extra/planned/judge/unscored/share"] == 1 / 4
    assert metrics["reward_extra/planned/rules/unscored/share"] == 0.0
    lines = run.rollout_dump()
    assert [(line["score"], line["unscored"]) for line in lines if line["score"] is None] == [
        (None, "the judge timed out")
    ]
    assert sum(line["unscored"] is None for line in lines) == 7


def test_in_validation_an_unscored_sample_counts_in_no_mean_and_coverage_says_how_many(ours):
    run = ours(val=JUDGED, overrides=ABSTAIN)
    metrics = run.validate()
    assert metrics["val-aux/planned/judge/reward/mean@4"] == pytest.approx(2 / 3)
    assert metrics["val-aux/planned/judge/reward/coverage@4"] == 3 / 4
    assert metrics["val-core/planned/judge/acc/mean@4"] == pytest.approx(2 / 3)
    assert metrics["val-aux/planned/rules/reward/mean@4"] == 1 / 4
    assert "val-aux/planned/rules/reward/coverage@4" not in metrics
    told = [line for line in run.validation_dump() if line["score"] is None]
    assert [(line["reward"], line["unscored"]) for line in told] == [(None, "the judge timed out")]


def test_a_run_in_which_all_are_scored_is_the_same_to_the_last_bit(ours):
    def outcome(overrides):
        run = ours(train=JUDGED[1:], overrides=[*NO_VALIDATION, *overrides])
        metrics = {name: value for name, value in run.step().items() if not name.startswith(("timing", "perf"))}
        lines = [{key: value for key, value in line.items() if key != "uid"} for line in run.rollout_dump()]
        return str(metrics), updates(run), sorted(lines, key=str)  # text: NaN is equal to NaN there

    assert outcome(ABSTAIN) == outcome([])


def test_a_batch_without_any_score_is_a_named_error_whatever_verl_adds_to_fill_it_up(ours):
    outage = [planned(f"question {n}", OUTAGE, OUTAGE) for n in range(3)]
    overrides = [*NO_VALIDATION, *ABSTAIN, "actor_rollout_ref.actor.ppo_mini_batch_size=2"]
    with pytest.raises(MissingRewardError, match="none of the 6 samples of a batch has a score"):
        ours(train=outage, overrides=overrides).step()


def test_what_verl_adds_to_fill_up_a_batch_is_no_sample_that_abstains(ours):
    judged = [*JUDGED, planned("two of four", OUTAGE, RIGHT, OUTAGE, WRONG, source="planned/judge")]
    overrides = [*NO_VALIDATION, *ABSTAIN, "actor_rollout_ref.actor.ppo_mini_batch_size=2"]
    run = ours(train=judged, overrides=overrides)
    metrics = run.step()
    assert metrics["reward_extra/unscored/count"] == 3.0
    assert metrics["reward_extra/unscored/share"] == 3 / 12
    assert sum(line["score"] is None for line in run.rollout_dump()) == 3
    assert len(updates(run)) == 16


@needs_colocated_reward
def test_a_colocated_reward_model_may_abstain(ours, model_dir):
    run = ours(train=JUDGED, overrides=[*colocated(model_dir), *ABSTAIN, *NO_VALIDATION])
    metrics = run.step()
    assert metrics["critic/score/mean"] == pytest.approx(3 / 7)
    assert metrics["reward_extra/unscored/count"] == 1.0
    assert [update[1:] for update in updates(run)].count((0, 0)) == 1
    assert [line["unscored"] for line in run.rollout_dump() if line["score"] is None] == ["the judge timed out"]


@needs_group_filter
@pytest.mark.parametrize("metric", ["acc", "reward"])
def test_a_group_filter_sees_the_scored_samples_only(metric, ours):
    groups = [
        planned("differ", RIGHT, WRONG, OUTAGE, source="planned/differ"),
        planned("one scored", RIGHT, OUTAGE, OUTAGE, source="planned/one"),
        planned("none scored", OUTAGE, OUTAGE, OUTAGE, source="planned/none"),
        planned("alike", RIGHT, RIGHT, OUTAGE, source="planned/alike"),
        planned("differ, too", OUTAGE, WRONG, RIGHT, source="planned/differ"),
    ]
    overrides = [
        *DAPO,
        f"algorithm.filter_groups.metric={metric}",
        "data.train_batch_size=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        *NO_VALIDATION,
        *ABSTAIN,
    ]
    run = ours(train=groups, overrides=overrides)
    metrics = run.step()
    assert metrics["training/filter_groups/evicted_samples"] >= 3
    assert sorted(line["score"] for line in run.rollout_dump() if line["score"] is not None) == [0.0, 0.0, 1.0, 1.0]
    assert metrics["reward_extra/unscored/count"] == 2.0


def test_where_a_patch_is_off_that_it_takes_the_run_does_not_begin(ours, monkeypatch):
    monkeypatch.setattr("verl_ext.plugin._abstain._NEEDED", ("fully_async_agent_loop", "made up"))
    monkeypatch.setattr("verl_ext.plugin.status", _one_site_is_off)
    with pytest.raises(SettingsError, match="needs the patch site 'made up', which is off"):
        ours(train=JUDGED, overrides=ABSTAIN)


def _one_site_is_off():
    from verl_ext.plugin import SiteStatus, State

    return [SiteStatus("made up", "verl.made_up", State.UNKNOWN, "its code is another")]
