"""Samples that abstain (`+verl_ext.unscored=abstain`): how a missing score reaches the trainer, and is left out there.

It travels as NaN in `rm_scores`, and why it is missing as a reward key. NaN goes wherever the score goes: through every
repeat, reorder and concat, and into the sum that REMAX takes for a baseline. Where nobody leaves it out, the loss is
NaN: what is missing is never trained on as a number in silence.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

from verl_ext.dump_fields import ABSTAINED, SCORE
from verl_ext.errors import FieldCollisionError, MissingRewardError, SettingsError
from verl_ext.plugin._site import State
from verl_ext.settings import ABSTAIN, SECTION, Settings

SETTING = f"+{SECTION}.unscored={ABSTAIN}"

Value = TypeVar("Value")

# --- where a sample is scored ------------------------------------------------------------------------------------

LEFT_OUT = "verl_ext_leaves_out"
"""Key of verl's configuration by which the driver tells its reward workers that it leaves unscored samples out.

Without it they act as with `error`: a driver that does not run the plugin would train on the NaN.
"""


def promise_to_leave_out(config: Any) -> None:
    """Tell the reward workers that are made with this configuration, if samples may abstain."""
    from omegaconf import open_dict

    settings = Settings.of(config)
    refuse_where_not_left_out(settings)
    if settings.abstains:
        with open_dict(config):
            config[LEFT_OUT] = True


def may_abstain(config: Any) -> bool:
    """Whether a sample without a score abstains, to a reward worker with this configuration."""
    return bool(config.get(LEFT_OUT)) and Settings.of(config).abstains  # for each sample: a look-up first


def computable(result: Any, settings: Settings) -> Any:
    """What a reward function returned, such that verl's reward managers can do sums with it: NaN for a missing score.

    verl's DAPO manager adds a penalty to it, which with `None` is a TypeError.
    """
    row = result if isinstance(result, dict) else {SCORE: result}
    if SCORE not in row or not settings.misses(row[SCORE]):
        return result
    return {**row, SCORE: math.nan, ABSTAINED: row.get(ABSTAINED) or True}


def computable_call(settings: Settings, scorer: Any, *args: Any, **kwargs: Any) -> Any:
    """The same of a call of a reward function."""
    return computable(scorer(*args, **kwargs), settings)


async def computable_coroutine(settings: Settings, scorer: Any, *args: Any, **kwargs: Any) -> Any:
    """The same of a reward function that is a coroutine."""
    return computable(await scorer(*args, **kwargs), settings)


def abstaining(answer: Mapping[str, Any], number: float | None, settings: Settings, sample: str) -> dict[str, Any]:
    """A reward worker's answer, where a missing score is NaN and its row says why.

    Args:
        answer: verl's `reward_score` and `reward_extra_info`.
        number: what a tensor holds for the score; `None` where it holds none.
        settings: of a run whose samples may abstain.
        sample: which one it is, for the message.

    Raises:
        FieldCollisionError: the row says why there is no score, and there is one.
        MissingRewardError: the score is NaN, which counts as a value.
    """
    row = answer["reward_extra_info"] or {}
    why, nan = row.get(ABSTAINED) or None, number is not None and math.isnan(number)
    if answer["reward_score"] is None or (nan and (why is not None or settings.nan == "missing")):
        told = {SCORE: None} if SCORE in row else {}
        return {**answer, "reward_score": math.nan, "reward_extra_info": {**row, **told, ABSTAINED: why or True}}
    if nan:
        raise MissingRewardError(
            f"the score of {sample} is NaN, which counts as a value. Return None for a sample that cannot be scored, "
            f"or let NaN count as missing: +{SECTION}.nan=missing"
        )
    if why is not None:
        where = f"what says why a sample has no score ({SETTING}), and this one has a score"
        raise FieldCollisionError({ABSTAINED: where}, {ABSTAINED: sample})
    return dict(answer)


# --- where samples are trained on --------------------------------------------------------------------------------

_SCORES = ("token_level_scores", "rm_scores", "token_level_rewards")
_BASELINES = "reward_baselines"
"""The scores of REMAX's greedy answers, `(batch,)`."""


def unscored(tensors: Any) -> Any:
    """Which samples of a batch abstain: bool `(batch,)`. In REMAX, also those whose greedy answer has no score.

    Args:
        tensors: the batch's, padded or nested; one of them holds the scores.
    """
    scores = next(tensors[name] for name in _SCORES if name in tensors.keys())
    rows = (scores.to_padded_tensor(0.0) if scores.is_nested else scores).isnan().flatten(1).any(dim=1)
    if _BASELINES in tensors.keys():
        rows = rows | tensors[_BASELINES].isnan().reshape(len(rows))
    return rows


def refuse_all_unscored(rows: Any) -> None:
    """Raise if no sample of a batch has a score: there is nothing to train on.

    Args:
        rows: bool `(batch,)`, as `unscored` returns.

    Raises:
        MissingRewardError: says so.
    """
    if bool(rows.all()):
        raise MissingRewardError(
            f"none of the {len(rows)} samples of a batch has a score ({SETTING}), so that there is nothing to train "
            "on: see what the reward function, or the judge that it asks, is up to"
        )


def silence(data: Any, rows: Any) -> None:
    """Make the `response_mask` of the samples `rows` zero, which no loss then counts; the old mask is not changed."""
    mask = data.batch["response_mask"]
    data.batch["response_mask"] = mask.masked_fill(rows.unsqueeze(1), 0)


def spread(values: Any, rows: Any, others: Any = None) -> Any:
    """Values of the samples `rows` `(count, ...)` as those of the whole batch `(batch, ...)`; `others` hold the rest.

    Args:
        values: of the samples.
        rows: which they are, bool `(batch,)`.
        others: `(batch, ...)`; zeros by default.
    """
    whole = values.new_zeros((len(rows), *values.shape[1:])) if others is None else others.clone()
    whole[rows] = values
    return whole


def as_a_scored_one(
    values: Sequence[Value], missing: Sequence[Any], groups: Sequence[Hashable], nothing: Value
) -> list[Value]:
    """The values that a group filter compares, such that it sees the scored samples only.

    An unscored sample gets the value of a scored one of its group, or `nothing` where there is none: so the values of a
    group differ if those of its scored samples do, and fewer than two of them never do.
    """
    scored: dict[Hashable, Value] = {}
    for value, lacks, group in zip(values, missing, groups, strict=True):
        if not lacks:
            scored.setdefault(group, value)
    return [
        scored.get(group, nothing) if lacks else value
        for value, lacks, group in zip(values, missing, groups, strict=True)
    ]


# --- where it cannot be done -------------------------------------------------------------------------------------

_NEEDED = ("reward", "reward_loop", "agent_loop", "metrics", "trainer", "trainer_v1", "main_ppo_sync", "replay_buffer")
"""The patch sites without which a missing score does not get through, or is not left out."""


def refuse_where_not_left_out(settings: Settings) -> None:
    """Raise if samples may abstain, and a patch site that it takes is off in this process.

    Raises:
        SettingsError: names the site, and why it is off.
    """
    from verl_ext import plugin

    if not settings.abstains:
        return
    off = [s for s in plugin.status() if s.name in _NEEDED and s.state in (State.DISABLED, State.UNKNOWN)]
    if off:
        raise SettingsError(
            f"{SETTING} needs the patch site {off[0].name!r}, which is off ({off[0].state.value}: {off[0].detail}): a "
            "sample without a score would not be left out"
        )
