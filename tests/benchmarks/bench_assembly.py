"""Assembly of rows into columns: time per value, and memory."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from inputs import FRAMES, Columns, Rows, assert_same, floor, make_rows, stock, union

from verl_ext import assemble_reward_extra_info as assemble

SMALL, LARGE, LARGEST = 16_384, 262_144, 1_000_000
ROUNDS, FEW_ROUNDS = 5, 2

# rows, schemas, keys, values, a tenth missing: a part of the whole product, in which one thing at a time changes
MIXED = [
    *((rows, 4, 12, values, False) for rows in (1024, SMALL) for values in ("numbers", "text", "mixed")),
    (LARGE, 4, 12, "mixed", False),
    (SMALL, 4, 3, "mixed", False),
    (SMALL, 4, 64, "mixed", False),
    (SMALL, 64, 12, "mixed", False),
    (SMALL, 4, 12, "numbers", True),
    (SMALL, 4, 12, "text", True),
    (SMALL, 4, 12, "mixed", True),
]
UNIFORM = [
    *((SMALL, 12, values) for values in ("numbers", "text", "mixed")),
    (LARGE, 12, "mixed"),
    (SMALL, 3, "mixed"),
    (SMALL, 64, "mixed"),
]


def label(rows: int, schemas: int, keys: int, values: str, missing: bool = False) -> str:
    count = "schemas = rows" if schemas == rows else f"{schemas} schema(s)"
    return f"{rows:,} rows, {count}, {keys} keys, {values}{', a tenth missing' if missing else ''}"


def per_value(seconds: float, rows: list) -> str:
    return f"{1e9 * seconds / sum(map(len, rows)):.0f} ns/value"


def frames_that_give(expected: Columns, rows: Rows) -> dict[str, Callable[[], Columns]]:
    """The data frames by name, once it is known that each gives these columns of the rows."""
    for frame in FRAMES.values():
        assert_same(frame(rows), expected)
    return {name: partial(frame, rows) for name, frame in FRAMES.items()}


def add_fastest(frames: Iterable[str], took: dict[str, float], rows: Rows, table: Any, where: str, target: str) -> None:
    """Ours beside the fastest of the data frames, into the table."""
    best = min(frames, key=took.__getitem__)
    ours, peer = per_value(took["ours"], rows), f"{best} {per_value(took[best], rows)}"
    table.add("speed, x data frame", where, ours, peer, took[best] / took["ours"], target)


@pytest.mark.parametrize("case", MIXED, ids=lambda case: label(*case))
def bench_mixed_schemas(case, times, table):
    rows, uniform = make_rows(*case), make_rows(case[0], 1, *case[2:4])
    expected = union(rows)
    assert_same(assemble(rows), expected)
    assert_same(assemble(uniform), stock(uniform))
    frames = frames_that_give(expected, rows)
    del expected
    took = times(
        partial(assemble, rows),
        rounds=ROUNDS if len(rows) <= SMALL else FEW_ROUNDS,
        union=partial(union, rows),
        stock=partial(stock, uniform),
        **frames,
    )
    where, ours = label(*case), per_value(took["ours"], rows)
    targets = ("", "", "") if case[0] < SMALL or case[1] != 4 else (">= 2", ">= 1.3", "<= 1.0")
    table.add("speed, x union", where, ours, per_value(took["union"], rows), took["union"] / took["ours"], targets[0])
    add_fastest(frames, took, rows, table, where, targets[1])
    a_value, theirs = took["ours"] / sum(map(len, rows)), took["stock"] / sum(map(len, uniform))
    table.add(
        "time per value / stock's, uniform", where, ours, f"{1e9 * theirs:.0f} ns/value", a_value / theirs, targets[2]
    )


@pytest.mark.parametrize("values", ["numbers", "text"])
def bench_as_many_schemas_as_rows(values, times, table):
    rows = make_rows(SMALL, SMALL, 64, values)
    assert len(set(map(tuple, rows))) > 0.99 * len(rows)
    assert_same(assemble(rows), union(rows))
    took = times(partial(assemble, rows), union=partial(union, rows))
    ours, theirs = per_value(took["ours"], rows), per_value(took["union"], rows)
    ratio = took["ours"] / took["union"]
    table.add("time / union", label(SMALL, SMALL, 64, values), ours, theirs, ratio, "<= 1.2")


@pytest.mark.parametrize("values", ["numbers", "mixed"])
def bench_flat_from_16384_to_a_million_rows(values, times, table):
    few, many = make_rows(SMALL, 4, 12, values), make_rows(LARGEST, 4, 12, values)
    expected = union(many)
    assert_same(assemble(many), expected)
    frames = frames_that_give(expected, many)
    del expected
    took = times(
        partial(assemble, many), rounds=FEW_ROUNDS, few=partial(assemble, few), union=partial(union, many), **frames
    )
    where = label(LARGEST, 4, 12, values)
    ratio = took["ours"] * SMALL / (took["few"] * LARGEST)
    ours = per_value(took["ours"], many)
    table.add("time per value / 16,384 rows", where, ours, per_value(took["few"], few), ratio, "<= 1.3")
    table.add("speed, x union", where, ours, per_value(took["union"], many), took["union"] / took["ours"], ">= 2")
    add_fastest(frames, took, many, table, where, ">= 1.3")


@pytest.mark.parametrize("case", UNIFORM, ids=lambda case: label(case[0], 1, *case[1:]))
def bench_uniform(case, times, table):
    rows = make_rows(case[0], 1, *case[1:])
    assert_same(assemble(rows), stock(rows))
    rounds = ROUNDS if len(rows) <= SMALL else FEW_ROUNDS
    took = times(partial(assemble, rows), rounds=rounds, stock=partial(stock, rows), floor=partial(floor, rows))
    where, ours = label(case[0], 1, *case[1:]), per_value(took["ours"], rows)
    table.add("time / stock", where, ours, per_value(took["stock"], rows), took["ours"] / took["stock"], "<= 1.0")
    table.add("time / floor", where, ours, per_value(took["floor"], rows), took["ours"] / took["floor"])


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
