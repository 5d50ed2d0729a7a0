"""A score that is missing, on its way from the reward function to the batch that a trainer gets: NaN, and why."""

from __future__ import annotations

import asyncio
import math

import pytest
from in_process_actors import PATIENCE, Loops, in_this_process
from omegaconf import open_dict
from on_stock import on_stock

from verl_ext.demo import rig
from verl_ext.errors import FieldCollisionError, MissingRewardError, SettingsError
from verl_ext.plugin._abstain import LEFT_OUT

ABSTAIN = "+verl_ext.unscored=abstain"
PROMISED = f"+{LEFT_OUT}=true"
"""What the driver puts into the configuration of its workers, which are here before it."""
OVERLONG = [
    "reward.reward_manager.name=dapo",
    "+reward.reward_kwargs.overlong_buffer_cfg={enable: true, len: 8, penalty_factor: 1.0, log: true}",
    "+reward.reward_kwargs.max_resp_len=16",
]
MANAGERS = {
    "naive": ["reward.reward_manager.name=naive"],
    "dapo with the overlong buffer": OVERLONG,
    "gdpo": ["reward.reward_manager.name=gdpo"],
}

# By kind: what the reward function returns, and what the row says of it.
UNSCORED = {
    "None": (None, True),
    "a dict with None": ({"score": None, "judge": "none"}, True),
    "a dict with None and a reason": ({"score": None, "unscored": "the judge timed out"}, "the judge timed out"),
    "a dict with None and an empty reason": ({"score": None, "unscored": ""}, True),
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    with in_this_process():
        yield rig.build_model_dir(tmp_path_factory.mktemp("model"))


def answered(*answers):
    return [lambda answer=answer: answer for answer in answers]


def by_reward_loop(loops, *answers):
    return loops.rewards.compute_rm_score(loops.scored_batch(answered(*answers)))


def by_agent_loop(loops, *answers):
    return loops.rollouts.generate_sequences(loops.prompt_batch(answered(*answers)))


def one_by_one(loops, *answers):
    from verl import DataProto

    batch = loops.prompt_batch(answered(*answers))
    samples = [batch[n : n + 1] for n in range(len(batch))]
    return DataProto.concat([asyncio.run(loops.single_rollouts.generate_sequences_single(one)) for one in samples])


def missing(batch):
    return batch.batch["rm_scores"].isnan().any(dim=1).tolist()


@pytest.mark.parametrize("path", [by_reward_loop, by_agent_loop])
@pytest.mark.parametrize("manager", MANAGERS)
def test_it_is_nan_in_the_batch_and_none_in_its_column_whatever_the_reward_manager_reckons(manager, path, model_dir):
    loops = Loops(model_dir, "as_told", ABSTAIN, PROMISED, *MANAGERS[manager])
    answers = [{"score": 1.0}, *(answer for answer, _ in UNSCORED.values()), {"score": 0.5}]
    batch = path(loops, *answers)
    assert missing(batch) == [False, *[True] * len(UNSCORED), False]
    assert batch.non_tensor_batch["unscored"].tolist() == [None, *(why for _, why in UNSCORED.values()), None]
    scores = batch.non_tensor_batch["score"].tolist()
    assert scores == [1.0, *[None] * len(UNSCORED), 0.5]
    assert "unscored" in batch.meta_info["reward_extra_keys"]


def test_stock_verl_cannot_take_a_penalty_off_none(model_dir):
    loops = Loops(model_dir, "as_told", *OVERLONG)
    with on_stock(), pytest.raises(TypeError, match="unsupported operand"):
        by_reward_loop(loops, {"score": 1.0}, {"score": None})


@pytest.mark.parametrize("function", ["as_told", "as_told_by_a_coroutine"])
def test_a_reward_function_may_be_a_coroutine(function, model_dir):
    assert missing(by_reward_loop(Loops(model_dir, function, ABSTAIN, PROMISED), 1.0, None, 0.0)) == [
        False,
        True,
        False,
    ]


def test_nan_abstains_where_it_counts_as_missing_and_is_a_named_error_where_it_is_a_value(model_dir):
    loops = Loops(model_dir, "as_told", ABSTAIN, PROMISED, "+verl_ext.nan=missing")
    batch = by_reward_loop(loops, {"score": 1.0}, {"score": math.nan}, {"score": math.nan, "unscored": "0 / 0"})
    assert missing(batch) == [False, True, True]
    assert batch.non_tensor_batch["unscored"].tolist() == [None, True, "0 / 0"]
    assert batch.non_tensor_batch["score"].tolist() == [1.0, None, None]
    with pytest.raises(MissingRewardError, match=r"is NaN, which counts as a value.*\+verl_ext\.nan=missing"):
        by_reward_loop(Loops(model_dir, "as_told", ABSTAIN, PROMISED), {"score": 1.0}, {"score": math.nan})


def test_a_reason_beside_a_score_is_a_named_error(model_dir):
    loops = Loops(model_dir, "as_told", ABSTAIN, PROMISED)
    with pytest.raises(FieldCollisionError, match=r"'unscored' .*index 1.*and this one has a score"):
        by_reward_loop(loops, {"score": 1.0, "unscored": None}, {"score": 1.0, "unscored": "the judge timed out"})


def test_without_the_setting_the_key_is_as_any_other_and_the_error_names_the_way_out(model_dir):
    loops = Loops(model_dir, "as_told")
    batch = by_reward_loop(loops, {"score": 1.0, "unscored": "hm"})
    assert batch.non_tensor_batch["unscored"].tolist() == ["hm"]
    for path in (by_reward_loop, by_agent_loop):
        with pytest.raises(MissingRewardError, match=r"is None .*\+verl_ext\.unscored=abstain"):
            path(loops, {"score": 1.0}, {"score": None})


def test_a_driver_without_the_plugin_gets_from_workers_with_it_what_stock_workers_answer(model_dir):
    """Nobody has told them that unscored samples will be left out: there is no promise in their configuration."""
    loops = Loops(model_dir, "as_told", ABSTAIN)
    with open_dict(loops.config):
        del loops.config[LEFT_OUT]
    batch = loops.scored_batch(answered(None, {"score": None}))
    answers = [loops.scorer.compute_score.remote(batch[n : n + 1]).future().result(PATIENCE) for n in range(2)]
    assert [answer["reward_score"] for answer in answers] == [None, None]
    assert [answer["reward_extra_info"] for answer in answers] == [{"acc": None}, {"score": None}]


def test_text_is_no_score_that_is_missing(model_dir):
    loops = Loops(model_dir, "as_told", ABSTAIN, PROMISED)
    with pytest.raises(MissingRewardError, match="'right'"):
        by_reward_loop(loops, {"score": 1.0}, {"score": "right"})


def test_rows_of_which_all_have_a_score_arrive_as_on_stock_verl(model_dir):
    answers = [{"score": 1.0, "acc": True}, {"score": 0.5, "acc": False}]
    abstain = by_reward_loop(Loops(model_dir, "as_told", ABSTAIN, PROMISED), *answers)
    with on_stock():
        theirs = by_reward_loop(Loops(model_dir), *answers)
    assert abstain.batch["rm_scores"].equal(theirs.batch["rm_scores"])
    assert {key: column.tolist() for key, column in abstain.non_tensor_batch.items()} == {
        key: column.tolist() for key, column in theirs.non_tensor_batch.items()
    }
    assert abstain.meta_info == theirs.meta_info


def test_samples_finished_one_by_one_keep_score_and_reason_together(model_dir):
    batch = one_by_one(
        Loops(model_dir, "as_told", ABSTAIN, PROMISED), {"score": 1.0}, {"score": None, "unscored": "out"}, 0.0
    )
    assert missing(batch) == [False, True, False]
    assert batch.non_tensor_batch["unscored"].tolist() == [None, "out", None]


def test_an_assembly_of_its_own_cannot_make_a_number_of_a_score_that_is_missing(model_dir, monkeypatch):
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

    def zeros(cls, data, scores):
        return data.batch["responses"].float() * 0 + 0.0

    monkeypatch.setattr(NaiveRewardManager, "assemble_rm_scores", classmethod(zeros))
    assert missing(by_reward_loop(Loops(model_dir, "as_told", ABSTAIN, PROMISED), 1.0, None)) == [False, True]

    def all_nan(cls, data, scores):
        return zeros(cls, data, scores) + sum(scores)

    monkeypatch.setattr(NaiveRewardManager, "assemble_rm_scores", classmethod(all_nan))
    with pytest.raises(MissingRewardError, match="assemble_rm_scores has made NaN"):
        by_reward_loop(Loops(model_dir, "as_told", ABSTAIN, PROMISED), 1.0, None)


def test_a_run_whose_driver_cannot_leave_samples_out_does_not_begin(model_dir):
    from verl_ext import plugin

    loops = Loops(model_dir, "as_told", ABSTAIN, PROMISED)
    site = plugin._sites["trainer"]
    before, site.state = site.state, plugin.State.DISABLED
    try:
        with pytest.raises(SettingsError, match="needs the patch site 'trainer', which is off"):
            type(loops.rewards)(loops.config)
    finally:
        site.state = before
