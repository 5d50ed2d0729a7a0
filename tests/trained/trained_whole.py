"""More of verl in one run: two ranks that share the weights, a reference model, validation, and going on."""

import math

import pytest

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
def test_a_run_goes_on_from_its_checkpoint(train, trainer):
    first = train(trainer, "GRPO", "verl-ext", steps=3, overrides=("trainer.save_freq=3",))
    assert not first.error
    resumed = train(trainer, "GRPO", "verl-ext", steps=5, overrides=("trainer.resume_mode=auto",), into=first)
    whole = train(trainer, "GRPO", "verl-ext", steps=5)
    assert not resumed.error
    assert [step["training/global_step"] for step in resumed.run.logged()] == [4, 5]
    names = [name for name in whole.run.logged()[-1] if name.startswith("reward_extra/")]
    assert names
    for name in names:
        assert resumed.run.logged()[-1][name] == pytest.approx(whole.run.logged()[-1][name])
