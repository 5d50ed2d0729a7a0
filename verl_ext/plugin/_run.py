"""A trainer's run: its settings and the metrics of its reward keys, for code of verl's that is handed no trainer."""

from __future__ import annotations

from typing import Any

from verl_ext.dump_fields import ABSTAINED
from verl_ext.names import Names
from verl_ext.plugin._site import warn_once
from verl_ext.reward_metrics import RewardMetrics
from verl_ext.settings import Settings


class Run:
    """The settings of a run, the metrics of its reward keys so far, and the names of its series in validation.

    Attributes:
        filter_metric: the reward key by which its trainer filters groups itself; `None` where it has no such filter.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.filter_metric: str | None = None
        self.metrics = RewardMetrics(
            settings.metrics,
            settings.text_metrics,
            nan_is_missing=settings.nan == "missing",
            abstained=ABSTAINED if settings.abstains else None,
            warn=warn_once,
        )
        self.validated: Names[tuple[Any, Any]] = Names()


_run = Run(Settings())

_RUN = "_verl_ext_run"
"""Attribute of a trainer: its run."""


def of(trainer: Any, config: Any = None) -> Run:
    """The run of a trainer, which is the current one from now on: a process may hold several trainers.

    Args:
        trainer: the run is an attribute of it, made the first time.
        config: verl's configuration, where the trainer has none yet.

    Raises:
        SettingsError: as `Settings.of`.
    """
    global _run
    run: Run | None = getattr(trainer, _RUN, None)
    if run is None:
        run = Run(Settings.of(trainer.config if config is None else config))
        setattr(trainer, _RUN, run)
    _run = run
    return run


def current() -> Run:
    """The run of the trainer that works in this process now."""
    return _run
