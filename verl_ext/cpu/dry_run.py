"""A dry run of one's own recipe: its rows and its reward function through real training, with a tiny model. Of verl:
nothing by itself; `run` starts verl.

The model's answers are noise, so that nothing is learned. To be seen is which keys come, from whom, and what training
makes of them.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from verl_ext.cpu import recorded
from verl_ext.cpu.outcome import OWN, Outcome
from verl_ext.cpu.run import Run, RunError
from verl_ext.cpu.train import WIDTH, carry_out, check_verl, prepare, table
from verl_ext.errors import bare, shown
from verl_ext.settings import fill_spelling

MOST_ROWS = 24
"""Rows that a dry run takes of a file: of each data source in turn."""

RESPONSE = 16
"""Tokens of an answer."""

NOISE = "?"
"""An answer that is right nowhere: many scorers return other keys for what they cannot parse."""


@dataclass
class Keys:
    """Which keys the reward function returned, by data source, over a number of calls."""

    calls: Counter[str] = field(default_factory=Counter)
    having: dict[str, Counter[str]] = field(default_factory=dict)
    """By key, the calls that returned a value for it; `None` is none."""

    numbers: set[str] = field(default_factory=set)
    """Keys whose values were all numbers."""

    def count(self, source: str, kinds: Mapping[str, str]) -> None:
        """Count a call: by key, what kind of value it returned, as `recorded.kind_of` says."""
        self.calls[source] += 1
        for key, kind in kinds.items():
            first = key not in self.having
            having = self.having.setdefault(key, Counter())
            having[source] += kind != "none"
            if kind == "other":
                self.numbers.discard(key)
            elif first:
                self.numbers.add(key)

    def lacking(self, key: str) -> dict[str, tuple[int, int]]:
        """By data source, how many calls brought no value for the key, and of how many; those where none lacked it."""
        found = {source: (total - self.having[key][source], total) for source, total in self.calls.items()}
        return {source: (count, total) for source, (count, total) in found.items() if count}


def dry_run(
    console: Console, directory: Path, reward: str, rows_file: Path, *, components: Sequence[str] | None, steps: int
) -> int:
    """Say which keys come, which components some samples lack and whether GDPO would train; then train.

    Args:
        console: where to print.
        directory: as for `train`.
        reward: `file:function`.
        rows_file: a parquet file in verl's row format.
        components: GDPO's; without it, every key that is a number.
        steps: of the run.

    Returns:
        1 if training ended early or lost a value, else 0.

    Raises:
        RunError: the function cannot be loaded, or raises on a row, or returns no score.
        RowsFileError: the rows cannot be read.
    """
    from verl_ext.demo.data import read_rows

    check_verl()
    if not console.is_terminal:
        console.width = WIDTH
    rows = read_rows(rows_file, recorded=False)
    path, function = _function(reward)
    reward = f"{path}:{function.__name__}"
    chosen = in_turn([row["data_source"] for row in rows], MOST_ROWS)
    keys = Keys()
    for number in chosen:
        for answer in (str(rows[number]["reward_model"]["ground_truth"]), NOISE):
            _score(function, number, rows[number], answer, keys)
    called = f"{len(chosen)} row(s), each with its ground truth and with {NOISE!r} for an answer"
    console.print(_coverage(keys, f"What {bare(function.__name__)} returns: {called}"))
    wanted = list(components or sorted(key for key in keys.numbers if key not in OWN))
    verdict, fills = gdpo_verdict(keys, wanted)
    for line in verdict:
        console.print(Text(line))
    directory = prepare(directory)
    run = _planned(directory, rows_file, rows, chosen, reward, steps)
    run = replace(run, coroutine=inspect.iscoroutinefunction(function))
    if wanted and set(wanted) <= keys.having.keys():
        run = replace(run, algorithm="GDPO", components=wanted, fills=fills)
    outcome = carry_out(console, [run], 1)[0]
    _raise_where_it_raised(run)
    trained = _keys_of(run)
    if trained.calls:
        console.print(_coverage(trained, f"What it returned in training, for {sum(trained.calls.values())} answers"))
    console.print(table([outcome]))
    return int(_failed(outcome))


def in_turn(sources: Sequence[str], most: int) -> list[int]:
    """The numbers of at most `most` rows: of each data source the first, then of each the second."""
    by_source: dict[str, list[int]] = {}
    for number, source in enumerate(sources):
        by_source.setdefault(source, []).append(number)
    turns = zip_longest(*by_source.values())
    return [number for turn in turns for number in turn if number is not None][:most]


def gdpo_verdict(keys: Keys, components: Sequence[str]) -> tuple[list[str], dict[str, float]]:
    """Whether GDPO would train on these components, in lines, and the fills that the dry run takes for it."""
    if not components:
        return ["GDPO: no key is a number, so that there is nothing to train on."], {}
    lines, fills = [], {}
    for key in components:
        if key not in keys.having:
            lines.append(f"GDPO: no sample has {bare(key)}: it would stop at the first batch.")
            continue
        lacking = keys.lacking(key)
        if not lacking:
            lines.append(f"GDPO: {bare(key)} would train: every sample has it.")
            continue
        fills[key] = 0.0
        whom = ", ".join(f"{count} of {total} of {bare(source)}" for source, (count, total) in lacking.items())
        lines.append(
            f"GDPO: {bare(key)} would stop the run: it is missing in {whom}. Name what to train with, for instance "
            f"{fill_spelling(key)}; the run below does."
        )
    return lines, fills


def _function(reward: str) -> tuple[Path, Any]:
    file, _, name = reward.rpartition(":")
    if not file or not name:
        raise RunError(f"--reward wants FILE:FUNCTION, and got {shown(reward)}")
    path = Path(file).resolve()
    if not path.is_file():
        raise RunError(f"{bare(file)} is no file")
    try:
        return path, recorded.load_function(f"{path}:{name}")
    except AttributeError:
        raise RunError(f"{bare(file)} has no function {shown(name)}") from None
    except (Exception, SystemExit) as error:
        raise RunError(f"{bare(file)} cannot be loaded: {type(error).__name__}: {shown(str(error))}") from error


def _score(function: Any, number: int, row: Mapping[str, Any], answer: str, keys: Keys) -> None:
    """Call the function as verl does."""
    import asyncio

    source = row["data_source"]
    try:
        result = function(
            data_source=source,
            solution_str=answer,
            ground_truth=row["reward_model"]["ground_truth"],
            extra_info=dict(row.get("extra_info") or {}),
        )
        if inspect.isawaitable(result):
            result = asyncio.run(_awaited(result))
    except (Exception, SystemExit) as error:
        raise RunError(
            f"the reward function raises on row {number} (data source {shown(source)}, answer {shown(answer)}): "
            f"{type(error).__name__}: {shown(str(error))}"
        ) from error
    returned = result if isinstance(result, dict) else {"acc": result}
    score = returned.get("score") if isinstance(result, dict) else result
    if recorded.number(score) is None:
        raise RunError(
            f"the reward function returns no score for row {number} (data source {shown(source)}): it must return a "
            f"number, or a dict with a number as 'score', and returned {shown(result)}"
        )
    keys.count(source, {str(key): recorded.kind_of(value) for key, value in returned.items()})


async def _awaited(result: Any) -> Any:
    return await result


def _keys_of(run: Run) -> Keys:
    keys = Keys()
    for line in run.emitted_lines():
        keys.count(line["data_source"], line.get("keys", {}))
    return keys


def _raise_where_it_raised(run: Run) -> None:
    for line in run.emitted_lines():
        if "error" in line:
            raise RunError(
                f"the reward function raises on an answer of the tiny model (data source "
                f"{shown(line['data_source'])}): {shown(line['error'])}"
            )


def _planned(
    directory: Path, rows_file: Path, rows: Sequence[Mapping[str, Any]], chosen: Sequence[int], reward: str, steps: int
) -> Run:
    """The run over the chosen rows."""
    import pyarrow.parquet

    from verl_ext.cpu.model import build_model

    taken = directory / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(rows_file).take(list(chosen)), taken)
    longest = max(sum(len(turn["content"].encode()) + 32 for turn in rows[number]["prompt"]) for number in chosen)
    return Run(
        trainer="legacy",
        algorithm="GRPO",
        side="verl-ext",
        directory=directory / "run",
        model=build_model(directory / "model"),
        rows=taken,
        reward=reward,
        steps=steps,
        batch=len(chosen),
        prompt_length=longest + 32,
        response_length=RESPONSE,
    )


def _failed(outcome: Outcome) -> bool:
    return outcome.steps < outcome.run.steps or bool(outcome.error) or bool(outcome.lost)


def _coverage(keys: Keys, title: str) -> Table:
    shown_table = Table(title=Text(title), title_justify="left")
    for heading in ("key", "values", *map(bare, keys.calls)):
        shown_table.add_column(Text(heading), overflow="fold")
    for key, having in keys.having.items():
        cells = (f"{having[source]} of {total}" if having[source] else "-" for source, total in keys.calls.items())
        shown_table.add_row(Text(bare(key)), "numbers" if key in keys.numbers else "other", *cells)
    return shown_table
