"""What came of a run: steps, reward, whether the weights moved, and which values were emitted and never arrived.

Of verl: the names of its metrics and the fields of its dumps.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from verl_ext.cpu.run import Run

if TYPE_CHECKING:
    from torch import Tensor

REWARD = "critic/score/mean"
"""verl's metric of the mean reward of a step, in both trainers."""

ENDS = 3
"""Steps over which the reward at the start and at the end is averaged."""

MARGIN = 0.3
"""By which the reward rises in a run that has learned; the built-in task begins at 0.1, and 1 is the most."""

OWN = frozenset({"input", "output", "gts", "score", "step"})
"""Fields that a line of verl's dump has anyway; a reward key of such a name is not told apart from them."""


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    run: Run
    rewards: tuple[float, ...]
    """The mean reward of each step that was logged."""

    moved: float | None
    """The largest change of any weight between the first sync and the last; None if none was trained on."""

    finite: bool
    """Whether each weight is a finite number after the last sync."""

    lost: dict[str, int]
    """By key, the values that a reward function returned and that no dump has."""

    emitted: int
    """Values that reward functions returned, `None` left out."""

    error: str
    """The exception that the run ended with, or ``""``."""

    @property
    def steps(self) -> int:
        """Steps that were done."""
        return len(self.rewards)

    @property
    def start(self) -> float:
        """The mean reward of the first steps; NaN if there was none."""
        return _mean(self.rewards[:ENDS])

    @property
    def end(self) -> float:
        """The mean reward of the last steps; NaN if there was none."""
        return _mean(self.rewards[-ENDS:])

    @property
    def learned(self) -> bool:
        """Whether the reward has risen by MARGIN."""
        return self.end > self.start + MARGIN


def outcome_of(run: Run, exit_code: int | None) -> Outcome:
    """Read what a run that has ended left behind."""
    logged = run.logged()
    rewards = tuple(float(step[REWARD]) for step in logged if REWARD in step)
    versions = synced(run.weights)
    moved, finite = None, True
    if versions:
        first, last = weights(versions[0]), weights(versions[-1])
        finite = all(bool(tensor.isfinite().all()) for tensor in last.values())
        if len(versions) > 1:
            moved = max(float((last[name] - first[name]).abs().max()) for name in first)
    emitted: Counter[str] = Counter()
    for line in run.emitted_lines():
        emitted.update(key for key, kind in line.get("keys", {}).items() if kind != "none" and key not in OWN)
    arrived: Counter[str] = Counter()
    for line in (*run.dumped(), *run.validated()):
        arrived.update(key for key, value in line.items() if value is not None and key not in OWN)
    lost = {key: count - arrived[key] for key, count in emitted.items() if count > arrived[key]}
    error = "" if exit_code == 0 else run.error()
    return Outcome(run, rewards, moved, finite, lost, sum(emitted.values()), error)


def synced(directory: Path) -> list[Path]:
    """The versions of the weights that were synced, in order."""
    return sorted(directory.glob("*.pt"), key=lambda path: int(path.stem)) if directory.exists() else []


def weights(version: Path) -> dict[str, Tensor]:
    """The weights of a version, by name."""
    import torch

    loaded: dict[str, Tensor] = torch.load(version, weights_only=True)
    return loaded


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values) if values else math.nan
