"""Trials of verl's own functions on made-up rows: whether this verl has a fault that a patch is for, or does right.

A trial touches nothing but what it made up: what a function would get from Ray, or write to disk, is a stand-in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from verl_ext.plugin._site import UnknownVerlError, taught_by

MIXED_ROWS: tuple[dict[str, Any], ...] = ({}, {"found": 1.0})
"""Two samples, of which only the second has a key."""

ALIGNED = [None, 1.0]
"""The values of that key, when nothing is lost."""


def aligned(batch: Any) -> bool:
    """Whether a batch of those samples has them."""
    columns = batch.non_tensor_batch
    return "found" in columns and bool(columns["found"].tolist() == ALIGNED)


@functools.cache  # the same question is the same object: a site asks it once
def unless(works: Callable[[ModuleType], bool]) -> Callable[[ModuleType], bool]:
    """For `needed`: a patch is, unless a trial proves that verl does right by itself; also where the trial fails."""

    @functools.wraps(works)
    def needed(module: ModuleType) -> bool:
        try:
            return not works(module)
        except Exception:  # the fault itself, or code that the trial cannot run: the patch looks whether it knows it
            return True

    return needed


def verls_own(owner: Any, name: str) -> Any:
    """verl's own function at `owner.name`, whether it is taught by now or not.

    Raises:
        UnknownVerlError: another's function stands there, which must not be run for a trial.
    """
    function: Any = getattr(owner, name)
    while taught_by(function) is not None and function.__globals__["__name__"].startswith("verl_ext."):
        function = function.__wrapped__
    home = getattr(function, "__globals__", {}).get("__name__")
    if home is None or home != function.__module__:
        raise UnknownVerlError(f"{name} is not verl's own")
    return function


def seeing(function: Any, **stand_ins: Any) -> Any:
    """A copy of a function that sees `stand_ins` for names of its module, or for built-in ones."""
    namespace = {**function.__globals__, **stand_ins}
    return FunctionType(function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__)


def mentions(function: Any, *words: str) -> bool:
    """Whether a function's own code uses one of `words`, as a name or in a constant: the shape of what it does."""
    code = getattr(function, "__code__", None)
    found: set[Any] = set()
    todo = [] if code is None else [code]
    while todo:
        part = todo.pop()
        found.update(part.co_names)
        for constant in part.co_consts:
            if hasattr(constant, "co_code"):
                todo.append(constant)
            else:
                found.update(constant if isinstance(constant, tuple | frozenset) else (constant,))
    return any(word in found for word in words)
