"""verl's reward loop beside ours: what the workers answer, and what the manager makes of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from compared import assert_same_batch, assert_same_columns, carried_by_stock, columns_of_all_families, equal, rows_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_process_actors import PATIENCE, Loops, in_this_process
from on_stock import on_stock
from sites import covers
from values import FAMILIES, Level, each_family

from verl_ext.demo import rig
from verl_ext.errors import MissingRewardError, VerlExtError
from verl_ext.plugin._workers import marked
from verl_ext.plugin.reward_loop import ENVELOPE

SCORE = {"score": 1.0}
few = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def loops(tmp_path_factory):
    with in_this_process():
        yield Loops(rig.build_model_dir(tmp_path_factory.mktemp("model")))


def answered(rows):
    """The reward function's answers: these, beside a score."""
    return [lambda row=row: {**SCORE, **copy.copy(row)} for row in rows]


def asked(actor, method, batch):
    return getattr(actor, method).remote(batch).future().result(PATIENCE)


@covers("reward_loop", "RewardLoopWorker.compute_score")
@few
@given(columns_of_all_families(1))
def test_a_worker_answers_for_one_sample_what_verls_own_answers(loops, columns):
    batch = loops.scored_batch(answered(rows_of(columns)))
    ours = asked(loops.scorer, "compute_score", batch)
    with on_stock():
        theirs = asked(loops.scorer, "compute_score", batch)
    assert_same_answers([ours], [theirs])


@covers("reward_loop", "RewardLoopWorker.compute_score_batch")
@few
@given(columns_of_all_families(2))
def test_a_worker_answers_for_a_batch_what_verls_own_answers_and_to_our_manager_the_same_in_an_envelope(loops, columns):
    batch = loops.scored_batch(answered(rows_of(columns)))
    ours = asked(loops.scorer, "compute_score_batch", batch)
    enveloped = asked(loops.scorer, "compute_score_batch", marked(batch))
    with on_stock():
        theirs = asked(loops.scorer, "compute_score_batch", batch)
    assert_same_answers(ours, theirs)
    opened = [{**answer, "reward_extra_info": answer["reward_extra_info"][ENVELOPE]["row"]} for answer in enveloped]
    assert_same_answers(opened, theirs)


def assert_same_answers(ours: list[Any], theirs: list[Any]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert type(one) is type(other) is dict
        assert list(one) == list(other)
        row, their_row = one["reward_extra_info"], other["reward_extra_info"]
        assert list(row) == list(their_row)
        assert [type(value) for value in row.values()] == [type(value) for value in their_row.values()]
        assert [key for key in row if not equal(row[key], their_row[key])] == []
        assert equal(one["reward_score"], other["reward_score"])


@covers("reward_loop", "RewardLoopManager.compute_rm_score")
@few
@given(st.integers(1, 4).flatmap(columns_of_all_families))
def test_the_manager_makes_of_uniform_rows_what_verls_own_makes(loops, columns):
    carried = carried_by_stock(columns)
    batch = loops.scored_batch(answered(rows_of(carried)))
    ours = loops.rewards.compute_rm_score(batch)
    with on_stock():
        theirs = loops.rewards.compute_rm_score(batch)
    assert_same_batch(ours, theirs, carried)
    assert batch.meta_info == {}


KEYS = [7, None, 2.5, b"bytes", ("a", 1), Level.HIGH]
"""Reward keys as nobody should name them, of types that have no order among them; verl's managers carry them."""


@pytest.mark.parametrize("path", ["reward loop", "agent loop"])
def test_keys_that_are_no_text_come_back_as_on_stock_verl_and_where_some_rows_lack_them(loops, path):
    def columns_of(rows):
        if path == "reward loop":
            batch = loops.rewards.compute_rm_score(loops.scored_batch(answered(rows)))
        else:
            batch = loops.rollouts.generate_sequences(loops.prompt_batch(answered(rows)))
        return {key: batch.non_tensor_batch[key] for key in batch.meta_info["reward_extra_keys"]}

    uniform = {key: [number, number + 0.5] for number, key in enumerate(KEYS)}
    ours = columns_of(rows_of(uniform))
    with on_stock():
        assert_same_columns(ours, columns_of(rows_of(uniform)), uniform)
    mixed = columns_of([{"acc": 1.0}, dict.fromkeys(KEYS, 0.5)])
    assert list(mixed) == ["score", "acc", *KEYS]
    assert {key: mixed[key].tolist() for key in KEYS} == {key: [None, 0.5] for key in KEYS}


@few
@given(st.integers(1, 4).flatmap(columns_of_all_families))
def test_what_verls_own_cannot_carry_arrives(loops, columns):
    rows = [{**SCORE, **row} for row in rows_of(columns)]
    scored = loops.rewards.compute_rm_score(loops.scored_batch(answered(rows)))
    assert scored.meta_info == {"reward_extra_keys": list(rows[0])}
    for key, column in scored.non_tensor_batch.items():
        assert [number for number, row in enumerate(rows) if not equal(column[number], row[key])] == [], key


@covers("reward_loop", "RewardLoopManager.compute_rm_score")
@each_family()
@settings(few, max_examples=4)
@given(data=st.data())
def test_the_manager_takes_the_scores_that_verls_own_takes(loops, family, data):
    scores = data.draw(st.lists(FAMILIES[family], min_size=1, max_size=3))
    batch = loops.scored_batch([lambda score=score: {"score": score} for score in scores])
    ours = outcome(lambda: loops.rewards.compute_rm_score(batch).batch["rm_scores"])
    with on_stock():
        theirs = outcome(lambda: loops.rewards.compute_rm_score(batch).batch["rm_scores"])
    if family == "bytes":  # stock verl takes b"a" for 97, in a batch of one row
        assert isinstance(ours, MissingRewardError)
    elif isinstance(theirs, Exception):
        assert isinstance(ours, torch.Tensor | VerlExtError), ours
    else:
        assert equal(ours, theirs), (ours, theirs)


def outcome(call):
    try:
        return call()
    except Exception as error:
        return error
