"""What stock verl and verl-ext make of one example each, of what is listed as different on purpose beside columns.

Everything here is verl's own code, on samples that are made up; `on_stock` tells which of the two acts.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from agent_loops_in_process import generated
from on_stock import on_stock
from outcomes import outcome

from verl_ext.plugin import SITES


def both(call: Callable[[], Any]) -> tuple[Any, Any]:
    """What `call` comes to on stock verl and with verl-ext, its error as text."""
    with on_stock():
        stock = outcome(call)
    return stock, outcome(call)


def of_samples(*rows: dict[Any, Any]) -> Callable[[], tuple[Any, Any]]:
    """The columns that the agent loop hands on."""
    return lambda: both(lambda: dict(generated([(row, {}) for row in rows]).non_tensor_batch))


def of_a_tensordict(*rows: dict[Any, Any]) -> Callable[[], tuple[Any, Any]]:
    """The TensorDict that the agent loop's batch becomes."""
    return lambda: both(lambda: list(generated([(row, {}) for row in rows]).to_tensordict().keys()))


def of_validation(**infos: list[Any]) -> Callable[[], tuple[Any, Any]]:
    """The metrics of one prompt's responses."""

    def metrics() -> Any:
        from verl.trainer.ppo.metric_utils import process_validation_metrics

        rows = len(next(iter(infos.values())))
        return process_validation_metrics(["source"] * rows, ["prompt"] * rows, infos)

    return lambda: both(metrics)


def of_a_dump(**infos: list[Any]) -> Callable[[], tuple[Any, Any]]:
    """The lines of a dump of the legacy trainer, of samples that earned 0.5."""
    trainer = import_module(SITES["trainer"]).RayPPOTrainer

    def lines() -> Any:
        if not hasattr(trainer, "_write_generations"):
            pytest.skip("verl 0.7 writes its dumps within the trainer's step")
        texts = [f"text {row}" for row in range(len(next(iter(infos.values()))))]
        with tempfile.TemporaryDirectory() as directory:
            trainer._write_generations(texts, texts, texts, [0.5] * len(texts), infos, directory, 1)
            return [json.loads(line) for line in (Path(directory) / "1.jsonl").read_text().splitlines()]

    return lambda: both(lines)
