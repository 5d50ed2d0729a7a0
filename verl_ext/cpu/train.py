"""Training as a person sees it: stock verl beside verl-ext on the same task, one table and one picture. Of verl:
nothing by itself; `run` starts verl, `outcome` reads what it left.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from verl_ext.cpu import curves, task
from verl_ext.cpu.outcome import REWARD, Outcome, outcome_of
from verl_ext.cpu.run import DISABLED, Run, RunError
from verl_ext.errors import bare

STEPS = 30

CASES = (("legacy", "GDPO"), ("v1", "GRPO"))
ALL = (*CASES, ("legacy", "GRPO"), ("v1", "GDPO"))
"""Trainers and algorithms."""

MARK = ".verl-ext-train"
"""The file by which a directory is known as one of ours, which may be replaced."""

WIDTH = 150
"""Of the table where no terminal says how wide it is, as in a log."""


def train(console: Console, directory: Path, *, everything: bool = False, steps: int = STEPS, at_once: int = 2) -> int:
    """Train on the built-in task, and print what came out; metrics, dumps, weights and logs stay in `directory`.

    Args:
        console: where to print.
        directory: made, or replaced if it is from an earlier run.
        everything: both algorithms on both trainers.
        steps: of each run.
        at_once: runs side by side.

    Returns:
        How many runs with verl-ext ended early, lost a value, broke the weights, or learned nothing.

    Raises:
        RunError: this verl cannot be run on a CPU, or the directory holds something else.
    """
    check_verl()
    directory = prepare(directory)
    from verl_ext.cpu.model import build_model

    model = build_model(directory / "model")
    rows = task.write_rows(directory / "rows.parquet", task.rows(task.BATCH * 8))
    runs = [
        Run(
            trainer=trainer,
            algorithm=algorithm,
            side=side,
            directory=directory / f"{trainer}-{algorithm}-{side.replace(' ', '-')}".lower(),
            model=model,
            rows=rows,
            reward=f"{task.__file__}:compute_score",
            steps=steps,
        )
        for trainer, algorithm in (ALL if everything else CASES)
        for side in DISABLED
    ]
    if not console.is_terminal:
        console.width = WIDTH
    outcomes = carry_out(console, runs, at_once)
    picture = directory / "curves.svg"
    picture.write_text(curves.draw(panels(outcomes), steps), encoding="utf-8")
    console.print(table(outcomes))
    console.print(Text(f"Learning curves: {bare(str(picture))}. Logs, metrics, dumps and weights are beside it."))
    return sum(not sound(outcome) for outcome in outcomes if outcome.run.side == "verl-ext")


def check_verl() -> None:
    """RunError unless this verl has what the rig registers with."""
    try:
        found = version("verl")
    except PackageNotFoundError:
        raise RunError("verl is not installed; pip install 'verl-ext[demo]' brings it") from None
    if tuple(int(part) for part in found.split(".")[:2]) < (0, 9):
        raise RunError(f"training on a CPU needs verl >= 0.9, which has registries for platforms; this is {found}")


def prepare(directory: Path) -> Path:
    """An empty directory, where there was none or an earlier one of ours.

    Returns:
        Its absolute path: verl's processes run in directories of their own.

    Raises:
        RunError: it holds something else, or cannot be made.
    """
    try:
        if directory.exists():
            if not directory.is_dir() or (any(directory.iterdir()) and not (directory / MARK).exists()):
                raise RunError(f"{bare(str(directory))} holds something else than an earlier training; name another")
            shutil.rmtree(directory)
        directory.mkdir(parents=True)
        (directory / MARK).touch()
    except OSError as error:
        raise RunError(f"{bare(str(directory))} cannot be written: {error.strerror}") from error
    return directory.resolve()


def carry_out(console: Console, runs: Sequence[Run], at_once: int) -> list[Outcome]:
    """Run them, `at_once` side by side, and show how far they are; however it ends, no process is left."""
    outcomes: dict[int, Outcome] = {}
    waiting = list(enumerate(runs))
    active: dict[int, Any] = {}
    with _terminated_as_interrupted(), ExitStack() as stack, _progress(console, runs) as say:
        while waiting or active:
            while waiting and len(active) < at_once:
                number, run = waiting.pop(0)
                active[number] = stack.enter_context(closing(run.to_its_end()))
            for number, going in list(active.items()):
                try:
                    say(number, next(going))
                except StopIteration as end:
                    del active[number]
                    outcomes[number] = outcome_of(runs[number], end.value)
    return [outcomes[number] for number in range(len(runs))]


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """A polite kill ends the runs as Ctrl-C does."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _progress(console: Console, runs: Sequence[Run]) -> Iterator[Any]:
    """A function that says how many steps a run has done: bars on a terminal, else a line now and then."""
    start = time.monotonic()
    shown: dict[int, int] = {}
    if not console.is_terminal:

        def line(number: int, done: int) -> None:
            if done == shown.get(number) or (done and done % 5 and done != runs[number].steps):
                return
            shown[number] = done
            console.print(Text(f"{time.monotonic() - start:4.0f} s  {name(runs[number])}: {_said(runs[number], done)}"))

        yield line
        return
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[said]}")
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        tasks = [bars.add_task(name(run), total=run.steps, said="waiting", start=False) for run in runs]

        def bar(number: int, done: int) -> None:
            if done != shown.get(number):
                if number not in shown:
                    bars.start_task(tasks[number])
                shown[number] = done
                bars.update(tasks[number], completed=done, said=_said(runs[number], done))

        yield bar


