"""The report on a terminal: one table per dump, what stands out in it, and a progress bar while it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table
from rich.text import Text

from verl_ext.report.findings import Finding, causes, steps_of
from verl_ext.report.read import Faults
from verl_ext.report.read import Progress as Advance
from verl_ext.report.run import Report
from verl_ext.report.summary import MOST_KEYS, Cell, Dump, named
from verl_ext.report.text import counted, number, share, times, visible

_MOST_ROWS = 200
_MOST_FINDINGS = 40
_MOST_VALUES = 3
_LONGEST_KEY = 40
_LONGEST_VALUE = 24
VALUES = "mean (min to max), or texts"
_PLAIN_WIDTH = 240
"""Columns where there is no terminal to ask: no line is broken that a `grep` should find whole."""


def console() -> Console:
    """For standard output: as wide as the terminal, or plain and wide where there is none."""
    found = Console()
    return found if found.is_terminal else Console(width=_PLAIN_WIDTH)


@contextmanager
def progress_bar() -> Iterator[Callable[[int], Advance]]:
    """How much is read, how fast, and how long it will take; on standard error, and only if that is a terminal."""
    errors = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:

        def start(total: int) -> Advance:
            task = bar.add_task("", total=total)
            return lambda name, more: bar.update(task, advance=more, description=visible(name, 32))

        yield start


def show(report: Report, out: Console) -> None:
    """Print the report."""
    for dump, found in zip(report.dumps, report.findings, strict=True):
        out.print(_table(dump, out))
        _show_further(dump, out)
        _show_findings(found, out)


def fault_lines(faults: Faults) -> Iterator[str]:
    """What is no row, a line each, and how much more of it there is."""
    yield from map(str, faults.first)
    if faults.count > len(faults.first):
        yield f"and {faults.count - len(faults.first):,} more"


def headline(dump: Dump) -> str:
    """The size of a dump in words."""
    first, last = (dump.spans[0].label[0], dump.spans[-1].label[1]) if dump.spans else ("", "")
    steps = f" ({first} to {last})" if first != last else f" ({first})" if first else ""
    size = f"{counted(dump.rows, 'row')} in {counted(dump.step_numbers, 'step')}{steps}"
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


def _table(dump: Dump, out: Console) -> Table:
    table = Table(
        title=Text.assemble((visible(dump.name), "bold"), f": {headline(dump)}"),
        title_justify="left",
        title_style="",
        box=box.SIMPLE_HEAD if out.is_terminal else None,
        pad_edge=False,
    )
    table.add_column("key", overflow="fold", min_width=8)
    table.add_column("types")
    for heading in ("rows", "coverage"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(VALUES, overflow="fold")
    table.add_column("in steps", overflow="fold")
    for key in shown_keys(dump)[:_MOST_ROWS]:
        total = dump.total(key)
        present = [index for index, span in enumerate(dump.spans) if span.cell(key).present]
        steps = steps_of(dump, present) if present else "none"
        table.add_row(
            Text(visible(key, _LONGEST_KEY), "bold"),
            *_measures(total, dump.rows),
            Text(values_of(dump, key, total)),
            Text(steps, "" if steps == "all" else "yellow"),
        )
        if dump.split:
            for place, group in dump.places.items():
                cell = group.cell(key)
                name = Text(f"  {visible(place, _LONGEST_KEY)}", "dim")
                table.add_row(name, *_measures(cell, group.rows), Text(moments_of(cell), "dim"))
    return table


def _measures(cell: Cell, rows: int) -> list[Text]:
    covered = Text(share(cell.present, rows), "" if cell.present == rows else "yellow")
    return [Text(types_of(cell)), Text(f"{cell.present:,} of {rows:,}"), covered]


def _show_further(dump: Dump, out: Console) -> None:
    if len(shown_keys(dump)) > _MOST_ROWS:
        out.print(Text(f"and {len(shown_keys(dump)) - _MOST_ROWS:,} more keys: --json has them"))
    count, more = dump.further_keys
    if count:
        out.print(
            Text(
                f"and {'more than ' if more else ''}{count:,} keys beyond the first {MOST_KEYS:,}, with "
                f"{counted(dump.further, 'value')}"
            )
        )


def _show_findings(found: Sequence[Finding], out: Console) -> None:
    for finding in found[:_MOST_FINDINGS]:
        out.print(
            Text.assemble((f"! {visible(finding.key, _LONGEST_KEY)}", "bold"), f" {finding.kind}: {finding.text}")
        )
    if len(found) > _MOST_FINDINGS:
        out.print(Text(f"and {len(found) - _MOST_FINDINGS:,} more: --json has them"))
    for cause in causes(found):
        out.print(Text(f"  {cause}", "dim"))
    out.print()
