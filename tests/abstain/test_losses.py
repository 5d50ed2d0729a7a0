"""What each of verl's ways to aggregate a loss makes of samples that abstain, whose mask is zero."""

import inspect
import math

import pytest
import torch
from tensordict import TensorDict
from verl.trainer.ppo.core_algos import agg_loss
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig, FSDPCriticConfig
from verl.workers.utils import losses as verls

from verl_ext.plugin._trial import mentions, verls_own

LOSSES = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0], [2.0, 2.0, 2.0]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 1]])
SCORED = torch.tensor([True, False, True, False])
SILENT = MASK * SCORED.unsqueeze(1)

TOKEN_MODES = [
    "token-mean",
    pytest.param(
        "token-sum",
        marks=pytest.mark.skipif('"token-sum"' not in inspect.getsource(agg_loss), reason="this verl has no such mode"),
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


# --- a mini-batch without any token to train on ------------------------------------------------------------------


def micro_batch(mask, scores, tokens):
    """A micro-batch as verl's engines give it to a loss: by row, the two tokens of a prompt and those of a response."""
    count, length = mask.shape
    data = TensorDict(
        {
            "prompts": torch.ones(count, 2, dtype=torch.long),
            "responses": torch.ones(count, length, dtype=torch.long),
            "attention_mask": torch.ones(count, 2 + length, dtype=torch.long),
            "response_mask": mask,
            "old_log_probs": torch.full((count, length), -1.0),
            "advantages": torch.ones(count, length) * mask,
            "values": torch.zeros(count, length),
            "returns": torch.ones(count, length) * mask,
            "rm_scores": scores,
        },
        count,
    )
    tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=tokens, global_batch_size=count)
    return data


def losses(data):
    """By verl's loss, its value and the gradient of what the model gave."""
    found = {}
    for name, function, config in (
        ("log_probs", verls.ppo_loss, FSDPActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1)),
        ("values", verls.value_loss, FSDPCriticConfig(strategy="fsdp", ppo_micro_batch_size_per_gpu=1)),
    ):
        if not mentions(verls_own(verls, function.__name__), "batch_num_tokens"):
            continue  # verl 0.8's value loss, with which a run in which samples may abstain is refused at start
        tokens = int(data["attention_mask"].sum())
        given = torch.full((tokens,), -1.5, requires_grad=True)
        value, _ = function(config, {name: given}, data)
        value.backward()
        found[name] = value.item(), given.grad
    return found


def test_the_loss_is_zero_where_no_sample_of_a_mini_batch_has_a_score_and_nan_on_stock_verl(stock):
    missing = torch.tensor([[0.0, 0.0, torch.nan]] * 2)
    data = micro_batch(MASK[:2] * 0, missing, tokens=0)
    for value, gradient in losses(data).values():
        assert value == 0.0
        assert not gradient.any()
    assert tu.get_non_tensor_data(data, "batch_num_tokens", None) == 0
    with stock():
        assert all(math.isnan(value) for value, _ in losses(data).values())


@pytest.mark.parametrize(("scores", "tokens"), [(torch.nan, 5), (1.0, 5), (1.0, 0)])
def test_any_other_loss_is_stock_verls(scores, tokens, stock):
    """Also where no token counts for another reason, such as verl's own rejection of samples."""
    data = micro_batch(MASK[:2] * bool(tokens), torch.tensor([[0.0, 0.0, scores]] * 2), tokens)
    ours = losses(data)
    with stock():
        theirs = losses(data)
    for name in theirs:
        assert repr(ours[name][0]) == repr(theirs[name][0])
        assert torch.equal(ours[name][1].nan_to_num(7.0), theirs[name][1].nan_to_num(7.0))