def name(run: Run) -> str:
    """As it is shown."""
    return f"{run.algorithm}, {run.trainer} trainer, {run.side}"


def _said(run: Run, done: int) -> str:
    if not done:
        return "starting verl's processes"
    return f"step {done} of {run.steps}, mean reward {run.logged()[-1].get(REWARD, float('nan')):.2f}"


def panels(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Sequence[float]]]:
    """For `curves.draw`."""
    found: dict[str, dict[str, Sequence[float]]] = {}
    for outcome in outcomes:
        title = f"{outcome.run.algorithm}, {outcome.run.trainer} trainer"
        found.setdefault(title, {})[outcome.run.side] = outcome.rewards
    return found


def sound(outcome: Outcome) -> bool:
    """Whether the run went to its end, every value arrived, and the model learned where it had the steps for it."""
    done = outcome.steps == outcome.run.steps and not outcome.error
    trained = bool(outcome.moved) and outcome.finite and (outcome.learned or outcome.steps < STEPS)
    return done and not outcome.lost and trained


def table(outcomes: Sequence[Outcome]) -> Table:
    """A line for each run."""
    shown = Table(title="Trained by verl's own command line, on a CPU", title_justify="left")
    for heading in (
        "trainer",
        "algorithm",
        "",
        "steps",
        "mean reward",
        "weights",
        "values that never arrived, or error",
    ):
        shown.add_column(heading, overflow="fold")
    for outcome in outcomes:
        run = outcome.run
        reward = f"{outcome.start:.2f} -> {outcome.end:.2f}" if outcome.rewards else "-"
        shown.add_row(
            *(run.trainer, run.algorithm, run.side, f"{outcome.steps} of {run.steps}", reward),
            Text(_weights(outcome), "" if outcome.moved else "red"),
            _lost(outcome),
        )
    return shown


def _weights(outcome: Outcome) -> str:
    if outcome.moved is None:
        return "never trained"
    if not outcome.finite:
        return "not finite"
    return f"moved by up to {outcome.moved:.2g}" if outcome.moved else "unchanged"


def _lost(outcome: Outcome) -> Text:
    if outcome.error:
        line = Text.from_ansi(outcome.error[:400]).plain  # it may quote data
        return Text(line if line.isprintable() else line.encode("unicode_escape").decode(), "red")
    if outcome.lost:
        keys = ", ".join(f"{bare(key)} {count}" for key, count in outcome.lost.items())
        return Text(f"{sum(outcome.lost.values())} of {outcome.emitted} ({keys})", "red")
    return Text(f"0 of {outcome.emitted}", "green")
