"""Metrics of reward keys over a run: how many samples have a key, and what its values are, by data source too.

Works on aligned columns; where they come from, and who logs what comes out, is the plugin's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from verl_ext.errors import NotNumericError, shown
from verl_ext.names import Names, fitting
from verl_ext.schema import is_real, is_tensor

PREFIX = "reward_extra"
_MOST_TEXTS = 16
_LONGEST_TEXT, _LONGEST_PART = 40, 80  # of a text value, and of a key or a data source, in a metric's name
_OTHER = "(other)"
_COUNTED = ("mean", "std", "min", "max", "count", "coverage")  # what the names of a key's metrics end in


def present(column: Any) -> np.ndarray:
    """Which rows of an aligned column have a value: bool `(batch,)`.

    Args:
        column: `(batch,)`, an array or a list. `None` stands for a missing value; where a scorer may return `None`
            itself, `SparseNonTensor.present(key)` tells the two apart.

    Raises:
        NotNumericError: `column` is one value, or an iterator.
    """
    try:
        rows = len(column)
    except TypeError as error:
        raise NotNumericError(f"{shown(column)} is no column, which is an array or a list, a value per row") from error
    if isinstance(column, np.ndarray) and column.dtype != object:
        return np.ones(rows, dtype=bool)
    return np.fromiter((value is not None for value in column), dtype=bool, count=rows)


def numeric(column: Any, name: str = "") -> tuple[np.ndarray, np.ndarray]:
    """The numbers of an aligned column, for metric code that otherwise meets object dtype.

    Args:
        column: `(batch,)`: an array as `finalize` makes it, or a list. Bools count as numbers.
        name: of the column, for the error.

    Returns:
        `values`, float64 `(batch,)`, NaN where a value is missing, and `mask`, bool `(batch,)`: which rows have one.

    Raises:
        NotNumericError: a value is text, a list, or anything else that is no real number (names the row); or `column`
            is one value, or an iterator.

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
    try:
        values[mask] = found
    except OverflowError:  # an integer beyond float64
        values[mask] = [_float(value) for value in found]
    return values, mask


def _number(value: Any, row: int, name: str) -> float:
    if not _is_number(value):
        column = f"the column {shown(name)}" if name else "the column"
        raise NotNumericError(f"row {row} of {column} is a {type(value).__name__} ({shown(value)}), not a number")
    return _float(value)


def _is_number(value: Any) -> bool:
    return is_real(scalar(value))


def scalar(value: Any) -> Any:
    """A 0-d array or tensor as the Python value that it holds; anything else as it is."""
    if not ((isinstance(value, np.ndarray) or is_tensor(type(value))) and value.ndim == 0):
        return value
    try:
        return value.item()
    except (RuntimeError, NotImplementedError):  # a tensor on the meta device holds none
        return value


def _float(value: Any) -> float:
    try:
        return float(scalar(value))
    except OverflowError:
        return math.inf if value > 0 else -math.inf


@dataclass(frozen=True)
class Summary:
    """What is known of one key's values in some samples; adding two gives that of both.

    Attributes:
        rows: the number of samples, with the key or without it.
        count: of those that have it.
        mean: of their values; it and the others mean nothing where `count` is 0.
        std: their standard deviation.
        low: the smallest of them; above `high` for a text key, which has no values to average.
        high: the largest.
        texts: of a text key, how many samples have each of its commonest values.
    """

    rows: int
    count: int = 0
    mean: float = 0.0
    std: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    texts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, values: np.ndarray, rows: int) -> Summary:
        """Of the values that are there, float64 `(count,)`, in a batch of `rows` samples.

        As large as a float64 can be: neither their sum nor a square needs to be one.
        """
        if not len(values):
            return cls(rows)
        low, high = values.min(), values.max()
        _, exponent = math.frexp(np.maximum(-low, high))
        scaled = np.ldexp(values, -exponent)
        with np.errstate(invalid="ignore"):
            mean, std = np.ldexp([scaled.mean(), scaled.std()], exponent)
        return cls(rows, len(values), float(mean), float(std), float(low), float(high))

    def __add__(self, other: Summary) -> Summary:
        rows, count = self.rows + other.rows, self.count + other.count
        texts = {text: self.texts.get(text, 0) + other.texts.get(text, 0) for text in {**self.texts, **other.texts}}
        if not self.count or not other.count:
            return replace(self if self.count else other, rows=rows, texts=texts)
        mean, std = self.mean + other.mean, math.nan  # where one of them is no finite number
        apart = other.mean / 2 - self.mean / 2  # by halves: the whole of it may be too large for a float
        if math.isfinite(apart):
            mine, others = self.count / count, other.count / count
            mean = self.mean + apart * others + apart * others
            between = apart * (2 * math.sqrt(mine * others))
            std = math.hypot(self.std * math.sqrt(mine), other.std * math.sqrt(others), between)
        return Summary(
            rows,
            count,
            mean,
            std,
            float(np.minimum(self.low, other.low)),  # NaN stays NaN
            float(np.maximum(self.high, other.high)),
            texts,
        )

    @property
    def moments(self) -> dict[str, float]:
        """Mean, standard deviation and range of the values; there must be some."""
        return {"mean": self.mean, "std": self.std, "min": self.low, "max": self.high}

    def metrics(self, name: str) -> dict[str, float]:
        """As they are logged: no mean and no shares where there is nothing to average."""
        counts = {f"{name}/count": float(self.count), f"{name}/coverage": self.count / self.rows if self.rows else 0.0}
        if not self.count:
            return counts
        if self.low > self.high:
            return counts | {f"{name}/share/{text}": count / self.count for text, count in self.texts.items()}
        return {**{f"{name}/{moment}": value for moment, value in self.moments.items()}, **counts}


