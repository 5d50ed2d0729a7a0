"""What is put into a verl module that a patch site does not know, where values would be lost or gradients bent.

Batches that stock verl handles pass. At the first that it would not, an error names the site and the way out.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from verl_ext.column import RAW_COLUMN, ordered_keys
from verl_ext.errors import UnsupportedVerlError, shown
from verl_ext.plugin._site import Function, PatchSite, looks_at_its_caller

Places = Iterator[tuple[Any, str, Any]]


def refusing_mixed_rows(site: PatchSite, module: ModuleType) -> Places:
    """Look at the samples that pass through the functions of the module's classes, and those that it gets from Ray."""

    def check(samples: Iterable[Any]) -> None:
        rows = [row if isinstance(row, dict) else {} for row in samples]
        sparse = [key for key in ordered_keys(rows) if not all(key in row for row in rows)]
        if sparse:
            raise _unsupported(
                site,
                f"reward keys that not every sample of a batch has ({', '.join(map(shown, sparse[:8]))}) would be lost",
            )

    for cls in vars(module).values():
        if isinstance(cls, type) and cls.__module__ == module.__name__:
            for name, function in vars(cls).items():
                if isinstance(function, FunctionType) and not looks_at_its_caller(function):
                    yield cls, name, _watched(function, check)
    if "ray" in vars(module):
        yield module, "ray", _WatchedRay(module.ray, check)


def refusing_missing_components(site: PatchSite, module: ModuleType) -> Places:
    """Look at what the estimators registered as GDPO are given to make tensors of."""

    def check(values: Iterable[Any]) -> None:
        values = list(values)
        keys = next((keys for value in values if (keys := _components(value))), ())
        for value in values:
            for key in keys if isinstance(value, Mapping) else ():
                if key in value and any(one is None or one != one for one in np.asarray(value[key], object).ravel()):
                    raise _unsupported(
                        site, f"the reward component {shown(key)}, which some samples lack, would be NaN in advantages"
                    )

    for name, function in vars(module).items():
        registered = any(isinstance(held, dict) and held.get("gdpo") is function for held in vars(module).values())
        if registered and isinstance(function, FunctionType):
            yield module, name, _before(function, check)


def _unsupported(site: PatchSite, loss: str) -> UnsupportedVerlError:
    return UnsupportedVerlError(
        f"{loss}: {site.module} is not what this version of verl-ext knows ({site.detail}), so its patch site "
        f"{site.name!r} is off. Use a version of verl-ext that knows this verl; or accept what stock verl does there: "
        f"VERL_EXT_DISABLE={site.name} in the environment of the driver and the workers"
    )


def _components(value: Any) -> tuple[str, ...]:
    get = getattr(value, "get", None)
    return tuple(get("gdpo_reward_keys", None) or ()) if callable(get) else ()


def _before(function: Function, check: Any) -> Function:
    @functools.wraps(function)
    def checking(*args: Any, **kwargs: Any) -> Any:
        check([*args, *kwargs.values()])
        return function(*args, **kwargs)

    return checking


def _watched(function: Function, check: Any) -> Function:
    """The function, with a look at the samples in its result, and at those that it makes a batch of, or fails on."""

    def look(arguments: Iterable[Any], result: Any = None, failed: bool = False) -> None:
        check(_samples(result))
        if failed or hasattr(result, "non_tensor_batch"):
            for argument in arguments:
                check(_samples(argument, complete=True))

    @functools.wraps(function)
    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        try:
            result = await function(*args, **kwargs)
        except Exception:
            look([*args, *kwargs.values()], failed=True)
            raise
        look([*args, *kwargs.values()], result)
        return result

    @functools.wraps(function)
    def plain(*args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
        except Exception:
            look([*args, *kwargs.values()], failed=True)
            raise
        look([*args, *kwargs.values()], result)
        return result

    return coroutine if inspect.iscoroutinefunction(function) else plain


class _WatchedRay:
    """Ray as a module sees it, with a look at the samples that `get` brings."""

    def __init__(self, ray: Any, check: Any) -> None:
        self._ray, self._check = ray, check

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ray, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, ("ray",)  # in another process, Ray itself

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """As `ray.get`."""
        result = self._ray.get(*args, **kwargs)
        self._check(_samples(result))
        return result


def _samples(value: Any, complete: bool = False) -> Iterator[Any]:
    """The reward dicts of the samples in a value: of outputs of the reward loop or the agent loop, or of a batch.

    With `complete`, an output of the agent loop that has none counts as a sample without keys.
    """
    if isinstance(value, list | tuple):
        for item in value if value and not isinstance(value[0], int | float | str) else ():
            yield from _samples(item, complete)
    elif isinstance(value, dict) and RAW_COLUMN in value:
        yield value[RAW_COLUMN]
    elif isinstance(columns := getattr(value, "non_tensor_batch", None), dict):
        if RAW_COLUMN not in (value.meta_info.get("reward_extra_keys") or ()):  # else a reward key has that name
            yield from columns.get(RAW_COLUMN, ())
    elif isinstance(fields := getattr(value, "extra_fields", None), dict) and (complete or RAW_COLUMN in fields):
        yield fields.get(RAW_COLUMN)
