"""The rows that are measured, and the peers that align the same rows into the same columns.

Each row is a fresh dict with value objects of its own, as rows are that came from a worker.
"""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from verl_ext import assemble_reward_extra_info, core

Rows = list[dict[str, Any]]
Columns = dict[str, np.ndarray]


def make_rows(
    rows: int, schemas: int = 4, keys: int = 12, values: str = "mixed", missing: bool = False, seed: int = 0
) -> Rows:
    """Rows of `schemas` schemas of `keys` keys, drawn at random.

    The schemas share a third of their keys, as data sources share `score` and `acc`; the others are their own. Where
    values are `missing`, all have the same keys, and each lacks a tenth of them. As many schemas as rows: one set of
    keys, of which each row lacks a tenth of its own.
    """
    draw = random.Random(seed)  # noqa: S311
    value = {"numbers": _number, "text": _text, "mixed": _mixed}[values]
    lacking = max(1, keys // 10)
    names = [f"key_{number}" for number in range(keys)]
    if schemas == rows:
        kept = [sorted(draw.sample(range(keys), keys - lacking)) for _ in range(rows)]
        return [{names[number]: value(draw, number) for number in numbers} for numbers in kept]
    shared = keys if schemas == 1 else max(1, keys // 3)
    variants = []
    for schema in range(schemas):
        if missing:
            first = schema * lacking % keys
            lost = {(first + step) % keys for step in range(lacking)} if schemas > 1 else set()
            variants.append([(number, names[number]) for number in range(keys) if number not in lost])
        else:
            variants.append([(n, names[n] if n < shared else f"source_{schema}/{n}") for n in range(keys)])
    return [{name: value(draw, number) for number, name in draw.choice(variants)} for _ in range(rows)]


SHORT_SCHEMAS = (
    ("score",),
    ("score", "acc", "pred"),
    ("score", "acc", "pred", "format", "length", "penalty", "feedback", "judge"),
    ("score", "steps", "feedback"),
)


def make_short_rows(rows: int, schemas: Sequence[Sequence[str]] = SHORT_SCHEMAS, seed: int = 0) -> Rows:
    """Rows of four schemas of 1, 3, 8 and 3 keys, as most people's are: numbers, bools, short and longer text."""
    draw = random.Random(seed)  # noqa: S311
    values: dict[str, Callable[[], Any]] = {
        **dict.fromkeys(("score", "penalty"), draw.random),
        **dict.fromkeys(("acc", "format"), lambda: draw.random() < 0.5),
        **dict.fromkeys(("length", "steps"), lambda: int(draw.random() * 10**6)),
        **dict.fromkeys(("pred", "judge"), lambda: f"{draw.getrandbits(40):x}"),
        "feedback": lambda: f"{draw.getrandbits(40):x} " * draw.randrange(2, 6),
    }
    return [{key: values[key]() for key in draw.choice(schemas)} for _ in range(rows)]


def from_pickle(rows: Rows) -> Rows:
    """As they come from workers: each 64 rows share key strings, which the next have of their own."""
    chunks = [pickle.dumps(rows[start : start + 64]) for start in range(0, len(rows), 64)]
    return [row for chunk in chunks for row in pickle.loads(chunk)]  # noqa: S301


def from_json(rows: Rows) -> Rows:
    """As they come from a file of JSON lines: each row has key strings of its own."""
    return [json.loads(json.dumps(row)) for row in rows]


def _number(draw: random.Random, number: int) -> Any:
    return (draw.random(), int(draw.random() * 10**6), draw.random() < 0.5)[number % 3]


def _text(draw: random.Random, number: int) -> str:
    return f"{draw.getrandbits(40):x}"[number % 4 :]


def _mixed(draw: random.Random, number: int) -> Any:
    return _text(draw, number) if number % 2 else _number(draw, number // 2)


# --- ours --------------------------------------------------------------------------------------------------------


def pure(rows: Rows) -> Columns:
    """Ours without the compiled core."""
    compiled, core.COMPILED = core.COMPILED, False
    try:
        return assemble_reward_extra_info(rows)
    finally:
        core.COMPILED = compiled


# --- peers -------------------------------------------------------------------------------------------------------


def union(rows: Rows) -> Columns:
    """The straightforward union: for each key, a list with `.get`, then `np.array`."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return {key: np.array([row.get(key) for row in rows]) for key in keys}


def stock(rows: Rows) -> Columns:
    """As in verl's `RewardLoopManager.compute_rm_score`, which knows the keys of row 0 only."""
    return {key: np.array([row[key] for row in rows]) for key in rows[0]}


def floor(rows: Rows) -> list[np.ndarray]:
    """One dictionary look-up and one pointer per value, of rows that all have the same keys."""
    return [np.fromiter([row[key] for row in rows], object, len(rows)) for key in rows[0]]


def with_pandas(rows: Rows) -> Columns:
    """`pandas.DataFrame` of the rows, its columns as arrays."""
    import pandas

    frame = pandas.DataFrame(rows)
    return {key: frame[key].to_numpy() for key in frame}


def with_pyarrow(rows: Rows) -> Columns:
    """`pyarrow.array` of the rows (`Table.from_pylist` looks at the keys of row 0 only), its fields as arrays."""
    import pyarrow

    structs = pyarrow.array(rows)
    return {
        field.name: column.to_numpy(zero_copy_only=False)
        for field, column in zip(structs.type, structs.flatten(), strict=True)
    }


def with_polars(rows: Rows) -> Columns:
    """`polars.from_dicts` with a look at every row, its columns as arrays."""
    import polars

    frame = polars.from_dicts(rows, infer_schema_length=None)
    return {key: frame[key].to_numpy() for key in frame.columns}


FRAMES: dict[str, Callable[[Rows], Columns]] = {
    "pandas": with_pandas,
    "pyarrow": with_pyarrow,
    "polars": with_polars,
}


def assert_same(one: Columns, other: Columns) -> None:
    """The same values under the same keys; a data frame writes a missing number as NaN."""
    assert sorted(one) == sorted(other)
    for key in one:
        assert _values(one[key]) == _values(other[key]), key


def _values(column: np.ndarray) -> Sequence[Any]:
    return [None if value != value else value for value in column.tolist()]
