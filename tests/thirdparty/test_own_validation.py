"""A trainer's own `_validate`: its lists are as long as the samples are many, whatever keys each batch has."""

import pytest
from verl.trainer.ppo.reward import extract_reward

import verl_ext
from verl_ext import plugin

from .recipes import united
from .surroundings import DAPO, GSM8K, outcome
from .trainers import OwnValidation, batches_of, trainer, validated

ORDERS = {
    "the short schema first": [GSM8K, GSM8K, DAPO, DAPO],
    "the long schema first": [DAPO, DAPO, GSM8K, GSM8K],
    "the long schema between": [GSM8K, GSM8K, DAPO, DAPO, GSM8K, GSM8K],
}


def parts(infos):
    """The dicts, two by two."""
    return [infos[start : start + 2] for start in range(0, len(infos), 2)]


@pytest.fixture
def validation(verl):
    """A function from dicts to what a trainer with a `_validate` of its own makes of samples that earn them."""
    return lambda infos: trainer(verl, OwnValidation, *parts(infos))._validate()


@pytest.mark.parametrize("infos", ORDERS.values(), ids=ORDERS)
def test_the_lists_of_a_subclass_are_in_line_and_its_metrics_those_of_the_samples_that_have_the_key(
    infos, validation, stock
):
    with stock():
        assert isinstance(outcome(lambda: validation(infos)), AssertionError)
    metrics = validation(infos)
    assert metrics["planned/score/mean@1"] == -1.0
    assert metrics["planned/acc/mean@1"] == pytest.approx(sum(info["acc"] for info in infos) / len(infos))


def test_batches_of_one_schema_are_validated_as_on_stock(validation, stock):
    with stock():
        theirs = validation([GSM8K] * 4)
    assert validation([GSM8K] * 4) == theirs


def test_two_validations_of_one_trainer_know_nothing_of_each_other(verl):
    made = trainer(verl, OwnValidation, *parts(ORDERS["the short schema first"]))
    assert made._validate() == made._validate()


def test_training_between_two_validations_sees_its_own_columns_and_no_padding(verl):
    made = trainer(verl, OwnValidation, *parts(ORDERS["the short schema first"]))
    made._validate()
    _, infos = extract_reward(united(verl, [GSM8K]))
    assert {key: column.tolist() for key, column in infos.items()} == {"acc": [1.0]}


@pytest.mark.parametrize("infos", ORDERS.values(), ids=ORDERS)
def test_a_trainer_that_inherits_nothing_validates_inside_what_we_publish_for_it(infos, verl):
    """The name is a proposal: what own-workers.md says must be tried here."""
    assert isinstance(outcome(lambda: validated(batches_of(*parts(infos)), verl.manager())), AssertionError)
    with verl_ext.validation():
        metrics = validated(batches_of(*parts(infos)), verl.manager())
    assert metrics["planned/score/mean@1"] == -1.0


def test_what_we_publish_for_it_does_nothing_where_the_plugin_is_off(verl, stock):
    with stock(), verl_ext.validation():
        validated(batches_of([GSM8K, GSM8K], [GSM8K, GSM8K]), verl.manager())
        assert not plugin.site_is_active("trainer")
