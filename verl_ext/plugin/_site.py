"""The one mechanism of the plugin: a patch site, what it wraps, what it expects of verl, how it is undone.

A site is a file of this package beside the verl module that it teaches. It declares patches; this module applies them
when verl imports that module, all or none, and keeps what is needed to take them back.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType
from typing import Any, TypeVar

log = logging.getLogger("verl_ext")

T = TypeVar("T")


@contextmanager
def holding(variable: ContextVar[T], value: T) -> Iterator[None]:
    """While the block runs, and what it calls or awaits, `variable` is `value`."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


_warned: set[object] = set()


def warn_once(what: object, message: str) -> None:
    """Log a warning, once per `what` and process: what is wrong with a run is wrong with all of its batches."""
    if what not in _warned:
        _warned.add(what)
        log.warning("verl-ext: %s", message)


Function = Callable[..., Any]


def binder(function: Function) -> Callable[..., inspect.BoundArguments]:
    """A function from the arguments of a call of `function` to what each of its parameters gets, defaults included."""
    signature = inspect.signature(function)

    def bind(*args: Any, **kwargs: Any) -> inspect.BoundArguments:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        return call

    return bind


_METHODS = (staticmethod, classmethod)
REST = "..."
"""Stands for the parameters that a patch hands on without looking at them."""

MARK = "__verl_ext_site__"
"""Attribute of every function that we put in the place of one of verl's: the name of its site."""


class State(str, Enum):
    """What became of a patch site in this process."""

    WAITING = "waiting"  # verl has not imported the module yet
    ACTIVE = "active"
    NOT_NEEDED = "not needed"  # this verl does all of it by itself
    DISABLED = "disabled"  # by VERL_EXT_DISABLE, or never activated
    UNKNOWN = "unknown"  # verl's code is not what the site was written for: stock behaviour, said loudly


class UnknownVerlError(Exception):
    """verl's code is not what a patch expects; the message says what was found. Never leaves the plugin."""


@dataclass(frozen=True)
class Patch:
    """One function of verl and what it is taught.

    Attributes:
        target: dotted name within the module, `Class.method` or `function`.
        parameters: the names of the parameters that verl's function has, in order; with `REST` at the end, those that
            it begins with, the others being handed on as they come.
        teach: from verl's function to ours; a coroutine function stays one.
        needed: whether verl's module has the fault that this patch is for, found out from the code that is there, not
            from a version number; `None` where there is nothing to find out.
        vital: whether values may be lost where verl has no such function: its module is unknown code then. Else the
            patch is left out, and the others of its site are applied.
    """

    target: str
    parameters: tuple[str, ...]
    teach: Callable[[Function], Function]
    needed: Callable[[Any], bool] | None = None
    vital: bool = True

    def owner(self, module: ModuleType) -> tuple[Any, str]:
        """What has the function as an attribute, a class or the module itself (`None` where that is not there)."""
        *path, name = self.target.split(".")
        owner: Any = module
        for part in path:
            owner = getattr(owner, part, None)
        return owner, name

    def is_absent(self, module: ModuleType) -> bool:
        """Whether what should have the function is there, and has no such attribute, not even by inheritance."""
        owner, name = self.owner(module)
        return owner is not None and not hasattr(owner, name)

    def locate(self, module: ModuleType) -> tuple[Any, str, Any, Function]:
        """The place of this patch, and the function there that it knows."""
        owner, name = self.owner(module)
        standing = getattr(owner, "__dict__", {}).get(name)
        if standing is None:
            raise UnknownVerlError(f"{self.target} is not there")
        function = standing.__func__ if isinstance(standing, _METHODS) else standing
        if not callable(function):
            raise UnknownVerlError(f"{self.target} is no function")
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            raise UnknownVerlError(f"{self.target} does not tell its parameters") from None
        # `ray.remote(cls)` writes its own parameters into the signatures of the class's functions.
        found = tuple(name for name in signature.parameters if not name.startswith("_ray_"))
        expected = self.parameters
        known = (*found[: len(expected) - 1], REST) if expected[-1:] == (REST,) else found
        if known != expected:
            raise UnknownVerlError(f"{self.target} takes ({', '.join(found)}), not ({', '.join(expected)})")
        return owner, name, standing, function


