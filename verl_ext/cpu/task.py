"""A task that a tiny model learns in some thirty steps: three data sources, whose scorers return different keys.

Of verl: its row format, and the signature of its reward functions. The prompt shows a kind of characters; an answer is
good as far as it is made of them. A model that knows nothing writes letters as often as any other byte.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

LENGTH = 4
"""Characters that an answer should have, and tokens that it may have."""

KINDS = {"letters": string.ascii_lowercase, "digits": string.digits, "marks": string.punctuation}
"""Data sources, and the characters that each one wants."""

COMPONENTS = ("acc", "format")
"""The keys that GDPO trains on. Digits have no format."""

FILLS = {"format": 0.0}
"""What it trains with instead."""

PROMPT = 24
"""Characters of a prompt: examples of what is wanted."""

BATCH = 12
"""Rows of a batch: four of each data source."""


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, Any], **_: Any
) -> dict[str, Any]:
    """What the data source's scorer makes of an answer.

    `acc` is the share of LENGTH characters that are of the wanted kind, `format` the share that can be printed. Digits
    have no format: their scorer says None, as users do who have met stock verl's KeyError. Digits bring `pred` (text),
    marks bring `marks` (a number), and nobody else has these.
    """
    acc = sum(character in KINDS[data_source] for character in solution_str) / LENGTH
    score = {"score": acc, "acc": acc}
    printable = sum(character in string.printable for character in solution_str) / LENGTH
    if data_source == "digits":
        return {**score, "format": None, "pred": "".join(filter(str.isdigit, solution_str))}
    if data_source == "marks":
        return {**score, "format": printable, "marks": len(set(solution_str) & set(string.punctuation))}
    return {**score, "format": printable}


def rows(count: int) -> list[dict[str, Any]]:
    """Rows in verl's format, the data sources in turn."""
    return [
        {
            "data_source": source,
            "prompt": [{"role": "user", "content": (KINDS[source] * 3)[:PROMPT]}],
            "ability": "none",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": number},
        }
        for number, source in zip(range(count), cycle(KINDS))
    ]


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """The rows as a parquet file, as verl reads it."""
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)
    return path
