"""Text from dumps, which a model may have written, short enough to keep and safe to show; and numbers for people."""

from __future__ import annotations

import math
from collections.abc import Sequence

from verl_ext.errors import digest, encodable

LONGEST_KEPT = 120
"""Characters of a key or a value that are kept."""

_TAIL = 10  # what tells two cut texts apart: the digest that `kept` ends in
_MOST_RUNS = 12


def kept(text: str) -> str:
    """`text` itself if it is short and UTF-8 has it; else what can be kept, and a digest, by which two stay two."""
    short = len(text) <= LONGEST_KEPT
    if short and encodable(text):
        return text
    head = text[:LONGEST_KEPT].encode("utf-8", "backslashreplace").decode()
    return f"{head}{'' if short else f'… ({len(text):,} characters)'} #{digest(text)}"


def visible(text: str, longest: int = 60) -> str:
    """`text` on one line, without what drives a terminal or turns the direction of writing; cut in its middle."""
    text = text if len(text) <= 4 * longest else f"{text[: 2 * longest]}…{text[-2 * longest :]}"
    line = "".join(
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )
    if line != line.strip() or not line:
        line = f'"{line}"'
    return line if len(line) <= longest else f"{line[: longest - _TAIL - 1]}…{line[-_TAIL:]}"


def number(value: float, digits: int = 4) -> str:
    """With so many digits that count."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:.{digits}g}"


def share(part: int, whole: int) -> str:
    """In percent; 0 % is none, and 100 % is all."""
    percent = 100 * part / whole if whole else 0.0
    if 0 < percent < 1:
        return "<1 %"
    if 99 < percent < 100:
        return ">99 %"
    return f"{percent:.0f} %"


def counted(count: int, noun: str) -> str:
    """As `3 rows`, `1 row`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def times(text: str, count: int, at_least: bool = False) -> str:
    """A value and how many rows have it."""
    return f"{text} \N{MULTIPLICATION SIGN}{'≥' if at_least else ''}{count:,}"


def runs(labels: Sequence[tuple[str, str]], chosen: Sequence[int]) -> str:
    """The chosen of these steps as `1-3, 7`, where neighbours in the dump are one run.

    Args:
        labels: of every step, or group of steps: its first and its last.
        chosen: indices into them, ascending.
    """
    found: list[list[int]] = []
    for index in chosen:
        if found and found[-1][1] == index - 1:
            found[-1][1] = index
        else:
            found.append([index, index])
    parts = [_run(labels[first][0], labels[last][1]) for first, last in found[:_MOST_RUNS]]
    if len(found) > _MOST_RUNS:
        left = sum(last - first + 1 for first, last in found[_MOST_RUNS:])
        parts.append(f"and {left:,} more")
    return ", ".join(parts)


def _run(first: str, last: str) -> str:
    return first if first == last else f"{first}-{last}"
