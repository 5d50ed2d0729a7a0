"""Teaches GDPO, the one advantage estimator that makes tensors of reward columns, what to do where a value is missing.

`np.asarray(column, dtype=float32)` turns `None` into NaN without a word; from there it reaches every advantage. verl's
engine then skips the update, since the gradient's norm is not finite: the run goes on and learns nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from verl_ext.errors import UnsupportedVerlError, shown
from verl_ext.plugin._guard import refusing_missing_components
from verl_ext.plugin._site import REST, Function, PatchSite, binder, warn_once
from verl_ext.plugin._trial import ALIGNED, seeing, unless, verls_own
from verl_ext.settings import SKIP, Settings, Use, training_values

site = PatchSite(
    name="advantage",
    module="verl.trainer.ppo.core_algos",
    purpose="with a GDPO component that some samples lack every advantage is NaN, and the run learns nothing",
    guard=refusing_missing_components,
)


def _keeps_nan_out(module: Any) -> bool:
    """verl's GDPO on one group of two samples, of which only the second has the component."""
    import torch

    ones = torch.ones(2, 1)
    gdpo = verls_own(module, "compute_gdpo_outcome_advantage")
    advantages, _ = gdpo(
        ones,
        ones,
        np.array(["a", "a"]),
        config={"gdpo_reward_keys": ["found"]},
        non_tensor_batch={"found": np.array(ALIGNED)},
        batch={"prompts": ones, "attention_mask": torch.ones(2, 2, dtype=torch.long)},
    )
    return bool(advantages.isfinite().all())


@site.wraps(
    "compute_gdpo_outcome_advantage",
    "token_level_rewards",
    "response_mask",
    "index",
    REST,
    needed=unless(_keeps_nan_out),
)
def _compute_gdpo_outcome_advantage(stock: Function) -> Function:
    bind = binder(stock)

    def compute_gdpo_outcome_advantage(*args: Any, **kwargs: Any) -> Any:
        call = bind(*args, **kwargs)
        config, columns, batch = map(call.arguments.get, ("config", "non_tensor_batch", "batch"))
        if config is not None and columns is not None and batch is not None:  # else verl trains on the sum of rewards
            found = components(config, columns)
            call.arguments["non_tensor_batch"] = {**columns, **found}
            if any(np.isnan(numbers).any() for numbers in found.values()):
                return _skipping(stock, *call.args, **call.kwargs)
        return stock(*call.args, **call.kwargs)

    return compute_gdpo_outcome_advantage


def _skipping(stock: Function, *args: Any, **kwargs: Any) -> Any:
    """verl's GDPO, where a component that is NaN for a sample adds nothing to its advantage.

    verl's own GRPO, which GDPO asks for each component's part, gets the samples that have it; the others' part is 0.

    Raises:
        UnsupportedVerlError: this verl's GDPO does not ask it.
    """
    grpo: Any = stock.__globals__.get(_GRPO)

    def of_those_that_have_it(token_level_rewards: Any, response_mask: Any, index: Any, **rest: Any) -> Any:
        has = ~token_level_rewards.isnan().any(dim=1)
        part = token_level_rewards.new_zeros(token_level_rewards.shape)
        if has.any():
            rewards, mask = token_level_rewards[has], response_mask[has]
            part[has] = grpo(token_level_rewards=rewards, response_mask=mask, index=index[has.cpu().numpy()], **rest)[0]
        return part, part

    advantages, returns = seeing(stock, **{_GRPO: of_those_that_have_it})(*args, **kwargs)
    if advantages.isnan().any():
        raise UnsupportedVerlError(
            "this verl's GDPO does not take its components apart as verl-ext knows it, so that none can be skipped: "
            f"set a number instead of {SKIP!r}"
        )
    return advantages, returns


_GRPO = "compute_grpo_outcome_advantage"


def component_keys(algorithm: Any) -> Sequence[str]:
    """The reward keys that GDPO trains on, by verl's `config.algorithm`; none without it, and for other estimators."""
    return () if algorithm is None else algorithm.get("gdpo_reward_keys", None) or ()


def _trained(values: Sequence[Any]) -> np.ndarray:
    """What verl trains on: the values, as its managers put them into a column, in float32."""
    column = np.array(values)
    with np.errstate(over="ignore"):
        numbers = np.asarray(column, dtype=np.float32)
    finite = np.isfinite(column if column.dtype.kind in "mM" else numbers)  # of NaT, NumPy makes a finite number
    if numbers.shape != (len(values),) or not finite.all():
        raise ValueError
    return numbers


TRAINED = Use(
    _trained, "a finite number to train on, in float32. NaN would reach every advantage of its group", skips=True
)


def components(algorithm: Any, columns: Any) -> dict[str, Any]:
    """The GDPO components of a batch, as training may use them.

    Args:
        algorithm: verl's `config.algorithm`; the settings are looked up in the configuration that it belongs to.
        columns: the batch's `non_tensor_batch`.

    Raises:
        MissingRewardError: a component is missing for some samples and has no fill value, or is no finite number.
    """
    settings = Settings.of(algorithm)
    keys = component_keys(algorithm)
    for key in settings.fill.keys() & set(keys) - columns.keys():
        warn_once(
            ("never came", key),
            f"no sample of a whole batch has emitted the reward component {shown(key)}; "
            + ("it counts for none" if np.isnan(settings.fill[key]) else f"all train with {settings.fill[key]}"),
        )
    sources = columns.get("data_source")
    rows = len(next(iter(columns.values()), ()))
    return {key: training_values(key, columns.get(key, [None] * rows), settings, sources, TRAINED) for key in keys}
