"""The demo as a person sees it: the same rows on stock verl and with verl-ext, and how many values were lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from verl_ext.child import ended
from verl_ext.demo.data import read_rows
from verl_ext.errors import VerlExtError, shown

Outcome = dict[str, Any]

LEGS = {
    "stock verl": {"VERL_EXT_DISABLE": "1"},
    # By both ways of loading, whatever the shell says: verl < 0.9 knows only the second.
    "verl-ext": {
        "VERL_EXT_DISABLE": "0",
        "VERL_USE_EXTERNAL_PLUGINS": "auto",
        "VERL_USE_EXTERNAL_MODULES": "verl_ext.autoload",
    },
}
"""Each leg runs in a process of its own; what differs is the environment."""

_NAMES_SHOWN = 6
"""How many keys or data sources get a column of their own: more would not fit beside each other."""

_PATIENCE = 30.0
"""Seconds that a leg has to end its Ray when the demo is broken off."""

_NUMBERS = ("count", "coverage", "mean", "min", "max")
_METRICS_SHOWN = 24


class DemoError(VerlExtError, RuntimeError):
    """A leg of the demo ended before it had run every path."""


def run_demo(console: Console, rows_file: Path | None = None) -> int:
    """Run both legs and print what came out.

    Returns:
        The number of values that were lost with verl-ext on: 0, or the demo has found a fault.

    Raises:
        RowsFileError: the file of rows is not in verl's row format.
        DemoError: a leg died; its last lines of output are in the message.
    """
    rows = read_rows(rows_file)
    sources = dict.fromkeys(row["data_source"] for row in rows)
    console.print(Text(f"{len(rows)} row(s) of {len(sources)} data source(s) ({', '.join(map(_safe, sources))})"))
    outcomes: dict[str, list[Outcome]] = {}
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as progress:
        for leg, environment in LEGS.items():
            task = progress.add_task(leg, total=None)
            outcomes[leg] = []
            with closing(_events(rows_file, environment)) as events:
                for event in events:
                    if "step" in event:
                        progress.update(task, description=f"{leg}: {_safe(event['step'])}")
                        if not console.is_terminal:  # no spinner there
                            console.print(Text(f"{leg}: {_safe(event['step'])}"))
                    elif "failed" in event:
                        raise DemoError(event["failed"])
                    else:
                        outcomes[leg].append(event["outcome"])
            progress.remove_task(task)
    return _report(console, outcomes["stock verl"], outcomes["verl-ext"])


def _events(rows_file: Path | None, environment: dict[str, str]) -> Generator[dict[str, Any], None, None]:
    command = [sys.executable, "-m", "verl_ext.demo.leg"]
    with (
        # Ours, not the leg's: a second Ctrl-C kills the leg.
        tempfile.TemporaryDirectory(prefix="verl-ext-demo-") as directory,
        tempfile.TemporaryFile("w+", errors="replace") as log,
        subprocess.Popen(  # noqa: S603  our own module, by this interpreter
            [*command, directory, *([str(rows_file)] if rows_file else [])],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            errors="replace",
            env={**os.environ, **environment},
            start_new_session=True,  # Ctrl-C comes to it by us, once
        ) as process,
        ended(process, signal.SIGINT, _PATIENCE),
    ):
        assert process.stdout is not None  # noqa: S101  for the type checker: it is a pipe
        last = ""
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
            else:
                last = line
        if process.wait() != 0:
            log.seek(0)
            tail = [_printable(line) for line in (last, *log.read().splitlines())][-12:]
            raise DemoError(
                f"the process that runs the rows ended with exit code {process.returncode}:\n" + "\n".join(tail)
            )


def _report(console: Console, stock: list[Outcome], ours: list[Outcome]) -> int:
    table = Table(title="What became of the values that the reward functions returned", title_justify="left")
    for heading in ("path", "row order", "stock verl", "verl-ext"):
        table.add_column(heading, overflow="fold")
    for before, after in zip(stock, ours, strict=True):
        table.add_row(_safe_text(before["path"]), _safe_text(before["order"]), _verdict(before), _verdict(after))
    console.print(table)

    shown_outcome = next((outcome for outcome in ours if "error" not in outcome), None)
    if shown_outcome is not None:
        console.print(_aligned(shown_outcome))
        console.print(_columns(shown_outcome))
        console.print(_metrics(shown_outcome))
    lost, values = sum(outcome["lost"] for outcome in ours), sum(outcome["values"] for outcome in ours)
    verdict = f"{lost} of {values} values lost"
    stock_lost = sum(outcome["lost"] for outcome in stock)
    console.print(
        Panel.fit(
            f"[bold {'red' if lost else 'green'}]with verl-ext: {verdict}[/]   on stock verl: {stock_lost} of {values}"
            "\n(a path that ends in an exception has lost all of its values)"
        )
    )
    return int(lost)


def _verdict(outcome: Outcome) -> Text:
    if "error" in outcome:
        return Text(_printable(outcome["error"]), "red")  # quoted by the leg
    if outcome["lost"]:
        parts = ", ".join(f"{_safe(key)} {count}" for key, count in outcome["lost_by_key"].items())
        return Text.assemble((f"{outcome['lost']} of {outcome['values']} values lost", "red"), f" ({parts})")
    return Text(f"0 of {outcome['values']} values lost", "green")


def _aligned(outcome: Outcome) -> Table:
    keys = list(outcome["table"][0])
    table = Table(title=Text(f"The aligned table ({_safe(outcome['order'])}, its first rows)"), title_justify="left")
    table.add_column("row", justify="right")
    _add_columns(table, keys, "keys")
    for number, row in enumerate(outcome["table"]):
        table.add_row(str(number), *(_safe_text(row[key]) for key in keys[:_NAMES_SHOWN]))
    return table


def _columns(outcome: Outcome) -> Table:
    sources = list(outcome["columns"][0]["coverage"]) if outcome["columns"] else []
    table = Table(title="Each key: its dtype, and the rows that have it by data source", title_justify="left")
    for heading in ("key", "dtype"):
        table.add_column(heading, overflow="fold")
    _add_columns(table, sources, "data sources")
    for column in outcome["columns"]:
        have = [f"{count} of {total}" for count, total in column["coverage"].values()]
        table.add_row(_safe_text(column["key"]), column["dtype"], *have[:_NAMES_SHOWN])
    return table


def _metrics(outcome: Outcome) -> Table:
    rows = outcome["metrics"]
    table = Table(title="What training logs of these rows (+verl_ext.metrics=all)", title_justify="left")
    for heading in ("key", "data source"):
        table.add_column(heading, overflow="fold")
    for heading in _NUMBERS:
        table.add_column(heading, justify="right")
    for row in rows[:_METRICS_SHOWN]:
        table.add_row(
            _safe_text(row["key"]), _safe_text(row["data source"]), *(row.get(name, "-") for name in _NUMBERS)
        )
    if len(rows) > _METRICS_SHOWN:
        table.caption = f"and {len(rows) - _METRICS_SHOWN} more"
    return table


def _add_columns(table: Table, names: list[str], kind: str) -> None:
    for name in names[:_NAMES_SHOWN]:
        table.add_column(_safe_text(name), overflow="fold")
    if len(names) > _NAMES_SHOWN:
        table.caption = f"and {len(names) - _NAMES_SHOWN} more {kind}"


def _safe_text(value: str) -> Text:
    return Text(_safe(value))


def _safe(value: str) -> str:
    """As `shown`, without the quotes: data must neither break a table nor drive a terminal."""
    quoted = shown(value)
    return quoted[1:-1] if quoted.endswith(quoted[0]) else quoted[1:]


def _printable(line: str) -> str:
    """What a leg says, such as a line of its log: it may quote data. Without colours, control characters escaped."""
    plain = Text.from_ansi(line).plain[:500]
    return plain if plain.isprintable() else plain.encode("unicode_escape").decode()
