"""What each of verl's ways to aggregate a loss makes of samples that abstain, whose mask is zero."""

import inspect

import pytest
import torch
from verl.trainer.ppo.core_algos import agg_loss

LOSSES = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0], [2.0, 2.0, 2.0]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 1]])
SCORED = torch.tensor([True, False, True, False])
SILENT = MASK * SCORED.unsqueeze(1)

TOKEN_MODES = [
    "token-mean",
    pytest.param(
        "token-sum",
        marks=pytest.mark.skipif("token-sum" not in inspect.getsource(agg_loss), reason="this verl has no such mode"),
    ),
]
SEQUENCE_MODES = ["seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"]


def loss(mode, losses, mask, **of_the_mini_batch):
    return agg_loss(losses, mask, mode, **of_the_mini_batch).item()


@pytest.mark.parametrize("mode", TOKEN_MODES)
def test_by_tokens_an_unscored_sample_counts_neither_above_nor_below_the_fraction_line(mode):
    without = loss(mode, LOSSES[SCORED], MASK[SCORED], batch_num_tokens=int(MASK[SCORED].sum()))
    assert loss(mode, LOSSES, SILENT, batch_num_tokens=int(SILENT.sum())) == without
    assert loss(mode, LOSSES, MASK, batch_num_tokens=int(MASK.sum())) != without


@pytest.mark.parametrize("mode", [*TOKEN_MODES, *SEQUENCE_MODES])
def test_where_verl_counts_by_itself_an_unscored_sample_counts_nowhere(mode):
    assert loss(mode, LOSSES, SILENT) == loss(mode, LOSSES[SCORED], MASK[SCORED])


@pytest.mark.parametrize("mode", SEQUENCE_MODES)
def test_by_sequences_the_sum_is_of_the_scored_and_verls_engine_divides_it_by_the_size_of_the_mini_batch(mode):
    alone = loss(mode, LOSSES[SCORED], MASK[SCORED], global_batch_size=2)
    assert loss(mode, LOSSES, SILENT, global_batch_size=4) == pytest.approx(alone * 2 / 4)


@pytest.mark.parametrize("mode", SEQUENCE_MODES)
def test_by_sequences_a_mini_batch_without_any_scored_sample_has_no_loss(mode):
    assert loss(mode, LOSSES, MASK * 0, global_batch_size=4) == 0.0
