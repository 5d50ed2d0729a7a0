"""The settings under `verl_ext` in verl's own configuration, and the one thing they do to values: fill what is missing.

A fill value is for training only: it is used where a reward column becomes a tensor, and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from verl_ext.errors import MissingRewardError, SettingsError, bare, shown
from verl_ext.schema import is_machine_number

SECTION = "verl_ext"
SKIP = "skip"
"""The fill by which a GDPO component counts only for the samples that have it."""

ABSTAIN = "abstain"
"""What a sample without a score does, where it is no error: it trains nothing and counts in no baseline."""


@dataclass(frozen=True)
class Settings:
    """What a user may set, as `+verl_ext.<option>=...`.

    Attributes:
        metrics: of which reward keys training logs metrics: `sparse`, those that some samples lack; `all`; or `off`.
        text_metrics: keys whose values are text, and of which training logs the shares of the commonest values.
        nan: whether NaN that a scorer emits is a `value`, or counts as `missing`.
        fill: by reward key, the number to train with where a sample has not emitted the key; NaN stands for `skip`:
            the component adds nothing to the advantage of such a sample. Also `+verl_ext.fill={reward/jpeg: 0.0}`, for
            keys that Hydra's dotted form cannot spell.
        unscored: what becomes of a sample without a score: an `error`, or it may `abstain`: it trains nothing.
    """

    fill: Mapping[str, float] = field(default_factory=dict)
    metrics: str = "sparse"
    text_metrics: Sequence[str] = ()
    nan: str = "value"
    unscored: str = "error"

    @property
    def abstains(self) -> bool:
        """Whether a sample without a score trains nothing, instead of ending the run."""
        return self.unscored == ABSTAIN

    def misses(self, value: Any) -> bool:
        """Whether a value of a reward column counts as missing."""
        return value is None or (self.nan == "missing" and isinstance(value, float | np.floating) and math.isnan(value))

    @classmethod
    def of(cls, config: Any) -> Settings:
        """The settings in a verl configuration, or in the configuration that a part of it belongs to.

        Args:
            config: an OmegaConf `DictConfig`, or a node of one; anything else has no settings.

        Raises:
            SettingsError: an unknown option, or a value of the wrong kind; names it.
        """
        root = config._get_root() if hasattr(config, "_get_root") else config
        section = _resolved(root) if isinstance(root, Mapping) or hasattr(root, "_get_root") else None
        if section is None:
            return cls()
        if not hasattr(section, "items"):
            raise SettingsError(f"{SECTION} is {shown(section)}; it must hold options: {_options()}")
        given = {str(option): value for option, value in section.items()}
        if unknown := given.keys() - _CHECKS.keys():
            raise SettingsError(f"unknown option {SECTION}.{shown(min(unknown))[1:-1]}; there are: {_options()}")
        return cls(**{option: _CHECKS[option](value) for option, value in given.items()})


def _resolved(root: Any) -> Any:
    """The section in a configuration, with its interpolations (`${...}`) filled in, as plain dicts and lists."""
    if not hasattr(root, "_get_root"):
        return root.get(SECTION)
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        if OmegaConf.is_missing(root, SECTION):
            raise SettingsError(
                f"{SECTION} is '???', which Hydra has for what must be set; it must hold options: {_options()}"
            )
        section = root.get(SECTION)
        is_node = OmegaConf.is_config(section)
        return OmegaConf.to_container(section, resolve=True, throw_on_missing=True) if is_node else section
    except OmegaConfBaseException as error:
        raise SettingsError(f"{SECTION} cannot be read: {shown(str(error).partition(chr(10))[0])}") from error


def _fill(value: Any) -> dict[str, float]:
    if not hasattr(value, "items"):
        raise SettingsError(
            f"{SECTION}.fill is {shown(value)}; it must be a number for each key: {fill_spelling('acc')}"
        )
    if len({str(key) for key in value}) < len(value):
        raise SettingsError(f"{SECTION}.fill is {shown(value)}: two of its keys are one as text")
    return {str(key): _fill_value(str(key), value[key]) for key in value}


def _fill_value(key: str, value: Any) -> float:
    if hasattr(value, "items"):  # +verl_ext.fill.tool.calls=0 is a dict in a dict
        inner = next(iter(value), "...")
        raise SettingsError(
            f"{SECTION}.fill.{shown(key)[1:-1]} is {shown(value)}, not a number. For a key with a dot in it, write "
            f"{fill_spelling(f'{key}.{inner}')}"
        )
    if value == SKIP:
        return math.nan
    if isinstance(value, bool) or not _is_finite(value):
        raise SettingsError(
            f"{SECTION}.fill for {shown(key)} is {shown(value)}; it must be a finite number in float32, or {SKIP!r}"
        )
    return float(value)


def _one_of(option: str, *choices: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        word = "off" if value is False else value  # as YAML reads it
        if word not in choices:
            raise SettingsError(f"{SECTION}.{option} is {shown(value)}; it must be one of {', '.join(choices)}")
        return str(word)

    return check


def _text_metrics(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(key, str) for key in value):
        raise SettingsError(f"{SECTION}.text_metrics is {shown(value)}; it must be a list of reward keys: [judge]")
    return tuple(value)


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "fill": _fill,
    "metrics": _one_of("metrics", "sparse", "all", "off"),
    "text_metrics": _text_metrics,
    "nan": _one_of("nan", "value", "missing"),
    "unscored": _one_of("unscored", "error", ABSTAIN),
}


def _options() -> str:
    return ", ".join(f"{SECTION}.{option.name}" for option in fields(Settings))


def fill_spelling(key: str) -> str:
    """How a user writes a fill for `key` on verl's command line."""
    dotted, key = key.replace("_", "a").isalnum() and key.isascii(), bare(key)
    return f"+{SECTION}.fill.{key}=0.0" if dotted else f"'+{SECTION}.fill={{{key}: 0.0}}'"


