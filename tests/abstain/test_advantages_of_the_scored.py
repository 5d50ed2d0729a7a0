"""Advantages with samples that abstain: those of the others are what they were without them, for every estimator."""

import numpy as np
import pytest
import torch
from abstained import ESTIMATORS, LENGTH, advantages, algorithm, batch, dropped_and_scattered
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from verl.trainer.ppo import core_algos

from verl_ext import MissingRewardError

SCORES = st.none() | st.sampled_from([0.0, 1.0, 0.5, -1.0]) | st.floats(-2, 2, width=16)


@st.composite
def batches(draw):
    """A batch of groups of any size, of which some samples abstain."""
    count = draw(st.integers(2, 12))
    scores = draw(st.lists(SCORES, min_size=count, max_size=count))
    groups = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    lengths = draw(st.lists(st.integers(1, LENGTH), min_size=count, max_size=count))
    baselines = draw(st.lists(SCORES, min_size=count, max_size=count))
    return batch(scores, groups, lengths, baselines, seed=draw(st.integers(0, 9)))


def scored(data):
    return [not (score or greedy) for score, greedy in zip(*_missing(data), strict=True)]


def _missing(data):
    return data.batch["rm_scores"].isnan().any(dim=1).tolist(), data.batch["reward_baselines"].isnan().tolist()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=batches())
def test_every_estimator_gives_what_it_gives_without_the_unscored_rows_bit_for_bit(estimator, data):
    if estimator != "remax":
        data.batch.pop("reward_baselines")
        rows = [not lacks for lacks in data.batch["rm_scores"].isnan().any(dim=1).tolist()]
    else:
        rows = scored(data)
    assume(any(rows))
    mask, config = data.batch["response_mask"], algorithm(unscored="abstain")
    if estimator == "grpo_passk":
        uids = data.non_tensor_batch["uid"]
        compared = [row and sum(np.array(rows) & (uids == uid)) > 1 for row, uid in zip(rows, uids, strict=True)]
        assume(any(compared) and not all(rows))  # where all are scored, verl raises as ever
    else:
        compared = rows
    if estimator in ("gae", "gdpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"):
        assume(mask[torch.tensor(rows)].sum() > 1)  # they whiten, which takes two tokens
    expected = dropped_and_scattered(data, compared, estimator, config)

    given_mask = mask.clone()
    result = advantages(data, estimator, config)
    for name, values in expected.items():
        assert torch.equal(result.batch[name], values), name
    assert torch.equal(result.batch["response_mask"], mask * torch.tensor(rows).unsqueeze(1))
    assert torch.equal(mask, given_mask)  # it may be another batch's, too


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_batch_in_which_all_are_scored_is_stock_verls_bit_for_bit(estimator, stock):
    def made():
        baselines = [0.5] * 6 if estimator == "remax" else None
        return batch([1.0, 0.0, 0.5, 1.0, 0.25, 0.0], [0, 0, 0, 1, 1, 1], [4, 3, 2, 1, 4, 2], baselines)

    ours = advantages(made(), estimator, algorithm(unscored="abstain"))
    with stock():
        theirs = advantages(made(), estimator, algorithm())
    assert sorted(ours.batch.keys()) == sorted(theirs.batch.keys())
    assert all(torch.equal(ours.batch[name], theirs.batch[name]) for name in theirs.batch.keys())


def test_on_stock_verl_one_missing_score_is_nan_for_its_whole_group(stock):
    with stock():
        result = advantages(batch([1.0, 0.0, None, 1.0, 0.0], [0, 0, 0, 1, 1]), "grpo", algorithm())
    assert result.batch["advantages"].isnan().any(dim=1).tolist() == [True, True, True, False, False]


def first_tokens(scores, groups, estimator, **columns):
    data = batch(scores, groups)
    data.non_tensor_batch.update({key: np.array(values, dtype=object) for key, values in columns.items()})
    result = advantages(data, estimator, algorithm(unscored="abstain"))
    return result.batch["advantages"][:, 0].tolist()


def test_grpo_by_hand():
    # of 1, 0 and 2 the mean is 1 and the deviation 1; of 0.5 alone, verl takes 0 and 1
    found = first_tokens([1.0, None, 0.0, 2.0, None, 0.5], [0, 0, 0, 0, 1, 1], "grpo")
    assert found == pytest.approx([0.0, 0.0, -1.0, 1.0, 0.0, 0.5], abs=1e-5)


