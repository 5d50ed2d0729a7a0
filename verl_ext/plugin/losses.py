"""Patches verl's losses: where no sample of a mini-batch has a score, its loss is zero, and not zero by zero.

verl divides by the mini-batch's tokens that count. Of a NaN, its FSDP engine skips the update; its Megatron engine does
not, and the weights are NaN from then on.
"""

from __future__ import annotations

from typing import Any

from verl_ext.plugin._abstain import unscored
from verl_ext.plugin._site import REST, Function, PatchSite

site = PatchSite(
    name="losses",
    module="verl.workers.utils.losses",
    purpose="the loss of a mini-batch in which no sample has a score is NaN",
)

_TOKENS = "batch_num_tokens"
"""verl's name for the number of tokens of a mini-batch that count, on all ranks."""


def _of_the_scored(stock: Function) -> Function:
    def loss(config: Any, model_output: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        from verl.utils import tensordict_utils as tu

        if tu.get_non_tensor_data(data, _TOKENS, None) == 0 and "rm_scores" in data.keys() and unscored(data).any():
            data = data.copy()
            tu.assign_non_tensor(data, **{_TOKENS: 1})
        return stock(config, model_output, data, *args, **kwargs)

    return loss


for target in ("ppo_loss", "value_loss"):
    site.wraps(target, "config", "model_output", "data", REST)(_of_the_scored)
