"""A dump in words, the same in the table and on the page."""

from __future__ import annotations

from collections.abc import Iterator

from verl_ext.report.kinds import named
from verl_ext.report.read import Faults
from verl_ext.report.summary import NO_STEP, Cell, Dump
from verl_ext.report.text import counted, number, times, visible

VALUES = "mean (min to max), or texts"
"""What `values_of` says, as a heading."""

_MOST_VALUES = 3
_LONGEST_VALUE = 24


def fault_lines(faults: Faults) -> Iterator[str]:
    """What is no row, a line each, and how much more of it there is."""
    yield from map(str, faults.first)
    if faults.count > len(faults.first):
        yield f"and {faults.count - len(faults.first):,} more"


def headline(dump: Dump) -> str:
    """The size of a dump in words."""
    spans = [span for span in dump.spans if span.last != NO_STEP]
    first, last = (spans[0].label[0], spans[-1].label[1]) if spans else ("", "")
    steps = f" ({first} to {last})" if first != last else f" ({first})" if first else ""
    size = f"{counted(dump.rows, 'row')} in {counted(dump.step_numbers, 'step')}{steps}"
    if len(spans) < len(dump.spans):
        size += f", {counted(dump.spans[0].rows, 'row')} of which say no step"
    grouped = max((span.steps for span in dump.spans), default=1)
    return size if grouped == 1 else f"{size}, {grouped} at a time"


def values_of(dump: Dump, key: str, total: Cell) -> str:
    """The mean of a key and its range, and the commonest of its texts with the rows that have them."""
    values = dump.keys[key]
    commonest = values.commonest(_MOST_VALUES)
    found = [times(visible(value, _LONGEST_VALUE), count, values.missed > 0) for value, count in commonest]
    if len(values) > len(found):
        found.append("…")
    return "; ".join(filter(None, (moments_of(total), ", ".join(found))))


def moments_of(cell: Cell) -> str:
    """As `0.5 (0 to 1)`."""
    numbers = cell.numbers
    return f"{number(numbers.mean)} ({number(numbers.low)} to {number(numbers.high)})" if numbers.count else ""


def shown_keys(dump: Dump) -> list[str]:
    """Its keys, but for the column that splits it."""
    return [key for key in dump.keys if not (dump.split and key == dump.by)]


def types_of(cell: Cell) -> str:
    """Of its values, as `bool, float`."""
    return ", ".join(named(cell.kinds))
