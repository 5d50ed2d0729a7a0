"""Assembly of rows into columns: time per value, and memory."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from inputs import (
    FRAMES,
    SHORT_SCHEMAS,
    Columns,
    Rows,
    assert_same,
    floor,
    from_json,
    from_pickle,
    make_rows,
    make_short_rows,
    pure,
    stock,
    union,
)

from verl_ext import assemble_reward_extra_info as assemble
from verl_ext import core

SMALL, LARGE, LARGEST = 16_384, 262_144, 1_000_000
ROUNDS, FEW_ROUNDS = 5, 2
NUMBERS, TEXT = "<= 0.3", "<= 0.6"
"""The targets beside stock's loop: where most values are numbers or stay objects; where text has to be written."""

# rows, schemas, keys, values, a tenth missing: a part of the whole product, in which one thing at a time changes
MIXED = [
    *((rows, 4, 12, values, False) for rows in (1024, SMALL) for values in ("numbers", "text", "mixed")),
    (LARGE, 4, 12, "numbers", False),
    (LARGE, 4, 12, "mixed", False),
    (SMALL, 4, 3, "mixed", False),
    (SMALL, 4, 64, "mixed", False),
    (SMALL, 4, 12, "numbers", True),
    (SMALL, 4, 12, "text", True),
    (SMALL, 4, 12, "mixed", True),
]
UNIFORM = [
    *((SMALL, 12, values) for values in ("numbers", "text", "mixed")),
    (LARGE, 12, "numbers"),
    (LARGE, 12, "mixed"),
    (SMALL, 3, "mixed"),
    (SMALL, 64, "mixed"),
]


def label(rows: int, schemas: int, keys: int, values: str, missing: bool = False) -> str:
    count = "schemas = rows" if schemas == rows else f"{schemas} schema(s)"
    return f"{rows:,} rows, {count}, {keys} keys, {values}{', a tenth missing' if missing else ''}"


def frames_that_give(expected: Columns, rows: Rows) -> dict[str, Callable[[], Columns]]:
    """The data frames by name, once it is known that each gives these columns of the rows."""
    for frame in FRAMES.values():
        assert_same(frame(rows), expected)
    return {name: partial(frame, rows) for name, frame in FRAMES.items()}


class Measured:
    """Ours, with and without the core, beside its peers on the same rows, and beside stock's loop on uniform ones."""

    def __init__(self, where: str, rows: Rows, uniform: Rows, times: Any, table: Any, frames: bool = True) -> None:
        expected = union(rows)
        assert_same(assemble(rows), expected)
        assert_same(pure(rows), expected)
        assert_same(assemble(uniform), stock(uniform))
        peers: dict[str, Callable[[], Any]] = frames_that_give(expected, rows) if frames else {}
        del expected
        peers |= {"union": partial(union, rows), "stock": partial(stock, uniform), "pure": partial(pure, rows)}
        rounds = ROUNDS if len(rows) <= SMALL else FEW_ROUNDS
        took = times(partial(assemble, rows), rounds=rounds, **peers)
        values, theirs = sum(map(len, rows)), sum(map(len, uniform))
        self.where, self.table = where, table
        self.took = {who: 1e9 * took[who] / (theirs if who == "stock" else values) for who in took}
        for who, nanoseconds in self.took.items():
            table.time(where, len(rows), who, nanoseconds)

    def beside(self, figure: str, who: str, target: str = "", speed: bool = False, name: str = "") -> None:
        """A line of the table: how much less time ours takes than a peer (`speed`), or which part of the peer's."""
        ours, peer = self.took["ours"], self.took[who]
        told = f"{name} {peer:.0f} ns/value".strip()
        ratio = peer / ours if speed else ours / peer
        without = f"{self.took['pure']:.0f} ns/value" if core.COMPILED else ""
        self.table.add(figure, self.where, f"{ours:.0f} ns/value", told, ratio, target, without)

    def beside_the_fastest_frame(self, target: str = "") -> None:
        best = min(FRAMES, key=self.took.__getitem__)
        self.beside("speed, x data frame", best, target, speed=True, name=best)

    def beside_stock(self, target: str = "") -> None:
        self.beside("time per value / stock's, uniform", "stock", target)


@pytest.mark.parametrize("case", MIXED, ids=lambda case: label(*case))
def bench_mixed_schemas(case, times, table):
    measured = Measured(label(*case), make_rows(*case), make_rows(case[0], 1, *case[2:4]), times, table)
    counts = case[0] >= SMALL
    measured.beside("speed, x union", "union", speed=True)
    measured.beside_the_fastest_frame(">= 5" if counts else "")
    measured.beside_stock(NUMBERS if counts else "")


