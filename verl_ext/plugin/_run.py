"""The run of this process: verl makes one trainer in a process, whose settings and metrics hold wherever it calls."""

from __future__ import annotations

from verl_ext.plugin._site import warn_once
from verl_ext.reward_metrics import RewardMetrics
from verl_ext.settings import Settings


class Run:
    """The settings of a run, and the metrics of its reward keys so far."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = RewardMetrics(
            settings.metrics, settings.text_metrics, nan_is_missing=settings.nan == "missing", warn=warn_once
        )


_run = Run(Settings())


def begin(settings: Settings) -> None:
    """A trainer is made: a new run begins."""
    global _run
    _run = Run(settings)


def current() -> Run:
    """The run of the trainer that was made last in this process."""
    return _run
