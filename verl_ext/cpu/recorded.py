"""A reward function that calls another, and keeps a line of each call: what was emitted, to compare with what arrives.

Of verl: `reward.custom_reward_function`, whose `path` names this file and whose `reward_kwargs` name the other.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any


def compute_score(*, function: str, log: str, **call: Any) -> Any:
    """The other function's result; for verl, which calls it by keywords."""
    with _Kept(log, call) as kept:
        kept.result = load_function(function)(**call)
        return kept.result


async def compute_score_async(*, function: str, log: str, **call: Any) -> Any:
    """The same for a coroutine function."""
    with _Kept(log, call) as kept:
        kept.result = await load_function(function)(**call)
        return kept.result


class _Kept:
    """Writes one line at its end: the data source, and the result's keys and what their values are."""

    def __init__(self, log: str, call: dict[str, Any]) -> None:
        self._log, self._source, self.result = log, call["data_source"], None

    def __enter__(self) -> _Kept:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, where: Any) -> None:
        line: dict[str, Any] = {"data_source": self._source}
        if error is not None:
            place = traceback.extract_tb(error.__traceback__)[-1]
            line["error"] = f"{type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})"
        elif isinstance(self.result, dict):
            line["keys"] = {str(key): kind_of(value) for key, value in self.result.items()}
        else:
            line["keys"] = {"acc": kind_of(self.result)}  # as verl's reward managers name it
        with open(self._log, "a") as file:
            file.write(json.dumps(line) + "\n")  # one write: lines of several processes do not mix


def number(value: Any) -> float | None:
    """The value as verl makes a reward of it; None where it cannot."""
    if isinstance(value, str):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def kind_of(value: Any) -> str:
    """What a value is to training: `none`, a `number` or `other`."""
    return "none" if value is None else "other" if number(value) is None else "number"


@cache
def load_function(function: str) -> Callable[..., Any]:
    """The function that `path:name` says.

    Raises:
        Whatever the file raises as it is run; AttributeError where it has no such function.
    """
    path, _, name = function.rpartition(":")
    spec = importlib.util.spec_from_file_location(f"verl_ext_cpu_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for dataclasses, which look there
    spec.loader.exec_module(module)
    found: Callable[..., Any] = getattr(module, name)
    return found
