"""The report on a terminal: one table per dump, what stands out in it, and a progress bar while it is read."""

from __future__ import annotations

import os
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
from verl_ext.report.read import Progress as Advance
from verl_ext.report.run import Report
from verl_ext.report.summary import MOST_KEYS, Cell, Dump
from verl_ext.report.text import counted, share, visible
from verl_ext.report.words import VALUES, headline, moments_of, shown_keys, types_of, values_of

_MOST_ROWS = 200
_MOST_FINDINGS = 40
_LONGEST_KEY = 40
_PLAIN_WIDTH = 240
"""Columns where there is no terminal to ask: no line is broken that a `grep` should find whole."""


def console() -> Console:
    """For standard output: as wide as the terminal or `COLUMNS` say, or plain and wide where there is neither."""
    found = Console()
    return found if found.is_terminal or os.environ.get("COLUMNS") else Console(width=_PLAIN_WIDTH)


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
    """Print the report; without blanks at the ends of lines where no terminal is to be filled."""
    if out.is_terminal:
        _print(report, out)
        return
    with out.capture() as captured:
        _print(report, out)
    out.file.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def _print(report: Report, out: Console) -> None:
    for dump, found in zip(report.dumps, report.findings, strict=True):
        out.print(_table(dump, out))
        _show_further(dump, out)
        _show_findings(found, out)


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
    longest = min(_LONGEST_KEY, out.width // 4)  # so that no name breaks into lines of its own
    for key in shown_keys(dump)[:_MOST_ROWS]:
        total = dump.total(key)
        steps = steps_of(dump, dump.present(key))
        table.add_row(
            Text(visible(key, longest), "bold"),
            *_measures(total, dump.rows),
            Text(values_of(dump, key, total)),
            Text(steps, "" if steps == "all" else "yellow"),
        )
        if dump.split:
            for place, group in dump.places.items():
                cell = group.cell(key)
                name = Text(f"  {visible(place, longest - 2)}", "dim")
                table.add_row(name, *_measures(cell, group.rows), Text(moments_of(cell), "dim"))
    return table


def _measures(cell: Cell, rows: int) -> list[Text]:
    covered = Text(share(cell.present, rows), "" if cell.present == rows else "yellow")
    return [Text(types_of(cell)), Text(f"{cell.present:,} of {rows:,}"), covered]


def _show_further(dump: Dump, out: Console) -> None:
    if dump.split and dump.unplaced:
        out.print(Text(f"{counted(dump.unplaced, 'row')} without {visible(dump.by or '', _LONGEST_KEY)}"))
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
