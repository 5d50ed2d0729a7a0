"""What else trainers compute over a batch, with samples that abstain: rewards, group filters, metrics and dumps."""

import json

import numpy as np
import pytest
import torch
from abstained import algorithm, batch
from hypothesis import given
from hypothesis import strategies as st
from verl.trainer.ppo import core_algos, metric_utils, ray_trainer
from verl.trainer.ppo.reward import extract_reward
from verl.workers.utils import losses

from verl_ext import MissingRewardError, SettingsError
from verl_ext.plugin import trainer
from verl_ext.plugin._abstain import as_a_scored_one
from verl_ext.plugin._dump import writing_dumpable
from verl_ext.plugin._trial import mentions, verls_own
from verl_ext.settings import Settings

SCORES, GROUPS = [1.0, None, 0.0, 2.0, None, 0.5], [0, 0, 0, 0, 1, 1]
SCORED = torch.tensor([score is not None for score in SCORES])


def made(**columns):
    data = batch(SCORES, GROUPS, [4, 2, 3, 1, 4, 2])
    data.non_tensor_batch.update({key: np.array(values, dtype=object) for key, values in columns.items()})
    data.meta_info["reward_extra_keys"] = [*columns]
    return data


def test_the_kl_penalty_and_its_controller_go_by_the_scored_samples(current_run):
    current_run(unscored="abstain")

    def penalized(data):
        control = core_algos.AdaptiveKLController(init_kl_coef=0.1, target_kl=0.5, horizon=10)
        data, metrics = ray_trainer.apply_kl_penalty(data, kl_ctrl=control)
        return data.batch["token_level_rewards"], metrics, control.value

    rewards, metrics, control = penalized(made())
    alone, expected, expected_control = penalized(made().select_idxs(SCORED))
    assert torch.equal(rewards[SCORED], alone)
    assert rewards[~SCORED].isnan().any(dim=1).all()  # still told from the others, in what follows
    assert (metrics, control) == (expected, expected_control)


def test_the_mask_is_zero_before_anything_is_computed_over_all_tokens(current_run):
    current_run(unscored="abstain")
    data = made()
    mask = data.batch["response_mask"].clone()
    scores, _ = extract_reward(data)
    assert scores is data.batch["rm_scores"]
    assert torch.equal(data.batch["response_mask"], mask * SCORED.unsqueeze(1))


def test_a_batch_without_any_score_is_a_named_error_before_anything_is_computed(current_run):
    current_run(unscored="abstain")
    with pytest.raises(MissingRewardError, match="none of the 2 samples"):
        extract_reward(batch([None, None], [0, 1]))


def test_metrics_of_scores_rewards_advantages_and_returns_are_those_of_the_scored(current_run):
    current_run(unscored="abstain")
    data = ray_trainer.compute_advantage(made(acc=SCORES), "gae", 0.9, 0.8, config=algorithm(unscored="abstain"))
    metrics = metric_utils.compute_data_metrics(data, use_critic=True)
    alone = metric_utils.compute_data_metrics(data.select_idxs(SCORED), use_critic=True)
    critic = {name: value for name, value in metrics.items() if name.startswith("critic/")}
    assert critic == {name: alone[name] for name in critic}
    assert critic["critic/score/mean"] == pytest.approx(3.5 / 4)
    assert metrics["response_length/mean"] == pytest.approx(16 / 6)  # of all: it says what the model does
    assert metrics["reward_extra/unscored/count"] == 2.0
    assert metrics["reward_extra/source 0/unscored/share"] == 1 / 4
    assert metrics["reward_extra/source 1/unscored/share"] == 1 / 2


def test_a_series_that_has_begun_has_no_holes_and_does_not_begin_before(current_run):
    run = current_run(unscored="abstain")

    def step(*whys):
        metrics = run.metrics.step({"unscored": np.array(whys, dtype=object)}, ["a", "b"], 2)
        return {name: metrics[name] for name in metrics if "unscored" in name}

    assert step(None, None) == {}
    assert step(None, "out")["reward_extra/unscored/share"] == 0.5
    assert step(None, None) == {
        f"reward_extra/{place}unscored/{what}": 0.0 for place in ("", "a/", "b/") for what in ("count", "share")
    }


def test_more_than_half_of_a_step_without_a_score_is_warned_of_once(current_run, warnings):
    run = current_run(unscored="abstain")
    for whys in ([True, None], [True, "out"], [True, True]):
        run.metrics.step({"unscored": np.array(whys, dtype=object)}, None, 2)
    assert warnings() == ["verl-ext: 2 of the 2 samples of a step have no score, and train nothing: an outage?"]


def test_without_the_setting_a_key_named_unscored_is_as_any_other(current_run):
    run = current_run(metrics="all")
    metrics = run.metrics.step({"unscored": np.array([1.0, 0.0])}, None, 2)
    assert metrics["reward_extra/unscored/mean"] == 0.5
    assert "reward_extra/unscored/share" not in metrics


# --- group filters -----------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.none() | st.sampled_from([0.0, 1.0]), st.integers(0, 2)), max_size=12))
def test_a_filter_keeps_a_group_exactly_where_its_scored_samples_differ(samples):
    values, groups = [value for value, _ in samples], [group for _, group in samples]
    seen = as_a_scored_one(values, [value is None for value in values], groups, 0.0)
    for group in groups:
        scored = [value for value, own in samples if own == group and value is not None]
        told = [value for value, own in zip(seen, groups, strict=True) if own == group]
        assert (np.std(told) > 0) == (len(scored) > 1 and np.std(scored) > 0)


