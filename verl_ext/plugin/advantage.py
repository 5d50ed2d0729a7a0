"""Teaches GDPO, the one advantage estimator that makes tensors of reward columns, what to do where a value is missing.

`np.asarray(column, dtype=float32)` turns `None` into NaN without a word; from there it reaches every advantage. verl's
engine then skips the update, since the gradient's norm is not finite: the run goes on and learns nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from verl_ext.errors import shown
from verl_ext.plugin._guard import refusing_missing_components
from verl_ext.plugin._site import REST, Function, PatchSite, binder, warn_once
from verl_ext.plugin._trial import ALIGNED, unless, verls_own
from verl_ext.settings import Settings, Use, training_values

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
            call.arguments["non_tensor_batch"] = {**columns, **components(config, columns)}
        return stock(*call.args, **call.kwargs)

    return compute_gdpo_outcome_advantage


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


TRAINED = Use(_trained, "a finite number to train on, in float32. NaN would reach every advantage of its group")


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
            f"no sample of a whole batch has emitted the reward component {shown(key)}; all of them train with its "
            f"fill value, {settings.fill[key]}",
        )
    sources = columns.get("data_source")
    rows = len(next(iter(columns.values()), ()))
    return {key: training_values(key, columns.get(key, [None] * rows), settings, sources, TRAINED) for key in keys}
