"""Workers with a `_postprocess` of their own, also such that inherit nothing of verl's, under verl's own manager."""

import itertools

import numpy as np
import pytest
from marks import slow_after

from .surroundings import (
    DAPO,
    GSM8K,
    assert_same_content,
    assert_whole,
    infos_of,
    lost,
    orders,
    outcome,
    prompts,
    rows_of,
)
from .workers import Attaching, Dictless, FirstSample, Intersection, NoSubclass, OfNoSubclass

KEEP_THE_DICTS = [Intersection, NoSubclass, OfNoSubclass, Attaching]
ON_THEIR_OWN = [Intersection, FirstSample, NoSubclass, OfNoSubclass, Dictless]


@pytest.mark.parametrize("worker", KEEP_THE_DICTS)
@pytest.mark.parametrize("order", slow_after(4, orders(rows=4)))
def test_all_orders_of_two_schemas_over_two_workers_come_out_with_every_value_at_its_row(order, worker, verl):
    infos = infos_of(order)
    output = verl.generated(infos, worker, workers=2)
    assert_whole(output, infos)
    assert [dict(row) for row in output.non_tensor_batch["reward_extra_info"]] == infos


SCHEMAS = {"gsm8k": GSM8K, "dapo": DAPO, "nothing": {}, "judge": {"judge": [1, 2]}}


@pytest.mark.parametrize("names", slow_after(8, itertools.permutations(SCHEMAS)), ids=" ".join)
def test_four_schemas_over_four_workers_come_out_whatever_the_first_workers_keys_are(names, verl):
    infos = [SCHEMAS[name] for name in names]
    assert_whole(verl.generated(infos, NoSubclass, workers=4), infos)


@pytest.mark.parametrize("worker", [Intersection, NoSubclass])
def test_on_stock_the_keys_that_one_sample_lacks_are_lost_and_workers_with_other_keys_cannot_be_joined(
    worker, verl, stock
):
    with stock():
        within = verl.generated([GSM8K, DAPO], worker)
        assert {key for _, key, _ in lost(within, [GSM8K, DAPO])} == {"score", "pred"}
        assert within.meta_info["reward_extra_keys"] == ["acc"]
        for infos in ([GSM8K, DAPO], [DAPO, GSM8K]):
            assert isinstance(outcome(lambda infos=infos: verl.generated(infos, worker, workers=2)), AssertionError)


@pytest.mark.parametrize("worker", ON_THEIR_OWN)
@pytest.mark.parametrize("infos", slow_after(1, [[GSM8K] * 4, [DAPO] * 4, [{}] * 4]), ids=["gsm8k", "dapo", "nothing"])
def test_one_schema_comes_out_as_on_stock_and_the_keys_in_the_order_that_the_worker_gave_them(
    infos, worker, verl, stock
):
    with stock():
        theirs = verl.generated(infos, worker, workers=2)
    ours = verl.generated(infos, worker, workers=2)
    assert_same_content(ours, theirs)
    assert ours.meta_info["reward_extra_keys"] == theirs.meta_info["reward_extra_keys"]


@pytest.mark.parametrize("worker", [Intersection, NoSubclass])
def test_where_nothing_scores_in_the_loop_there_are_no_reward_keys_as_on_stock(worker, verl, stock):
    with stock():
        theirs = verl.generated([GSM8K, DAPO], worker, workers=2, scores=False)
    ours = verl.generated([GSM8K, DAPO], worker, workers=2, scores=False)
    assert_same_content(ours, theirs)
    assert "reward_extra_keys" not in ours.meta_info


@pytest.mark.parametrize("worker", [Intersection, NoSubclass])
def test_a_sample_whose_dict_is_empty_has_no_keys_and_the_others_keep_theirs(worker, verl):
    output = verl.generated([{}, DAPO], worker)
    assert_whole(output, [{}, DAPO])


def test_a_worker_that_keeps_no_dicts_loses_keys_as_on_stock_and_is_warned_of_once_by_name(verl, stock, warned):
    with stock():
        theirs = verl.generated([GSM8K, DAPO], Dictless)
    ours = [verl.generated([GSM8K, DAPO], Dictless) for _ in range(2)]
    assert_same_content(ours[0], theirs)
    (warning,) = [text for text in warned() if "_postprocess" in text]
    assert "attach_reward_extra_info" in warning


def test_workers_that_keep_no_dicts_and_have_other_keys_are_joined_where_stock_asserts(verl, stock):
    infos = [GSM8K, GSM8K, DAPO, DAPO]
    with stock():
        assert isinstance(outcome(lambda: verl.generated(infos, Dictless, workers=2)), AssertionError)
    assert_whole(verl.generated(infos, Dictless, workers=2), infos)


@pytest.mark.parametrize("classes", [(Intersection, FirstSample), (Intersection, Attaching), (Attaching, Intersection)])
def test_workers_of_different_classes_come_out_together_with_every_value_at_its_row(classes, verl):
    infos = [GSM8K, DAPO, GSM8K, DAPO]
    manager = verl.manager()
    manager.agent_loop_workers = [verl.worker(cls, number) for number, cls in enumerate(classes)]
    assert_whole(manager.generate_sequences(prompts(rows_of(infos))), infos)


def test_a_key_named_as_a_column_of_the_workers_own_is_refused_by_name_and_not_overwritten(verl):
    from verl_ext import FieldCollisionError

    infos = [{"acc": 1.0, "__num_turns__": 5}, {"acc": 1.0}]
    error = outcome(lambda: verl.generated(infos, Intersection))
    assert isinstance(error, FieldCollisionError)
    assert "__num_turns__" in error.collisions


def test_the_first_samples_keys_of_a_worker_are_no_reason_to_lose_those_of_others(verl, stock):
    infos = [GSM8K, DAPO]
    with stock():
        assert lost(verl.generated(infos, FirstSample), infos) != []
    assert_whole(verl.generated(infos, FirstSample), infos)


def test_columns_that_are_rebuilt_hold_what_numpy_would_bend(verl):
    infos = [{"value": 2**53 + 1}, {"value": 0.5}, {"value": 7}, {"value": "x"}]
    output = verl.generated(infos, Intersection, workers=2)
    assert_whole(output, infos)
    assert output.non_tensor_batch["value"].dtype == np.dtype(object)
