"""A group filter of a recipe's own, by a reward key that some samples lack: `np.std` of a group with `None` in it."""

import pytest

from verl_ext import MissingRewardError

from .surroundings import DAPO, GSM8K, outcome
from .trainers import OwnBatches, OwnFilter, trainer

BY_SCORE = {"algorithm": {"filter_groups": {"enable": True, "metric": "score"}}}
FILLED = {**BY_SCORE, "verl_ext": {"fill": {"score": 0.0}}}
BETTER = {**DAPO, "score": 1.0}
GROUPS = {
    "every group has it, or nobody in it": [DAPO, BETTER, GSM8K, GSM8K],
    "a group of both": [GSM8K, DAPO, DAPO, BETTER],
    "nobody has it": [GSM8K, GSM8K, GSM8K, GSM8K],
}


@pytest.fixture
def filtered(verl):
    """A function from dicts and settings to the groups, of two samples each, that a recipe's filter keeps."""
    return lambda infos, settings=BY_SCORE: list(trainer(verl, OwnFilter, infos, settings=settings).fit())


@pytest.mark.parametrize("infos", GROUPS.values(), ids=GROUPS)
def test_a_metric_that_some_samples_lack_is_a_named_error_with_the_way_out(infos, filtered, stock):
    with stock():
        assert isinstance(outcome(lambda: filtered(infos)), KeyError)
    error = outcome(lambda: filtered(infos))
    assert isinstance(error, MissingRewardError)
    assert all(part in str(error) for part in ("score", "verl_ext.fill.score", "planned"))


@pytest.mark.parametrize(("infos", "kept"), zip(GROUPS.values(), ([0], [0, 1], []), strict=True), ids=GROUPS)
def test_the_fill_value_is_what_the_filter_sees(infos, kept, filtered):
    assert filtered(infos, FILLED) == kept


def test_a_metric_that_every_sample_has_filters_as_on_stock(filtered, stock):
    infos = [DAPO, BETTER, DAPO, DAPO]
    with stock():
        theirs = filtered(infos)
    assert filtered(infos) == theirs == [0]


def test_a_fill_that_nothing_reads_is_warned_of_also_where_a_trainer_has_no_filter_for_its_metric(verl, warned):
    """verl's legacy trainer does not filter: `filter_groups.metric` alone reads nothing."""
    trainer(verl, OwnBatches, [GSM8K], settings=FILLED)
    assert [text for text in warned() if "score" in text and "nothing reads it" in text]


def test_the_dicts_beside_the_columns_keep_what_is_missing_as_missing(verl):
    made = trainer(verl, OwnFilter, [GSM8K, DAPO], settings=FILLED)
    outcome(lambda: list(made.fit()))
    (batch,) = made.seen
    assert [row.get("score") for row in batch.non_tensor_batch["reward_extra_info"]] == [None, -1.0]