@dataclass
class PatchSite:
    """What one verl module is taught.

    Attributes:
        name: the file of this package, and the name in `VERL_EXT_DISABLE`.
        module: the verl module.
        purpose: what a user loses without it, in one line.
        requires: the sites that must stand for this one to stand.
        guard: what to put into a module that the site does not know, so that values are not lost there, nor gradients
            bent, without a word: triples of owner, attribute and what goes there. `None` where a warning is enough.
    """

    name: str
    module: str
    purpose: str
    state: State = State.DISABLED
    detail: str = ""
    requires: tuple[str, ...] = ()
    guard: Callable[[PatchSite, ModuleType], Iterable[tuple[Any, str, Any]]] | None = None
    _patches: list[Patch] = field(default_factory=list)
    _undo: list[tuple[Any, str, Any, Any]] = field(default_factory=list)
    _made: dict[Patch, tuple[Function, Function]] = field(default_factory=dict)

    def wraps(
        self, target: str, *parameters: str, needed: Callable[[Any], bool] | None = None, vital: bool = True
    ) -> Callable[[Callable[[Function], Function]], Patch]:
        """Declare a patch: the decorated function gets verl's function and returns ours."""

        def declare(teach: Callable[[Function], Function]) -> Patch:
            patch = Patch(target, parameters, teach, needed, vital)
            self._patches.append(patch)
            return patch

        return declare

    def apply(self, module: ModuleType) -> None:
        """Teach `module`, all patches or none. An error is reported, never raised into verl's import."""
        if self.state is not State.WAITING:
            return
        try:
            # Patches that hang together ask the same question, which may take a run of verl's own code: once.
            questions = dict.fromkeys(patch.needed for patch in self._patches)
            answers = {needed: needed is None or needed(module) for needed in questions}
            absent = [patch for patch in self._patches if not patch.vital and patch.is_absent(module)]
            wanted = [patch for patch in self._patches if answers[patch.needed] and patch not in absent]
            places = [(patch, *patch.locate(module)) for patch in wanted]
            for patch, owner, name, standing, function in places:
                if self._stands_under(patch, function):
                    continue
                if (holder := taught_by(function)) is not None:
                    raise UnknownVerlError(f"{patch.target} is taught already, by the site {holder!r}")
                taught = self._taught(patch, function)
                self._install(owner, name, type(standing)(taught) if isinstance(standing, _METHODS) else taught)
        except Exception as error:
            self.undo()
            unexpected = not isinstance(error, UnknownVerlError) or error.__cause__ is not None
            self.stay_off(module, str(error) or repr(error), exc_info=unexpected)
        else:
            reasons = {patch: "not there" if patch in absent else "not needed" for patch in self._patches}
            unneeded = [f"{patch.target} ({why})" for patch, why in reasons.items() if patch not in wanted]
            self.state = State.ACTIVE if wanted else State.NOT_NEEDED
            self.detail = ", ".join([*(patch.target for patch in wanted), *unneeded])

    def stay_off(self, module: ModuleType, why: str, exc_info: bool = False) -> None:
        """Leave `module` to stock verl, but guarded, and say so loudly."""
        self.state, self.detail = State.UNKNOWN, why
        log.warning(
            "verl-ext: %s is not what this version knows (%s). Its patch site %r stays off, so %s.",
            self.module,
            self.detail,
            self.name,
            self.purpose,
            exc_info=exc_info,
        )
        for owner, name, guarded in self.guard(self, module) if self.guard is not None else ():
            self._install(owner, name, guarded)

    def _install(self, owner: Any, name: str, new: Any) -> None:
        old = vars(owner)[name]
        self._undo.append((owner, name, old, new))
        _put(owner, name, old, new)

    def _stands_under(self, patch: Patch, function: Function | None) -> bool:
        """Whether somebody has wrapped what this patch made: it acts again when the site does."""
        _, taught = self._made.get(patch, (None, None))
        while function is not None and function is not taught:
            function = getattr(function, "__wrapped__", None)
        return function is not None

    def _taught(self, patch: Patch, function: Function) -> Function:
        # The same object each time: classes that Ray has decorated hold it, and pickle it by its name.
        stock, taught = self._made.get(patch, (None, None))
        if taught is None or stock is not function:
            taught = self._make(patch, function)
            self._made[patch] = function, taught
        return taught

    def _make(self, patch: Patch, function: Function) -> Function:
        try:
            taught = patch.teach(function)
        except Exception as error:  # such as a decorator of verl's that is not there any more
            raise UnknownVerlError(f"{patch.target} cannot be taught: {error!r}") from error
        if inspect.iscoroutinefunction(taught) != inspect.iscoroutinefunction(function):
            raise UnknownVerlError(f"{patch.target} changed between plain and coroutine function")
        taught = self._while_active(patch, taught, function)
        # A plain function under verl's own name, not a proxy object: it must pickle by reference.
        functools.update_wrapper(taught, function)
        setattr(taught, MARK, self.name)
        return taught

    def _while_active(self, patch: Patch, taught: Function, stock: Function) -> Function:
        """`taught`, that is `stock` whenever the site does not stand, or has made another since: others may hold it."""

        def acting(ours: Function) -> Function:
            return taught if self.state is State.ACTIVE and self._made[patch][1] is ours else stock

        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            return await acting(coroutine)(*args, **kwargs)

        def plain(*args: Any, **kwargs: Any) -> Any:
            return acting(plain)(*args, **kwargs)

        if inspect.iscoroutinefunction(taught):
            return coroutine
        return taught if looks_at_its_caller(stock) else plain

    def undo(self) -> None:
        """Put verl's own function objects back; where somebody has wrapped ours since, ours acts as stock from now."""
        for owner, name, standing, installed in reversed(self._undo):
            if vars(owner).get(name) is installed:
                _put(owner, name, installed, standing)
            else:
                log.info("verl-ext: %s.%s was wrapped by others, and acts as verl's own inside", owner.__name__, name)
        self._undo.clear()
        self.state, self.detail = State.DISABLED, ""


def _put(owner: Any, name: str, old: Any, new: Any) -> None:
    """Put `new` in the place of `old`, also where another module holds it by value, or a registry of its own module."""
    setattr(owner, name, new)
    if not isinstance(owner, ModuleType) or isinstance(old, ModuleType):
        return
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, new)
    for registry in [value for value in vars(owner).values() if isinstance(value, dict)]:
        for key in [key for key, value in registry.items() if value is old]:
            registry[key] = new


def looks_at_its_caller(function: Function) -> bool:
    """Whether it may be verl's `auto_await`, a plain function around a coroutine: no frame may come between."""
    return not inspect.iscoroutinefunction(function) and inspect.iscoroutinefunction(inspect.unwrap(function))


def taught_by(function: Any) -> str | None:
    """The name of the site whose function this is, or `None` for anybody else's."""
    return getattr(function, MARK, None)