def test_rloo_by_hand():
    # each less the mean of the two others: 1 - 1, 0 - 1.5, 2 - 0.5; of 0.5 alone, verl takes the score
    found = first_tokens([1.0, None, 0.0, 2.0, None, 0.5], [0, 0, 0, 0, 1, 1], "rloo")
    assert found == pytest.approx([0.0, 0.0, -1.5, 1.5, 0.0, 0.5], abs=1e-6)


def test_gdpo_by_hand():
    # acc of the scored: 1, 0, 2 gives 0, -1, 1; form of the scored: 0, 2, 1 gives -1, 1, 0; their sums are -1, 0, 1,
    # which verl whitens over the twelve tokens: divided by the square root of 8 / 11
    found = first_tokens(
        [1.0, None, 0.0, 2.0], [0, 0, 0, 0], "gdpo", acc=[1.0, 7.0, 0.0, 2.0], form=[0.0, None, 2.0, 1.0]
    )
    assert found == pytest.approx([-((11 / 8) ** 0.5), 0.0, 0.0, (11 / 8) ** 0.5], abs=1e-4)


def test_gdpo_with_a_component_that_is_skipped_asks_nothing_of_unscored_samples():
    def components(data):
        data.non_tensor_batch["form"] = np.array([0.0, None, 2.0, 1.0, None], dtype=object)
        return data

    config = algorithm(unscored="abstain", fill={"form": "skip"})
    data = components(batch([1.0, None, 0.0, 2.0, 0.5], [0] * 5))
    rows = [True, False, True, True, True]
    expected = dropped_and_scattered(data, rows, "gdpo", config)
    found = advantages(components(batch([1.0, None, 0.0, 2.0, 0.5], [0] * 5)), "gdpo", config).batch
    assert torch.equal(found["advantages"], expected["advantages"])
    assert found["advantages"][4].any()  # scored, and without the one component


def test_a_group_without_any_score_trains_nothing_and_the_others_as_ever():
    assert first_tokens([None, None, 1.0, 0.0], [0, 0, 1, 1], "grpo") == pytest.approx(
        [0.0, 0.0, 2**-0.5, -(2**-0.5)], abs=1e-5
    )


def test_a_greedy_answer_without_a_score_makes_its_sample_unscored():
    data = batch([1.0, 1.0, 0.0], [0, 1, 2], baselines=[0.25, None, 0.5])
    result = advantages(data, "remax", algorithm(unscored="abstain"))
    assert result.batch["advantages"][:, 0].tolist() == [0.75, 0.0, -0.5]
    assert result.batch["response_mask"].sum(dim=1).tolist() == [LENGTH, 0, LENGTH]


def test_pass_at_k_gives_no_advantage_to_a_sample_with_none_to_be_compared_with():
    data = batch([1.0, None, 1.0, 0.0], [0, 0, 1, 1])
    result = advantages(data, core_algos.AdvantageEstimator.GRPO_PASSK, algorithm(unscored="abstain"))
    assert result.batch["advantages"][:, 0].tolist() == pytest.approx([0.0, 0.0, 2**0.5, 0.0], abs=1e-5)
    assert result.batch["response_mask"].sum(dim=1).tolist() == [LENGTH, 0, LENGTH, LENGTH]


def test_a_batch_without_any_score_is_a_named_error():
    with pytest.raises(MissingRewardError, match="none of the 2 samples of a batch has a score"):
        advantages(batch([None, None], [0, 0]), "grpo", algorithm(unscored="abstain"))


def test_without_the_setting_nan_is_what_it_is_on_stock_verl(stock):
    def made():
        return batch([1.0, 0.0, None, 1.0], [0, 0, 0, 1])

    ours = advantages(made(), "grpo", algorithm()).batch["advantages"]
    with stock():
        theirs = advantages(made(), "grpo", algorithm()).batch["advantages"]
    assert torch.equal(ours.nan_to_num(7.0), theirs.nan_to_num(7.0))


def test_where_verl_is_given_no_node_of_a_configuration_the_run_says_it(current_run):
    current_run(unscored="abstain")
    result = advantages(batch([1.0, 0.0, None], [0, 0, 0]), "grpo", None)
    assert not result.batch["advantages"].isnan().any()