def bench_short_rows(times, table):
    """As most people's rows are: 1, 3, 8 or 3 keys."""
    rows, uniform = make_short_rows(SMALL), make_short_rows(SMALL, SHORT_SCHEMAS[1:2])
    measured = Measured(f"{SMALL:,} short rows, 4 schemas of 1, 3, 8 and 3 keys", rows, uniform, times, table)
    measured.beside("speed, x union", "union", speed=True)
    measured.beside_the_fastest_frame(">= 5")
    measured.beside_stock(NUMBERS)


@pytest.mark.parametrize("schemas", [1, 4])
@pytest.mark.parametrize(
    ("origin", "words", "target"),
    [
        (from_pickle, "from pickle, 64 rows at a time", NUMBERS),
        (from_json, "from JSON, key strings of their own", TEXT),
    ],
    ids=["pickle", "json"],
)
def bench_where_keys_come_from(origin, words, target, schemas, times, table):
    rows, uniform = origin(make_rows(SMALL, schemas, 12)), origin(make_rows(SMALL, 1, 12))
    where = f"{label(SMALL, schemas, 12, 'mixed')}, {words}"
    Measured(where, rows, uniform, times, table, frames=False).beside_stock(target)


def bench_many_schemas(times, table):
    rows, few = make_rows(SMALL, 64, 12), make_rows(SMALL, 4, 12)
    assert_same(assemble(rows), union(rows))
    took = times(partial(assemble, rows), few=partial(assemble, few), pure=partial(pure, rows))
    per_value = {who: 1e9 * took[who] / sum(map(len, few if who == "few" else rows)) for who in took}
    told = {who: f"{nanoseconds:.0f} ns/value" for who, nanoseconds in per_value.items()}
    table.add(
        "time per value / of 4 schemas",
        label(SMALL, 64, 12, "mixed"),
        told["ours"],
        told["few"],
        per_value["ours"] / per_value["few"],
        "<= 1.5",
        told["pure"] if core.COMPILED else "",
    )


@pytest.mark.parametrize("values", ["numbers", "text"])
def bench_as_many_schemas_as_rows(values, times, table):
    rows = make_rows(SMALL, SMALL, 64, values)
    assert len(set(map(tuple, rows))) > 0.99 * len(rows)
    uniform = make_rows(SMALL, 1, 64, values)
    measured = Measured(label(SMALL, SMALL, 64, values), rows, uniform, times, table, frames=False)
    measured.beside("time / union", "union", "<= 0.3")


@pytest.mark.parametrize("values", ["numbers", "mixed"])
def bench_flat_from_16384_to_a_million_rows(values, times, table):
    few, many = make_rows(SMALL, 4, 12, values), make_rows(LARGEST, 4, 12, values)
    measured = Measured(label(LARGEST, 4, 12, values), many, make_rows(SMALL, 1, 12, values), times, table)
    best = min(_seconds(partial(assemble, few)) for _ in range(20))
    measured.took["few"] = 1e9 * best / sum(map(len, few))
    measured.beside("time per value / 16,384 rows", "few", "<= 1.6")
    measured.beside("speed, x union", "union", speed=True)
    measured.beside_the_fastest_frame(">= 5")


def _seconds(function: Callable[[], Any]) -> float:
    start = perf_counter()
    result = function()
    took = perf_counter() - start
    del result
    return took


@pytest.mark.parametrize("case", UNIFORM, ids=lambda case: label(case[0], 1, *case[1:]))
def bench_uniform(case, times, table):
    rows = make_rows(case[0], 1, *case[1:])
    measured = Measured(label(case[0], 1, *case[1:]), rows, rows, times, table)
    measured.beside("time / stock", "stock", TEXT if case[2] == "text" else NUMBERS)
    measured.beside_the_fastest_frame(">= 2.5")
    least = min(_seconds(partial(floor, rows)) for _ in range(ROUNDS if len(rows) <= SMALL else FEW_ROUNDS))
    measured.took["floor"] = 1e9 * least / sum(map(len, rows))
    measured.beside("time / floor", "floor")


MEMORY = ("numbers", "mixed", "lengths", "long", "outlier", "letters")


@pytest.mark.parametrize("schemas", [1, 4])
@pytest.mark.parametrize("values", MEMORY)
def bench_memory(values, schemas, table):
    gc.collect()
    command = [sys.executable, Path(__file__).with_name("memory.py"), values, str(schemas)]
    measured = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    for way in ("tracemalloc", "resident"):
        peak, returned = measured[way], measured["returned"]
        table.add(
            f"peak memory / returned ({way})",
            f"{measured['rows']:,} rows, {schemas} schema(s), 3 keys, {values}",
            f"{peak / 2**20:.1f} MiB",
            f"{returned / 2**20:.1f} MiB",
            peak / returned,
            "<= 1.5",
        )
