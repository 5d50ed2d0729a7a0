"""`make bench`: measures ours beside its peers, round by round in turn, and prints one table.

No figure is asserted: a target that is not met is shown as missed. `--save-figures` writes all of it as JSON, and
`--pages` what the documentation shows of it: two charts, and the table as a page.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import pictures

from verl_ext import core

ROUNDS = 5
PACKAGES = ("verl", "numpy", "pandas", "pyarrow", "polars", "ray")


@dataclass
class Figure:
    """A row of the table: a ratio that should be at most (or, of a speed-up, at least) its target."""

    figure: str
    input: str
    ours: str
    pure: str
    peer: str
    ratio: float
    target: str = ""
    met: bool | None = None


@dataclass
class Time:
    """What a value takes whom, in nanoseconds."""

    input: str
    rows: int
    who: str
    nanoseconds: float


class Table:
    """What was measured, in order."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []
        self.times: list[Time] = []

    def add(
        self, figure: str, where: str, ours: str, peer: str, ratio: float, target: str = "", pure: str = ""
    ) -> None:
        """`target` is `""`, or `<= 1.5`, or `>= 2`; `pure` is what ours takes without the compiled core."""
        sign, _, bound = target.partition(" ")
        met = None if not target else ratio <= float(bound) if sign == "<=" else ratio >= float(bound)
        self.figures.append(Figure(figure, where, ours, pure, peer, round(ratio, 3), target, met))

    def time(self, where: str, rows: int, who: str, nanoseconds: float) -> None:
        """What the charts are drawn of."""
        self.times.append(Time(where, rows, who, round(nanoseconds, 2)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--save-figures", metavar="FILE", help="write the table as JSON")
    parser.addoption("--pages", metavar="DIRECTORY", help="write the charts and the table of the documentation")


TABLE = Table()


@pytest.fixture
def table() -> Table:
    return TABLE


@pytest.fixture
def times(benchmark: Any) -> Callable[..., dict[str, float]]:
    """`times(ours, peer=...)`: seconds of each, the least of several rounds in which they take turns."""

    def measure(ours: Callable[[], Any], rounds: int = ROUNDS, **peers: Callable[[], Any]) -> dict[str, float]:
        best = dict.fromkeys(peers, float("inf"))

        def warm_up(function: Callable[[], Any]) -> None:
            # Whoever comes second would find the rows in the cache.
            if rounds > 2:
                function()

        def peers_in_turn() -> None:
            for name, peer in peers.items():
                warm_up(peer)
                start = perf_counter()
                result = peer()  # kept: pytest-benchmark does not count that ours is freed, either
                best[name] = min(best[name], perf_counter() - start)
                del result
            warm_up(ours)

        benchmark.pedantic(ours, setup=peers_in_turn, rounds=rounds)
        benchmark.extra_info.update(best)
        return {"ours": benchmark.stats.stats.min, **best}

    return measure


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "ours": core.VERSION,
        **{name: version(name) for name in PACKAGES},
    }


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable

    if not TABLE.figures:  # `make test` comes by here, too
        return
    machine = _machine()
    shown = RichTable(
        "figure", "input", "ours", "pure", "peer", "ratio", "target", "", title="verl-ext beside its peers"
    )
    for figure in TABLE.figures:
        met = {None: "", True: "met", False: "[bold red]missed[/]"}[figure.met]
        shown.add_row(
            figure.figure,
            figure.input,
            figure.ours,
            figure.pure,
            figure.peer,
            f"{figure.ratio:.2f}",
            figure.target,
            met,
        )
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(shown)
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()), highlight=False)
    path = config.getoption("--save-figures")
    if path:
        saved = {name: [asdict(one) for one in getattr(TABLE, name)] for name in ("figures", "times")}
        Path(path).write_text(json.dumps({"machine": machine, **saved}, indent=1) + "\n")
    if pages := config.getoption("--pages"):
        pictures.write(Path(pages), TABLE.figures, TABLE.times, machine)
