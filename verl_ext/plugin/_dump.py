"""The lines of verl's JSONL dumps: which field a reward key goes to, so that none replaces or hides another.

`score` is what it is on stock verl, in each dump and row; the other of the two numbers is beside it where they differ.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

from verl_ext.column import RAW_COLUMN
from verl_ext.dump_fields import ABSTAINED, FIELDS, REWARD_SUM, SCORE, beside
from verl_ext.errors import shown
from verl_ext.plugin import _run
from verl_ext.plugin._json import JsonForm, free
from verl_ext.plugin._site import Function, warn_once
from verl_ext.plugin._trial import seeing
from verl_ext.schema import same_value

GENERATIONS = ("inputs", "outputs", "gts", "scores", "reward_extra_infos_dict", "dump_path", "global_steps")
"""The parameters of the `_write_generations` of verl's trainers."""

_SPELT = {f"{RAW_COLUMN}/{RAW_COLUMN}": RAW_COLUMN}
"""By column, the reward key that it holds where the key's own name was taken in the batch."""


class Apart(str):
    """A reward key that is spelt like a field of verl's own, and is another key in the dicts that verl merges."""

    __slots__ = ()

    @classmethod
    def of(cls, key: str) -> Apart:
        """`key`, kept apart: its characters, whatever class of text it is."""
        return cls(str.__str__(key))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Apart) and str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((Apart, str(self)))


def writing_dumpable(stock: Function, dates_as_text: bool = True) -> Function:
    """verl's `_write_generations`, such that it gets what JSON can hold, and keeps its own fields."""

    def write_generations(
        inputs: Any,
        outputs: Any,
        gts: Any,
        scores: Any,
        reward_extra_infos_dict: Any,
        dump_path: Any,
        global_steps: Any,
    ) -> Any:
        scores, infos = _without_nan(scores, reward_extra_infos_dict)
        own = _own_fields(inputs, outputs, gts, scores, global_steps)
        infos = dumpable(infos, own, dates_as_text)
        return stock(inputs, outputs, gts, scores, infos, dump_path, global_steps)

    return write_generations


def dumping_dumpable(stock: Function) -> Function:
    """The same for the `_dump_generations` of verl 0.7, which writes at once."""

    def dump_generations(
        self: Any, inputs: Any, outputs: Any, gts: Any, scores: Any, reward_extra_infos_dict: Any, dump_path: Any
    ) -> Any:
        scores, infos = _without_nan(scores, reward_extra_infos_dict)
        own = _own_fields(inputs, outputs, gts, scores, self.global_steps)
        return stock(self, inputs, outputs, gts, scores, dumpable(infos, own), dump_path)

    return dump_generations


def writes_rows_whole(write: Function) -> bool:
    """Whether verl's `_write_generations` keeps both scores, and writes to the end whatever there is."""
    file = io.StringIO()
    stand_ins = {
        "open": lambda *_, **__: nullcontext(file),
        "os": SimpleNamespace(makedirs=lambda *_, **__: None, path=os.path),
        "print": lambda *_: None,
    }
    ring: list[Any] = []
    ring.append(ring)
    infos = {SCORE: [None, 0.5], "found": [np.int64(3)] * 2, "thing": [object(), ring]}
    seeing(write, **stand_ins)(["in"] * 2, ["out"] * 2, ["gt"] * 2, [1.0, 0.25], infos, "", 1)
    without, differing = map(json.loads, file.getvalue().splitlines())
    return bool(
        without[SCORE] == 1.0
        and {0.25, 0.5} <= {value for value in differing.values() if isinstance(value, float)}
        and differing["found"] == 3
        and "thing" in differing
    )


def _without_nan(scores: Any, infos: Mapping[Any, Any]) -> tuple[Any, Mapping[Any, Any]]:
    """The scores and the reward columns of a dump, with `None` for the NaN by which a missing score travels."""
    whys = infos.get(ABSTAINED, ())
    if not (_run.current().settings.abstains and any(whys)):
        return scores, infos

    def told(values: Sequence[Any]) -> list[Any]:
        missing = (
            why and isinstance(value, float) and math.isnan(value) for value, why in zip(values, whys, strict=True)
        )
        return [None if lacks else value for value, lacks in zip(values, missing, strict=True)]

    summed = {key: told(infos[key]) for key in _SUMMED if key in infos}
    return told(scores), {**infos, **summed}


_SUMMED = ("reward",)
"""The lists beside the reward columns in which verl's validation keeps what it sums up."""


def _own_fields(inputs: Any, outputs: Any, gts: Any, scores: Any, step: Any) -> dict[str, Sequence[Any]]:
    """The fields that verl writes for each row before the reward columns."""
    return dict(zip(FIELDS, (inputs, outputs, gts, scores, [step] * len(inputs)), strict=True))


def dumpable(
    infos: Mapping[Any, Sequence[Any]], own: Mapping[str, Sequence[Any]], dates_as_text: bool = True
) -> dict[str, list[Any]]:
    """Reward columns for verl's `_write_generations`.

    Args:
        infos: by key, one value per row; `None` where a row has none.
        own: the fields that the dump writes itself. On stock verl a reward key of the same name replaces them.
        dates_as_text: as for `JsonForm`.

    Returns:
        By field, lists of what `json` writes as it is. What is odd about a key is said once.
    """
    rows = len(own["input"])
    names: set[str] = set()
    columns: dict[str, list[Any]] = {}
    added: dict[str, list[Any]] = {}
    for key, values in infos.items():
        if len(values) != rows:  # verl leaves such a column out
            continue
        apart = type(key) is Apart
        form = JsonForm(_telling(key), dates_as_text)
        name = form.name(_SPELT.get(key, key) if type(key) is str else key, () if apart else names)
        column = form.column(values)
        if not apart:
            names.add(name)
        mine = own.get(name, infos.get(name) if apart else None)
        if mine is None:
            columns[name] = column
            continue
        differ = _differ(name, column, mine)
        if name == SCORE and not apart:
            columns[name] = [field if value is None else value for value, field in zip(column, mine, strict=True)]
            name, column = REWARD_SUM, list(mine)
        else:
            name = beside(name)
        if any(differ):
            added[name] = [value if differs else None for value, differs in zip(column, differ, strict=True)]
    taken = {*own, *columns}
    return {**{free(name, taken): column for name, column in added.items()}, **columns}


def _telling(key: Any) -> Callable[[str], None]:
    told_as = key if isinstance(key, str) else shown(key)
    return lambda what: warn_once(("dump", told_as), f"dump: the reward key {shown(key)} {what}")


def _differ(name: str, column: Iterable[Any], mine: Iterable[Any]) -> list[bool]:
    """In which rows a reward key has another value than the dump's own field of its name."""
    same = _is_same_number if name == SCORE else _is_same
    return [value is not None and not same(value, field) for value, field in zip(column, mine, strict=True)]


def _is_same(value: Any, field: Any) -> bool:
    return same_value(value, JsonForm(lambda what: None).value(field))


def _is_same_number(score: Any, total: float) -> bool:
    """Whether the trainer, whose rewards are of 32 bits, sums up to a score."""
    while type(score) is list and len(score) == 1:  # an array of one element is a number to verl's managers
        (score,) = score
    try:
        number = float(score)
    except (TypeError, ValueError, OverflowError):
        return False
    with np.errstate(over="ignore"):
        return bool(np.array_equal(np.float32(number), np.float32(total), equal_nan=True))
