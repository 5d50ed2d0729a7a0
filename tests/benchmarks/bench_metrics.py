"""The metrics of reward keys, beside what verl's own metrics of the same batch take."""

from __future__ import annotations

from functools import partial

import pytest
from inputs import make_rows

from verl_ext import assemble_reward_extra_info
from verl_ext.reward_metrics import RewardMetrics

ROWS, KEYS, PROMPT, RESPONSE = 16_384, 12, 256, 1024


def trained_batch():
    """A batch as the trainer has it after an update."""
    import torch
    from verl import DataProto

    per_token = torch.rand(ROWS, RESPONSE)
    ones = torch.ones(ROWS, PROMPT + RESPONSE, dtype=torch.int64)
    names = ("token_level_scores", "token_level_rewards", "advantages", "returns")
    tensors = dict.fromkeys(names, per_token)
    return DataProto.from_dict(
        {
            **tensors,
            "prompts": ones[:, :PROMPT],
            "responses": ones[:, PROMPT:],
            "response_mask": ones[:, PROMPT:],
            "attention_mask": ones,
        }
    )


@pytest.mark.parametrize("missing", [False, True])
def bench_reward_metrics(missing, times, table):
    from verl.trainer.ppo.metric_utils import compute_data_metrics

    compute_data_metrics = getattr(compute_data_metrics, "__wrapped__", compute_data_metrics)  # verl's own
    columns = assemble_reward_extra_info(make_rows(ROWS, 4 if missing else 1, KEYS, "numbers", missing))
    sources = [f"source_{row % 4}" for row in range(ROWS)]
    batch = trained_batch()
    took = times(
        lambda: RewardMetrics("all").step(columns, sources, ROWS),
        stock=partial(compute_data_metrics, batch, use_critic=False),
    )
    lacking = ", a tenth missing" if missing else ""
    where = f"{ROWS:,} rows of {RESPONSE:,} tokens, {len(columns)} keys{lacking}, 4 data sources"
    ours, stock = (f"{took[name] * 1e3:.1f} ms" for name in ("ours", "stock"))
    table.add("metrics of reward keys / verl's own", where, ours, stock, took["ours"] / took["stock"])
