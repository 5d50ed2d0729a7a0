"""REMAX as DAPO's recipe does it: the greedy answers' columns are in the batch when the sampled ones are united."""

import pytest

from .recipes import with_greedy_baseline
from .surroundings import DAPO, GSM8K, assert_same, lost, outcome

N = 2
CASES = {
    "one schema, other values": ([GSM8K, {"acc": 0.0}, GSM8K, GSM8K], [{"acc": 0.0}, GSM8K]),
    "the greedy answers lack keys": ([DAPO] * 4, [{"acc": 1.0}, {"acc": 0.0}]),
    "the sampled answers lack keys": ([GSM8K] * 4, [DAPO, DAPO]),
    "mixed": ([GSM8K, GSM8K, DAPO, {**DAPO, "pred": "8"}], [GSM8K, DAPO]),
}


@pytest.mark.parametrize(("sampled", "greedy"), CASES.values(), ids=CASES)
def test_the_sampled_answers_columns_are_kept_and_the_baselines_are_not_mixed_with_them(sampled, greedy, verl, stock):
    with stock():
        assert isinstance(
            outcome(lambda: with_greedy_baseline(verl, sampled, greedy, N)), AssertionError | KeyError | TypeError
        )
    batch = with_greedy_baseline(verl, sampled, greedy, N)
    assert lost(batch, sampled) == []
    assert batch.batch["rm_scores"].sum(dim=-1).tolist() == [1.0] * 4
    assert batch.batch["reward_baselines"].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert sorted(batch.meta_info["reward_extra_keys"]) == sorted({key for info in sampled for key in info})


def test_greedy_answers_that_earn_the_same_are_united_as_on_stock(verl, stock):
    with stock():  # text is a TypeError there even where it is equal: `np.isnan` of it
        theirs = with_greedy_baseline(verl, [GSM8K] * 4, [GSM8K] * 2, N)
    assert_same(with_greedy_baseline(verl, [GSM8K] * 4, [GSM8K] * 2, N), theirs)


def test_where_it_cannot_be_the_error_does_not_advise_to_rename_a_key_that_both_batches_must_have(verl):
    batch = outcome(lambda: with_greedy_baseline(verl, *CASES["one schema, other values"], N))
    assert not isinstance(batch, Exception) or "Rename" not in str(batch)
