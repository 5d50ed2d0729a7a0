"""More of verl in one run: ranks that share the weights, a reference model, a critic, REMAX, and going on."""

import math

import pytest

from verl_ext.cpu import task
from verl_ext.cpu.train import STEPS

KL_AND_VALIDATION = (
    "actor_rollout_ref.actor.use_kl_loss=true",
    "actor_rollout_ref.actor.kl_loss_coef=0.001",
    "trainer.test_freq=2",
    "data.val_max_samples=24",
)


def test_two_ranks_train_a_mixed_recipe_with_a_reference_model_and_validation(train):
    outcome = train("legacy", "GRPO", "verl-ext", steps=4, ranks=2, overrides=KL_AND_VALIDATION)
    assert not outcome.error
    assert outcome.steps == 4
    assert outcome.moved and outcome.finite and not outcome.lost
    logged = outcome.run.logged()
    assert all(math.isfinite(step["actor/kl_loss"]) for step in logged)
    validated = [step for step in logged if any(name.startswith("val-") for name in step)]
    assert len(validated) == 2
    for source in ("letters", "digits", "marks"):
        assert any(f"/{source}/acc/" in name for name in validated[-1])


@pytest.mark.parametrize("trainer", ["legacy", "v1"])
def test_a_run_goes_on_from_its_checkpoint_as_if_it_had_never_stopped(train, mixed_grpo, trainer):
    whole, middle = mixed_grpo(trainer), STEPS // 2
    checkpoint = whole.run.directory / "checkpoints" / f"global_step_{middle}"
    overrides = "trainer.resume_mode=resume_path", f"trainer.resume_from_path='{checkpoint}'"
    resumed = train(trainer, "GRPO", "verl-ext", steps=middle + 2, overrides=overrides)
    assert not resumed.error
    expected = whole.run.logged()[middle : middle + 2]
    logged = resumed.run.logged()
    assert [step["training/global_step"] for step in logged] == [middle + 1, middle + 2]
    names = [name for name in expected[0] if name.startswith(("reward_extra/", "critic/"))]
    assert "reward_extra/marks/mean" in names
    for step, as_whole in zip(logged, expected, strict=True):
        assert {name: step[name] for name in names} == pytest.approx({name: as_whole[name] for name in names})


THIRD = 2 * task.BATCH // 3
"""Greedy answers to the rows of one data source, in two steps: their scores are a baseline, and verl dumps none."""


@pytest.mark.parametrize(
    ("algorithm", "left_out"),
    [("REMAX", {"acc": 3 * THIRD, "format": 2 * THIRD, "pred": THIRD, "marks": THIRD}), ("GAE", {})],
)
def test_a_mixed_recipe_trains_with_a_baseline_from_a_greedy_answer_and_from_a_critic(train, algorithm, left_out):
    outcome = train("legacy", algorithm, "verl-ext", steps=2)
    assert not outcome.error
    assert outcome.steps == 2
    assert outcome.moved and outcome.finite
    assert outcome.lost == left_out