@dataclass(frozen=True)
class Use:
    """What training takes a reward column for.

    Attributes:
        numbers: from values, one per sample, to the numbers `(samples,)` that verl makes of them; raises whatever it
            likes for values that are none.
        demand: what must hold of a value, and why, to end an error message.
        skips: whether it can do without the samples that lack the key, which are NaN then.
    """

    numbers: Callable[[Sequence[Any]], np.ndarray]
    demand: str
    skips: bool = False


COMPARED = Use(
    lambda values: np.array([float(value) for value in values]),  # as verl does, one by one
    "a number, by which the samples of a prompt are compared",
)
"""What group filters take their metric for."""


def training_values(
    key: str, column: Sequence[Any], settings: Settings, data_sources: Sequence[Any] | None, use: Use
) -> np.ndarray:
    """A reward column as training may use it: numbers, the fill value where a sample lacks the key.

    Args:
        key: the reward key.
        column: one value per sample, `None` where the key is missing.
        settings: where the fill value is looked up.
        data_sources: by row, for the error; or `None`.
        use: what the column is for.

    Returns:
        `(rows,)`, in the dtype of `use`.

    Raises:
        MissingRewardError: samples lack the key and no fill value is set; how many, of which data sources.
        MissingRewardError: a value is no such number; names the row.
        SettingsError: samples lack the key, and the use cannot skip them as the setting says.
    """
    values = list(column)
    missing = np.array([settings.misses(value) for value in values], dtype=bool)
    rows = np.flatnonzero(~missing).tolist()
    present = [values[row] for row in rows]
    numbers = _converted(present, use)
    if numbers is None:  # not all of them together: one by one, which tells the one that is no number
        one_by_one = []
        for row, value in zip(rows, present, strict=True):
            number = _converted([value], use)
            if number is None:
                told = shown(value.item() if isinstance(value, np.generic) else value)
                raise MissingRewardError(
                    f"the reward component {shown(key)} is {told} in row {row}{_source(data_sources, row)}: it must be "
                    f"{use.demand}"
                )
            one_by_one.append(number)
        numbers = np.concatenate(one_by_one)
    if not missing.any():
        return numbers
    if key not in settings.fill:
        raise MissingRewardError(
            f"{int(missing.sum())} of {len(values)} samples lack the reward component {shown(key)}"
            f"{_by_source(data_sources, missing)}. Return it from the reward function for every sample, or name the "
            f"value to train with where it is missing: {fill_spelling(key)}"
            + (f", or {SKIP} for 0.0, by which it counts only for the samples that have it" if use.skips else "")
        )
    if math.isnan(settings.fill[key]) and not use.skips:
        raise SettingsError(
            f"{SECTION}.fill for {shown(key)} is {SKIP!r}, which is for GDPO's components: here it must be {use.demand}"
        )
    filled = np.full(len(values), settings.fill[key], dtype=numbers.dtype)
    filled[rows] = numbers
    return filled


def _converted(values: Sequence[Any], use: Use) -> np.ndarray | None:
    try:
        return use.numbers(values)
    except Exception:  # of NumPy's, or of a value's own `__float__`: whatever it is, it has given no number
        return None


def _is_finite(value: Any) -> bool:
    """Whether a value is a number that stays finite as float32, in which verl trains."""
    return is_machine_number(value) and bool(abs(value) <= _LARGEST)


_LARGEST = float(np.finfo(np.float32).max)


def _source(data_sources: Sequence[Any] | None, row: int) -> str:
    return "" if data_sources is None else f" (data source {shown(str(data_sources[row]))})"


def _by_source(data_sources: Sequence[Any] | None, missing: np.ndarray) -> str:
    if data_sources is None:
        return ""
    counts: dict[str, list[int]] = {}
    for source, lacks in zip(data_sources, missing, strict=True):
        count = counts.setdefault(str(source), [0, 0])
        count[0] += bool(lacks)
        count[1] += 1
    named = [f"{shown(source)[1:-1]} {lack} of {total}" for source, (lack, total) in counts.items() if lack]
    return f" ({', '.join(named)})"
