"""Metrics of reward keys over a run: how many samples have a key, and what its values are, by data source too.

Works on aligned columns; where they come from, and who logs what comes out, is the plugin's business.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from verl_ext.errors import NotNumericError, shown
from verl_ext.schema import is_tensor

PREFIX = "reward_extra"
_MOST_TEXTS = 16
_LONGEST_TEXT = 40


def present(column: Any) -> np.ndarray:
    """Which rows of an aligned column have a value: bool `(batch,)`.

    Args:
        column: `(batch,)`, an array or a list. `None` stands for a missing value; where a scorer may return `None`
            itself, `SparseNonTensor.present(key)` tells the two apart.
    """
    if isinstance(column, np.ndarray) and column.dtype != object:
        return np.ones(len(column), dtype=bool)
    return np.fromiter((value is not None for value in column), dtype=bool, count=len(column))


def numeric(column: Any, name: str = "") -> tuple[np.ndarray, np.ndarray]:
    """The numbers of an aligned column, for metric code that otherwise meets object dtype.

    Args:
        column: `(batch,)`: an array as `finalize` makes it, or a list. Bools count as numbers.
        name: of the column, for the error.

    Returns:
        `values`, float64 `(batch,)`, NaN where a value is missing, and `mask`, bool `(batch,)`: which rows have one.

    Raises:
        NotNumericError: a value is text, a list, or anything else that is no real number; names the row.

    >>> values, mask = numeric(np.array([None, 1, True], dtype=object))
    >>> values.tolist(), mask.tolist()
    ([nan, 1.0, 1.0], [False, True, True])
    """
    if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "biuf":
        return column.astype(np.float64), np.ones(len(column), dtype=bool)
    mask = present(column)
    values = np.full(len(mask), np.nan)
    found = [value for value in column if value is not None]
    if not set(map(type, found)) <= {bool, int, float}:  # what `finalize` leaves, but for what is no number
        found = [_number(value, row, name) for row, value in enumerate(column) if value is not None]
    values[mask] = found
    return values, mask


def _number(value: Any, row: int, name: str) -> float:
    if (isinstance(value, np.ndarray) and value.ndim == 0) or (is_tensor(type(value)) and value.ndim == 0):
        value = value.item()
    if not isinstance(value, numbers.Real | np.bool_):
        column = f"the column {shown(name)}" if name else "the column"
        raise NotNumericError(f"row {row} of {column} is a {type(value).__name__} ({shown(value)}), not a number")
    return float(value)


@dataclass(frozen=True)
class Summary:
    """What is known of one key's numbers in some samples; adding two gives that of both.

    Attributes:
        rows: the number of samples, with the key or without it.
        count: of those that have it.
        mean: of their values; it and the others mean nothing where `count` is 0.
        deviations: the sum of their squared deviations from it.
        low: the smallest of them; infinite, as `high`, for a text key, which has no values to average.
        high: the largest.
        share: whether this is the share of one text among the values of a key, and its mean all that is logged.
    """

    rows: int
    count: int = 0
    mean: float = 0.0
    deviations: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    share: bool = False

    @classmethod
    def of(cls, values: np.ndarray, rows: int) -> Summary:
        """Of the values that are there, float64 `(count,)`, in a batch of `rows` samples."""
        if not len(values):
            return cls(rows)
        with np.errstate(invalid="ignore", over="ignore"):
            mean = values.mean()
            deviations = np.square(values - mean).sum()
        return cls(rows, len(values), float(mean), float(deviations), float(values.min()), float(values.max()))

    def __add__(self, other: Summary) -> Summary:
        rows, count = self.rows + other.rows, self.count + other.count
        if not self.count or not other.count:
            one = self if self.count else other
            return replace(one, rows=rows)
        apart = other.mean - self.mean
        return Summary(
            rows,
            count,
            self.mean + apart * other.count / count,
            self.deviations + other.deviations + apart**2 * self.count * other.count / count,
            float(np.minimum(self.low, other.low)),  # NaN stays NaN
            float(np.maximum(self.high, other.high)),
            self.share,
        )

    def metrics(self, name: str) -> dict[str, float]:
        """As they are logged: no mean where there is nothing to average."""
        if self.share:
            return {name: self.mean}
        counts = {f"{name}/count": float(self.count), f"{name}/coverage": self.count / self.rows if self.rows else 0.0}
        if not self.count or self.low > self.high:
            return counts
        moments = {"mean": self.mean, "std": math.sqrt(self.deviations / self.count), "min": self.low, "max": self.high}
        return {**{f"{name}/{moment}": value for moment, value in moments.items()}, **counts}


def logged(summaries: Mapping[str, Summary]) -> dict[str, float]:
    """The metrics of summaries, by name."""
    return {metric: value for name, summary in summaries.items() for metric, value in summary.metrics(name).items()}


@dataclass
class RewardMetrics:
    """The metrics of one run's reward keys, step by step: a series that has begun has no holes.

    Attributes:
        which: `sparse`: keys that some sample of the run has lacked; `all`; or `off`.
        texts: keys whose values are text, and of which the shares of the commonest values are wanted.
        nan_is_missing: whether NaN counts as a missing value.
        warn: called with what a warning is about, and the warning; once for each is enough.
        last: the summaries of the last step, by name.
    """

    which: str = "sparse"
    texts: Sequence[str] = ()
    nan_is_missing: bool = False
    warn: Callable[[object, str], None] = lambda what, message: None
    last: dict[str, Summary] = field(default_factory=dict)
    _rows: int = 0
    _keys: dict[str, bool] = field(default_factory=dict)
    _sources: dict[str, None] = field(default_factory=dict)
    _values: dict[str, dict[str, None]] = field(default_factory=dict)

    def step(self, columns: Mapping[str, Any], sources: Sequence[Any] | None, rows: int) -> dict[str, float]:
        """The metrics of one step.

        Args:
            columns: by reward key, the aligned column of the samples that were trained on, `(rows,)`.
            sources: their data sources, `(rows,)`, or `None` where no column says it.
            rows: their number.

        Returns:
            By name, `reward_extra/<key>/mean` and so on, and with more than one data source in the run the same under
            `reward_extra/<data source>/<key>/...`.
        """
        if self.which == "off":
            return {}
        labels = np.array([""] * rows if sources is None else [str(source) for source in sources], dtype=object)
        self._sources.update(dict.fromkeys(labels.tolist() if sources is not None else ()))
        nothing = np.full(rows, None, dtype=object)
        found = {}
        for key in dict.fromkeys([*self._keys, *columns]):
            numbers_found = None if key in self.texts else self._numbers(key, columns.get(key, nothing), labels)
            if numbers_found is not None and (key in self._keys or numbers_found[1].any()):
                found[key] = numbers_found
                lacked = not numbers_found[1].all() or (key not in self._keys and self._rows > 0)
                self._keys[key] = self._keys.get(key, False) or lacked
        self._rows += rows
        places = {"": np.ones(rows, dtype=bool)}
        if len(self._sources) > 1:
            places.update({f"{source}/": labels == source for source in self._sources})
        self.last = {}
        for key, (values, mask) in found.items():
            if self.which == "all" or self._keys[key]:
                for place, here in places.items():
                    self._add(f"{PREFIX}/{place}{key}", Summary.of(values[mask & here], int(here.sum())))
        for key in self.texts:
            for place, here in places.items():
                self._shares(f"{PREFIX}/{place}{key}", key, columns.get(key, nothing), here)
        return logged(self.last)

    def _add(self, name: str, summary: Summary) -> None:
        if name in self.last:
            self.warn(("name", name), f"two reward keys would be logged as {shown(name)}: the second is left out")
        self.last.setdefault(name, summary)

    def _numbers(self, key: str, column: Any, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        try:
            values, mask = numeric(column, key)
        except NotNumericError as error:
            if key in self._keys:
                self.warn(
                    ("kind", key), f"no metrics for the reward key {shown(key)} any more, a number before: {error}"
                )
            return None
        odd = mask & ~np.isfinite(values)
        if odd.any():
            row = int(np.argmax(odd))
            source = f" of data source {shown(labels[row])}" if labels[row] else ""
            what = "missing" if self.nan_is_missing and np.isnan(values[row]) else "a value, which the means show"
            self.warn(
                ("nan", key), f"the reward key {shown(key)} is {values[row]} for a sample{source}; it counts as {what}"
            )
        return values, mask & ~np.isnan(values) if self.nan_is_missing else mask

    def _shares(self, name: str, key: str, column: Any, here: np.ndarray) -> None:
        """The shares of a text key's commonest values, of the samples that have the key."""
        texts = [
            value for value, counts in zip(column, here.tolist(), strict=True) if counts and isinstance(value, str)
        ]
        counts: dict[str, int] = {}
        for text in texts:
            counts[text] = counts.get(text, 0) + 1
        known = self._values.setdefault(key, {})
        for text in sorted(counts, key=lambda text: -counts[text])[: _MOST_TEXTS - len(known)]:
            known.setdefault(text)
        self._add(name, Summary(int(here.sum()), len(texts)))
        shares: dict[str, int] = {}
        for text in known:
            shares[_label(text)] = shares.get(_label(text), 0) + counts.get(text, 0)
        if len(known) == _MOST_TEXTS:
            shares["(other)"] = len(texts) - sum(shares.values())
        for label, count in shares.items():
            mean = count / len(texts) if texts else 0.0
            self._add(f"{name}/share/{label}", Summary(len(texts), len(texts), mean, share=True))


def _label(text: str) -> str:
    """A value as it may stand in a metric's name: text that a model wrote is data."""
    return shown(text)[1:-1][:_LONGEST_TEXT].replace("/", "_")


def merged(steps: Iterable[Mapping[str, Summary]]) -> dict[str, Summary]:
    """The summaries of several steps as one: counts add up, and means weigh by them."""
    total: dict[str, Summary] = {}
    for step in steps:
        for name, summary in step.items():
            total[name] = total[name] + summary if name in total else summary
    return total
