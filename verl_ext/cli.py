"""The command line: it parses arguments, prints and sets the exit code; the work is done in the modules that it calls.

Exit codes: 0 all is well, 1 the run found a fault, 2 wrong use or input that cannot be read.
"""

from __future__ import annotations

import os
import sys
from enum import Enum
from io import TextIOWrapper
from json import dumps
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from verl_ext import __version__
from verl_ext.errors import VerlExtError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Reward functions for verl may return any keys for any sample.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"verl-ext {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Reward functions for verl may return any keys for any sample, and every value arrives."""


@app.command()
def demo(
    rows: Annotated[
        Path | None, typer.Option(help="Your own rows: a parquet file in verl's row format, with a column response.")
    ] = None,
) -> None:
    """Run mixed rows through verl's own managers on local Ray: on stock verl, and with verl-ext.

    It switches the plugin off and on itself, whatever VERL_EXT_DISABLE says. Exit code 1 if verl-ext lost a value.
    """
    from verl_ext.demo.show import run_demo

    try:
        lost = run_demo(Console(), rows)
    except VerlExtError as error:
        raise _failed(error) from None
    raise typer.Exit(1 if lost else 0)


@app.command()
def doctor(
    ray: Annotated[bool, typer.Option("--ray", help="Ask a fresh Ray worker on each node, too.")] = False,
    address: Annotated[
        str | None, typer.Option(help="The Ray cluster to ask; without it RAY_ADDRESS, or a local one.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say how the plugin was loaded, and what became of every patch site. Exit code 1 if a path is not covered."""
    from verl_ext.doctor import Diagnosis, examine, examine_nodes, told

    try:
        found = Diagnosis((examine(), *(examine_nodes(address) if ray or address is not None else ())))
    except VerlExtError as error:
        raise _failed(error) from None
    typer.echo(dumps(found.as_json(), indent=2) if json else told(found))
    raise typer.Exit(0 if found.covered else 1)


class _Nan(str, Enum):
    VALUE = "value"
    MISSING = "missing"


@app.command()
def report(
    path: Annotated[Path, typer.Argument(help="A dump: one file, a directory of them, or one above several.")],
    by: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Split by a column; data_source, where there is one.")
    ] = None,
    nan: Annotated[_Nan, typer.Option(help="What NaN counts as.")] = _Nan.VALUE,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one self-contained page.")] = None,
    parquet: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the aligned rows, with nulls; needs pyarrow.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first line that is no JSON object.")] = False,
) -> None:
    """Say which reward keys a run's dumps hold: for how many samples, in which steps, with which values.

    Reads what verl writes to trainer.rollout_data_dir and trainer.validation_data_dir, of stock or extended runs:
    <step>.jsonl or <step>.jsonl.gz. Exit code 1 if a line is no JSON object, or a file among others cannot be read.
    """
    from verl_ext.report.command import run_report
    from verl_ext.report.read import NoRowError, ReportError

    if isinstance(sys.stdout, TextIOWrapper):  # a value that the terminal's encoding lacks is escaped, not an error
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        faults = run_report(
            path, by=by, nan_is_missing=nan is _Nan.MISSING, json=json, html=html, parquet=parquet, strict=strict
        )
        sys.stdout.flush()
    except NoRowError as error:
        raise _failed(error, 1) from None
    except VerlExtError as error:
        raise _failed(error) from None
    except BrokenPipeError:  # a reader such as `head` has closed standard output: typer ends quietly
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        raise _failed(ReportError(f"standard output cannot be written: {error.strerror}")) from None
    raise typer.Exit(1 if faults else 0)


@app.command()
def train(
    everything: Annotated[bool, typer.Option("--all", help="GRPO and GDPO on both trainers.")] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of each run: 30; 2 with --reward.")] = None,
    to: Annotated[Path, typer.Option(metavar="DIR", help="Where metrics, dumps, weights and logs go.")] = Path(
        "verl-ext-train"
    ),
    at_once: Annotated[int, typer.Option(min=1, help="Runs side by side.")] = 2,
    reward: Annotated[
        str | None, typer.Option(metavar="FILE:FUNCTION", help="A dry run of your own reward function.")
    ] = None,
    rows: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The rows for it: a parquet file in verl's row format.")
    ] = None,
    components: Annotated[
        str | None, typer.Option(metavar="KEY,KEY", help="GDPO's components; without it, every key that is a number.")
    ] = None,
) -> None:
    """Train a tiny model by verl's own command line, on a CPU: stock verl beside verl-ext, on a task of mixed schemas.

    With --reward and --rows: a dry run of your own recipe, which says which keys come, which components some samples
    lack, and whether GDPO would train. Exit code 1 if a run with verl-ext failed, lost a value or learned nothing.
    """
    from verl_ext.cpu.dry_run import dry_run
    from verl_ext.cpu.run import RunError
    from verl_ext.cpu.train import STEPS
    from verl_ext.cpu.train import train as train_task

    try:
        if (reward is None) != (rows is None):
            raise RunError("--reward and --rows go together")
        if reward is not None and rows is not None:
            named = components.split(",") if components else None
            faults = dry_run(Console(), to, reward, rows, components=named, steps=steps or 2)
        else:
            faults = train_task(Console(), to, everything=everything, steps=steps or STEPS, at_once=at_once)
    except VerlExtError as error:
        raise _failed(error) from None
    except KeyboardInterrupt:
        typer.echo("verl-ext: broken off", err=True)
        raise typer.Exit(130) from None
    raise typer.Exit(1 if faults else 0)


def _failed(error: VerlExtError, code: int = 2) -> typer.Exit:
    typer.echo(f"verl-ext: {error}", err=True)  # not by rich, which would break lines within paths and names
    return typer.Exit(code)
