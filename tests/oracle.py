"""The slow, obvious model of a batch of rewards: a tuple of samples, and what each operation makes of it.

It knows nothing of arrays. What a column's dtype has to be, `slow_schema` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

RAW, ALIGNED, PLAIN = "raw", "aligned", "plain"


@dataclass(frozen=True)
class Sample:
    """One sample: its number, by which it is known again, and what its reward function returned."""

    number: int
    row: dict[str, Any] | None


@dataclass(frozen=True)
class Model:
    """A batch.

    Attributes:
        samples: in row order.
        form: its rewards are dicts, aligned columns, or not there at all.
        keys: of an aligned batch, in order.
        left: of an aligned batch, for each sample whether its dict is left behind; `None` if that column is not there.
        whole: whether the dtypes of its columns are those that these samples, and no others, ask for.
    """

    samples: tuple[Sample, ...]
    form: str
    keys: tuple[str, ...] = ()
    left: tuple[bool, ...] | None = None
    whole: bool = True

    @property
    def rows(self) -> list[dict[str, Any] | None]:
        return [sample.row for sample in self.samples]

    @property
    def numbers(self) -> list[int]:
        return [sample.number for sample in self.samples]

    def values(self, key: str) -> list[Any]:
        """One per sample; `None` where it is missing."""
        return [(row or {}).get(key) for row in self.rows]

    def picked(self, places: Sequence[int]) -> Model:
        """These of its samples, in this order, each as often as it is named."""
        return replace(
            self,
            samples=tuple(self.samples[place] for place in places),
            left=None if self.left is None else tuple(self.left[place] for place in places),
            whole=self.whole and (self.form == RAW or sorted(places) == list(range(len(self.samples)))),
        )

    def finalized(self, keep_raw: bool = True) -> Model:
        if self.form != RAW:
            return self
        left = tuple(row is not None for row in self.rows) if keep_raw else None
        return replace(self, form=ALIGNED, keys=tuple(keys_of(self.rows)), left=left)


def keys_of(rows: Iterable[dict[str, Any] | None]) -> list[str]:
    """The union of the rows' keys, in the order of their first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row or ()))


def joined(models: Sequence[Model]) -> Model:
    """One batch after the other; those without rows say nothing, unless there are no others."""
    counted = [model for model in models if model.samples] or list(models)
    samples = tuple(sample for model in counted for sample in model.samples)
    if all(model.form == RAW for model in counted):
        return Model(samples, RAW)
    counted = [model.finalized() for model in counted]
    if all(model.form == PLAIN for model in counted):
        return Model(samples, PLAIN)
    lefts = [model.left for model in counted]
    return Model(
        samples,
        ALIGNED,
        keys=tuple(dict.fromkeys(key for model in counted for key in model.keys)),
        left=None
        if all(left is None for left in lefts)
        else tuple(
            is_left
            for model, left in zip(counted, lefts, strict=True)
            for is_left in (left or [False] * len(model.samples))
        ),
        whole=all(model.whole for model in counted),
    )