def test_a_recipes_own_filter_sees_the_scored_samples_and_the_columns_are_put_back_before_training(current_run):
    run = current_run(unscored="abstain")
    run.filter_metric = "acc"
    whys = [None if score is not None else "out" for score in SCORES]
    acc = [1.0, 0.25, 0.0, 2.0, None, 0.5]
    data = made(acc=acc, unscored=whys)
    data.non_tensor_batch["reward_extra_info"] = np.array([{"acc": value} for value in acc], dtype=object)
    _, infos = extract_reward(data)
    assert list(infos["acc"]) == [1.0, 1.0, 0.0, 2.0, 0.5, 0.5]  # the first group differs, the second does not
    data.non_tensor_batch["acc"] = np.array(infos["acc"])
    result = ray_trainer.compute_advantage(data, "grpo", config=algorithm(unscored="abstain"))
    assert result.non_tensor_batch["acc"].tolist() == acc


@pytest.mark.parametrize("metric", ["seq_reward", "seq_final_reward"])
def test_a_filter_that_computes_its_metric_of_the_tensors_is_refused_at_start(metric):
    with pytest.raises(SettingsError, match=f"filter_groups.metric={metric}"):
        trainer._refuse_not_supported(Settings(unscored="abstain"), {}, metric)
    trainer._refuse_not_supported(Settings(), {}, metric)


@pytest.mark.parametrize(
    "config",
    [
        {"algorithm": {"use_pf_ppo": True}},
        {"distillation": {"enabled": True}},
        {"actor_rollout_ref": {"actor": {"policy_loss": {"loss_mode": "bypass_mode"}}}},
    ],
)
def test_what_stops_at_a_micro_batch_without_any_token_or_draws_by_scores_is_refused_at_start(config):
    with pytest.raises(SettingsError, match=r"^\+verl_ext\.unscored=abstain cannot be: "):
        trainer._refuse_not_supported(Settings(unscored="abstain"), config, None)
    trainer._refuse_not_supported(Settings(), config, None)


@pytest.mark.parametrize("critic", [{"enable": True}, {"enable": None}, {}, {"enable": False}])
def test_a_critic_whose_loss_divides_by_the_tokens_of_each_micro_batch_is_refused_at_start(critic, monkeypatch):
    config = {"critic": critic, "algorithm": {"adv_estimator": "gae"}}
    sums_up = mentions(verls_own(losses, "value_loss"), "batch_num_tokens")  # not so verl 0.8
    assert refused(config) == (not sums_up and critic.get("enable") is not False)
    monkeypatch.setattr(losses, "value_loss", by_micro_batch)
    assert refused(config) == (critic.get("enable") is not False)
    assert not refused({**config, "algorithm": {"adv_estimator": "grpo"}, "critic": {"enable": None}})


def by_micro_batch(config, model_output, data, dp_group=None):
    """The form of verl 0.8's."""
    return losses.compute_value_loss(loss_agg_mode=config.loss_agg_mode, **data)


def refused(config):
    try:
        trainer._refuse_not_supported(Settings(unscored="abstain"), config, None)
    except SettingsError as error:
        return "a critic's loss" in str(error)
    return False


def test_the_older_workers_of_verl_0_7_are_refused_at_start():
    """They divide by the tokens of each micro-batch, and not by those of the mini-batch."""
    with pytest.raises(SettingsError, match="use_legacy_worker_impl=auto"):
        trainer._refuse_not_supported(
            Settings(unscored="abstain"), {"trainer": {"use_legacy_worker_impl": "auto"}}, None
        )
    config = {"trainer": {"use_legacy_worker_impl": "disable"}}
    trainer._refuse_not_supported(Settings(unscored="abstain"), config, None)


# --- validation and dumps ----------------------------------------------------------------------------------------


def validated(infos):
    return metric_utils.process_validation_metrics(["s"] * 4, ["a", "a", "b", "b"], infos)["s"]


def test_in_validation_an_unscored_sample_counts_in_no_mean(current_run):
    current_run(unscored="abstain")
    nan = float("nan")
    whys = [None, "out", None, None]
    found = validated({"reward": [1.0, nan, 0.0, 1.0], "acc": [1.0, 1.0, 0.0, 1.0], "unscored": whys})
    assert found["reward"]["mean@2"] == found["acc"]["mean@2"] == pytest.approx((1.0 + 0.5) / 2)
    assert found["reward"]["coverage@2"] == found["acc"]["coverage@2"] == pytest.approx((0.5 + 1.0) / 2)
    assert "unscored" not in found


def test_a_validation_in_which_all_are_scored_is_as_without_the_setting(current_run):
    infos = {"reward": [1.0, 0.5, 0.0, 1.0], "acc": [1.0, 1.0, 0.0, 1.0]}
    current_run(unscored="abstain")
    found = validated(infos)
    current_run()
    assert found == validated(infos)


def test_a_line_of_a_dump_says_that_there_is_no_score_and_why(current_run, tmp_path):
    current_run(unscored="abstain")
    nan, texts = float("nan"), ["x"] * 3
    infos = {"reward": [1.0, nan, nan], "score": [1.0, None, None], "unscored": [None, "out", True]}
    writing_dumpable(ray_trainer.RayPPOTrainer._write_generations.__wrapped__)(
        texts, texts, texts, [1.0, nan, nan], infos, tmp_path, 1
    )
    lines = [json.loads(line) for line in (tmp_path / "1.jsonl").read_text().splitlines()]
    assert [(line["score"], line["reward"], line["unscored"]) for line in lines] == [
        (1.0, 1.0, None),
        (None, None, "out"),
        (None, None, True),
    ]
