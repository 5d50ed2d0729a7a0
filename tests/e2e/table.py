"""What became of each run, and the one table that shows it; nothing here imports verl."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

LONGEST_STOCK = 80
"""Characters of an exception of stock verl's that the table shows."""


@dataclass(frozen=True)
class Outcome:
    """What became of one run.

    Attributes:
        trainer, algorithm, order: what was run, over rows in what order.
        steps: that were done, of `due`.
        values: that the reward functions returned, in training and in validation.
        lost: by key, how many of them have not arrived with their answer: at the actor; in the dump of validation.
        advantages: how many the actor was given, over the answers' tokens.
        nans: how many of these are NaN.
        wrong: by validation metric, what was logged where it is wrong.
        error: the exception that ended the run, or nothing.
    """

    trainer: str
    algorithm: str
    order: str
    due: int
    steps: int
    values: int
    lost: Mapping[str, int] = field(default_factory=dict)
    advantages: int = 0
    nans: int = 0
    wrong: Mapping[str, str] = field(default_factory=dict)
    error: str = ""

    @property
    def arrived(self) -> int:
        """How many values have arrived."""
        return self.values - sum(self.lost.values())

    @property
    def faults(self) -> list[str]:
        """What is wrong, in words: the run did not finish, a value was lost, an advantage is NaN, a metric is wrong."""
        found = [self.error] if self.error else []
        if self.steps < self.due:
            found.append(f"{self.steps} of {self.due} steps")
        if self.arrived != self.values:
            keys = ", ".join(f"{key} {count}" for key, count in self.lost.items())
            found.append(f"{self.values - self.arrived} of {self.values} values lost ({keys})")
        if self.nans:
            found.append(f"{self.nans} of {self.advantages} advantages NaN")
        found += [f"{metric} is {what}" for metric, what in self.wrong.items()]
        if not (self.values and self.advantages):
            found.append("nothing to count")
        return found


def report(console: Console, stock: Sequence[Outcome], ours: Sequence[Outcome]) -> int:
    """Print the table.

    Returns:
        The exit code: 1 if there is no run, or with verl-ext one that has a fault.
    """
    title = "Rows of different reward schemas, to the end of training (NaNs: among the advantages)"
    table = Table(title=title, title_justify="left")
    for heading in ("trainer", "algorithm", "rows"):
        table.add_column(heading, overflow="fold")
    for heading in ("steps", "values in", "values out", "NaNs"):
        table.add_column(heading, justify="right")
    table.add_column("the same on stock verl", overflow="fold")
    before = None
    for theirs, outcome in zip(stock, ours, strict=True):
        of_the_same = before is not None and before.trainer == outcome.trainer
        if before is not None and not of_the_same:
            table.add_section()
        table.add_row(
            "" if of_the_same else outcome.trainer,
            "" if of_the_same and before.algorithm == outcome.algorithm else outcome.algorithm,
            outcome.order,
            _counted(outcome.steps, outcome.due, f"{outcome.steps} of {outcome.due}"),
            str(outcome.values),
            _counted(outcome.arrived, outcome.values),
            _counted(outcome.nans, 0),
            _on_stock(theirs),
        )
        before = outcome
    console.print(table)

    faulty = [outcome for outcome in ours if outcome.faults]
    for outcome in faulty:
        case = f"{outcome.trainer}, {outcome.algorithm}, {outcome.order}"
        console.print(Text(f"with verl-ext, {case}: {'; '.join(outcome.faults)}", "red"))
    colour = "red" if faulty or not ours else "green"
    console.print(Panel.fit(f"[bold {colour}]with verl-ext: {_summary(ours)}[/]\non stock verl: {_summary(stock)}"))
    return int(bool(faulty) or not ours)


def _counted(found: int, expected: int, text: str = "") -> Text:
    return Text(text or str(found), "green" if found == expected else "bold red")


def _on_stock(outcome: Outcome) -> Text:
    if not outcome.faults:
        return Text("no fault", "green")
    error = outcome.error if len(outcome.error) <= LONGEST_STOCK else f"{outcome.error[: LONGEST_STOCK - 3]}..."
    if outcome.error and not outcome.steps:
        return Text(error, "red")
    return Text("; ".join([*outcome.faults[bool(outcome.error) :], *([error] if error else [])]), "red")


def _summary(outcomes: Sequence[Outcome]) -> str:
    finished = sum(outcome.steps == outcome.due and not outcome.error for outcome in outcomes)
    values, arrived = (sum(getattr(outcome, name) for outcome in outcomes) for name in ("values", "arrived"))
    nans, advantages = (sum(getattr(outcome, name) for outcome in outcomes) for name in ("nans", "advantages"))
    return (
        f"{finished} of {len(outcomes)} runs finished, {values - arrived} of {values} values lost, "
        f"{nans} of {advantages} advantages NaN"
    )
