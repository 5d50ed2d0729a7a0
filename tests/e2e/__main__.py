"""Every trainer to its end on a CPU, on stock verl and with verl-ext, and one table of what became of the values.

Exit codes: 0 with verl-ext, every run finished, every value arrived, no advantage is NaN and no accuracy wrong;
1 not so; 2 a leg died.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from verl_ext.demo.show import LEGS

from .table import Outcome, report

WIDTH = 160
"""Of the table where no terminal says how wide it is, as in a log."""


class LegError(RuntimeError):
    """A leg ended before it had run every case; its last lines of output are in the message."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both legs, each in a process of its own, and print what came out."""
    parser = argparse.ArgumentParser("e2e", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="one order of rows for each trainer and algorithm")
    parser.add_argument(
        "--leg", action="store_true", help="one leg, in this process, as JSON (for this command itself)"
    )
    options = parser.parse_args(arguments)
    if options.leg:
        return run_leg(options.short)
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    outcomes: dict[str, list[Outcome]] = {leg: [] for leg in LEGS}
    try:
        with progress(console) as say:
            for leg in LEGS:
                say(f"{leg}: starting verl's workers")
                for event in events(leg, options.short):
                    if "step" in event:
                        say(f"{leg}: {event['step']}")
                    else:
                        outcomes[leg].append(Outcome(**event["outcome"]))
    except LegError as error:
        console.print(Text(str(error), "red"))
        return 2
    return report(console, outcomes["stock verl"], outcomes["verl-ext"])


@contextmanager
def progress(console: Console) -> Iterator[Callable[[str], None]]:
    """A function that says what is being done: in place on a terminal, else in a line each."""
    if not console.is_terminal:
        start = time.monotonic()
        yield lambda text: console.print(Text(f"{time.monotonic() - start:4.0f} s  {text}"))
        return
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda text: bar.update(task, description=text)


def events(leg: str, short: bool) -> Iterator[dict[str, Any]]:
    """Start a leg, and say what it says.

    Raises:
        LegError: it died.
    """
    command = [sys.executable, "-m", __package__, "--leg", *(["--short"] if short else [])]
    with (
        tempfile.TemporaryFile("w+", errors="replace") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **LEGS[leg]}
        ) as process,
    ):
        yield from map(json.loads, process.stdout)
        if process.wait() != 0:
            log.seek(0)
            tail = "".join(log.readlines()[-30:])
            raise LegError(f"{tail}\nthe leg on {leg} ended with exit code {process.returncode}")


def run_leg(short: bool) -> int:
    """Run every case in this process, and write to stdout what happens, as a line of JSON for each event."""
    with os.fdopen(os.dup(1), "w") as stdout:
        os.dup2(2, 1)  # verl prints to stdout

        def say(**event: Any) -> None:
            stdout.write(f"{json.dumps(event)}\n")
            stdout.flush()

        from verl_ext.demo import rig
        from verl_ext.demo.data import read_rows

        from . import legacy, matrix

        cases, rows = matrix.SHORT if short else matrix.CASES, read_rows()
        with (
            rig.local_ray(),
            tempfile.TemporaryDirectory() as directory,
            legacy.managers(rig.build_model_dir(Path(directory)), rows, ["reward.num_workers=1"]) as managers,
            matrix.surroundings(rows, managers) as around,
        ):
            for number, case in enumerate(cases, 1):
                say(step=f"{number} of {len(cases)}: {case.trainer}, {case.algorithm}, {case.order}")
                say(outcome=asdict(matrix.outcome_of(case, around)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
