"""The series of reward metrics by the plainest computation there is, over the dicts that scorers returned."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Sample = tuple[str, Mapping[str, Any]]
"""A data source, and the dict that the reward function returned."""


def series(steps: Sequence[Sequence[Sample]], *, every_key: bool = False) -> Iterator[dict[str, float]]:
    """What each step of a run is to log: of the keys that a sample has lacked by then, or of every key."""
    run: list[Sample] = []
    for step in steps:
        run = [*run, *step]
        sources = dict.fromkeys(source for source, _ in run)
        keys = dict.fromkeys(key for _, info in run for key, value in info.items() if isinstance(value, int | float))
        found = {}
        for key in keys:
            if every_key or any(key not in info for _, info in run):
                found |= moments(f"reward_extra/{key}", [info.get(key) for _, info in step])
                for source in sources if len(sources) > 1 else ():
                    values = [info.get(key) for place, info in step if place == source]
                    found |= moments(f"reward_extra/{source}/{key}", values)
        yield found


def moments(name: str, values: Sequence[float | None]) -> dict[str, float]:
    """The metrics of one key: of its values, `None` for a sample without one."""
    there = [float(value) for value in values if value is not None]
    metrics = {"count": len(there), "coverage": len(there) / len(values) if values else 0}
    if there:
        metrics |= {
            "mean": statistics.fmean(there),
            "std": statistics.pstdev(there),
            "min": min(there),
            "max": max(there),
        }
    return {f"{name}/{metric}": value for metric, value in metrics.items()}


def logged(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The reward metrics among all that a step logged."""
    return {name: value for name, value in metrics.items() if name.startswith("reward_extra/")}