Place: TypeAlias = str | None
"""A data source, or `None` for all of them."""


@dataclass(frozen=True)
class Step:
    """The reward keys of the samples of one step, whether they are logged or not; adding two gives those of both.

    Attributes:
        rows: by place, the number of samples.
        summaries: by place and key; a place without the key has none.
    """

    rows: Mapping[Place, int] = field(default_factory=dict)
    summaries: Mapping[tuple[Place, str], Summary] = field(default_factory=dict)

    def summary(self, place: Place, key: str) -> Summary:
        """Of one key in one place, which may lack it."""
        return self.summaries.get((place, key)) or Summary(self.rows.get(place, 0))

    def __add__(self, other: Step) -> Step:
        rows = {place: self.rows.get(place, 0) + other.rows.get(place, 0) for place in {**self.rows, **other.rows}}
        series = {**self.summaries, **other.summaries}
        return Step(rows, {one: self.summary(*one) + other.summary(*one) for one in series})


@dataclass
class RewardMetrics:
    """The metrics of one run's reward keys, step by step: a series that has begun has no holes.

    Attributes:
        which: `sparse`: keys that some sample of the run has lacked; `all`; or `off`.
        texts: keys whose values are text, and of which the shares of the commonest values are wanted.
        nan_is_missing: whether NaN counts as a missing value.
        abstained: the reward key that says why a sample has no score; `None` in a run where none may lack it.
        warn: called with what a warning is about, and the warning; once for each is enough.
    """

    which: str = "sparse"
    texts: Sequence[str] = ()
    nan_is_missing: bool = False
    abstained: str | None = None
    warn: Callable[[object, str], None] = lambda what, message: None
    _last: Step | None = None
    _rows: int = 0
    _have_abstained: bool = False
    _lacked: dict[str, bool] = field(default_factory=dict)
    _are_numbers: set[str] = field(default_factory=set)
    _sources: dict[str, None] = field(default_factory=dict)
    _names: Names[tuple[Place, str]] = field(default_factory=Names)
    _labels: dict[str, Names[str]] = field(default_factory=dict)

    def step(self, columns: Mapping[str, Any], sources: Sequence[Any] | None, rows: int) -> dict[str, float]:
        """The metrics of one step.

        Args:
            columns: by reward key, the aligned column of the samples that were trained on, `(rows,)`.
            sources: their data sources, `(rows,)`, or `None` where no column says it.
            rows: their number.

        Returns:
            By name, `reward_extra/<key>/mean` and so on, and with more than one data source in the run the same under
            `reward_extra/<data source>/<key>/...`. Of samples that have abstained their count and their share.
        """
        whys = columns.get(self.abstained, ()) if self.abstained is not None else ()
        missing = np.array([bool(why) for why in whys] or np.zeros(rows), dtype=bool)
        if 2 * missing.sum() > rows:
            self.warn(
                "unscored",
                f"{missing.sum()} of the {rows} samples of a step have no score, and train nothing: an outage?",
            )
        if self.which == "off":
            return {}
        columns = {key: column for key, column in columns.items() if key != self.abstained}
        by_source: dict[str, list[int]] = {}
        for row, source in enumerate(() if sources is None else sources):
            by_source.setdefault(str(source), []).append(row)
        self._sources.update(dict.fromkeys(by_source))
        places: dict[Place, Any] = {None: np.arange(rows), **{place: np.array(at) for place, at in by_source.items()}}
        summaries: dict[tuple[Place, str], Summary] = {}
        counts: dict[str, int] = {}
        for key, column in columns.items():
            if key in self.texts:
                if not any(isinstance(value, str) for value in column) and present(column).any():
                    self.warn(
                        ("text", key), f"text_metrics names {shown(key)}, whose values are no text: only text counts"
                    )
                summaries.update({(place, key): self._shares(key, column, at) for place, at in places.items()})
            elif (found := self._numbers(key, column, sources)) is None:
                counts[key] = int(present(column).sum())
            else:
                values, mask, counts[key] = found
                if mask.any():
                    self._are_numbers.add(key)
                whole = Summary.of(values[mask], rows)
                for place, at in places.items():
                    alone = len(at) == rows
                    summaries[place, key] = whole if alone else Summary.of(values[at][mask[at]], len(at))
        self._remember(counts, rows)
        if self.abstained is not None and missing.any() | self._have_abstained:
            self._have_abstained = True
            summaries.update(
                {(place, self.abstained): Summary(len(at), int(missing[at].sum())) for place, at in places.items()}
            )
        self._last = Step({place: len(at) for place, at in places.items()}, summaries)
        return self.logged(self._last)

    def _remember(self, counts: Mapping[str, int], rows: int) -> None:
        """Which keys a sample has lacked, by how many samples of the step have them."""
        for key in {**self._lacked, **counts}:
            count = counts.get(key, 0)
            if key in self._lacked or count:
                late = key not in self._lacked and self._rows > 0
                self._lacked[key] = self._lacked.get(key, False) or late or count < rows
        self._rows += rows

    def take(self) -> Step | None:
        """The last step, which is nobody else's then; `None` if it is taken, or if nothing is logged."""
        last, self._last = self._last, None
        return last

    def logged(self, step: Step) -> dict[str, float]:
        """The metrics of one step, or of several together, by name: of every series that the run has begun."""
        numbers = [key for key in self._lacked if self._is_logged(key)]
        places = [None, *(self._sources if len(self._sources) > 1 else ())]
        metrics: dict[str, float] = {}
        for key in [*numbers, *dict.fromkeys(self.texts)]:
            for place in places:
                metrics.update(step.summary(place, key).metrics(self._name(place, key)))
        if self.abstained is not None and self._have_abstained:
            for place in places:
                unscored, name = step.summary(place, self.abstained), self._name(place, self.abstained)
                metrics[f"{name}/count"] = float(unscored.count)
                metrics[f"{name}/share"] = unscored.count / unscored.rows if unscored.rows else 0.0
        return metrics

    def _is_logged(self, key: str) -> bool:
        return key in self._are_numbers and (self._lacked[key] or self.which == "all")

    def _name(self, place: Place, key: str) -> str:
        parts = (key,) if place is None else (place, key)
        wanted = "/".join([PREFIX, *(fitting(str(part), _LONGEST_PART) for part in parts)])
        return self._names.of((place, key), wanted)

    def _numbers(
        self, key: str, column: Any, sources: Sequence[Any] | None
    ) -> tuple[np.ndarray, np.ndarray, int] | None:
        """As `numeric`, and how many samples have the key; or `None` for a key that is no number.

        Warns of what would surprise in a chart.
        """
        others = 0
        try:
            values, mask = numeric(column, key)
        except NotNumericError as error:
            if key not in self._are_numbers:
                return None
            if self._is_logged(key):
                self.warn(
                    ("kind", key),
                    f"the reward key {shown(key)}, a number before, is none in some samples: {error}. It counts as "
                    "missing",
                )
            values, mask = numeric([value if _is_number(value) else None for value in column])
            others = int((present(column) & ~mask).sum())
        if not np.isfinite(values[mask]).all():
            for kind, odd in (("NaN", np.isnan(values)), ("infinite", np.isinf(values))):
                if (rows := np.flatnonzero(mask & odd)).size:
                    source = "" if sources is None else f" of data source {shown(str(sources[rows[0]]))}"
                    missing = kind == "NaN" and self.nan_is_missing
                    what = "missing" if missing else "a value, which its mean shows"
                    self.warn(
                        (kind, key), f"the reward key {shown(key)} is {kind} for a sample{source}; it counts as {what}"
                    )
            if self.nan_is_missing:
                mask = mask & ~np.isnan(values)
        return values, mask, int(mask.sum()) + others

    def _shares(self, key: str, column: Any, rows: np.ndarray) -> Summary:
        """How many of these samples have the commonest values of a text key."""
        counts: dict[str, int] = {}
        for text in [column[row] for row in rows.tolist()]:
            if isinstance(text, str):
                counts[text] = counts.get(text, 0) + 1
        labels = self._labels.setdefault(key, Names(_OTHER, *_COUNTED))
        new = sorted(counts.keys() - labels.given.keys(), key=lambda text: (-counts[text], text))
        for text in new[: _MOST_TEXTS - len(labels.given)]:
            labels.of(text, fitting(text, _LONGEST_TEXT, one_part=True))
        total = sum(counts.values())
        shares = {label: counts.get(text, 0) for text, label in labels.given.items()}
        if len(shares) == _MOST_TEXTS:
            shares[_OTHER] = total - sum(shares.values())
        return Summary(len(rows), total, texts=shares)
