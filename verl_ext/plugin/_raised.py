"""What a reward function raises, on its way to the caller: an ordinary exception as it is, anything else by name.

On stock verl some of it is never answered: a future does not carry `StopIteration` out of a thread, `SystemExit` ends
an actor's event loop. And an exception that does not pickle ends the worker, one that does not come back names nothing.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

from verl_ext.errors import MissingRewardError, NotSendableError, VerlExtError, encodable
from verl_ext.plugin._sendable import said, why_not


class StoppedError(RuntimeError):
    """In the place of what ends generators, as Python makes a `RuntimeError` of it in a coroutine (PEP 479).

    Attributes:
        raised: the name of the exception that it stands for.
    """

    def __init__(self, raised: str) -> None:
        super().__init__(raised)
        self.raised = raised

    def __str__(self) -> str:
        return f"the reward function raised {self.raised}"


def answering(scorer: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a reward function returns, and raises; what a future does not carry as a `StoppedError`."""
    try:
        return scorer(*args, **kwargs)
    except (StopIteration, GeneratorExit) as error:
        raise StoppedError(type(error).__name__).with_traceback(error.__traceback__) from None


def as_named(error: BaseException, sample: str, scorer: str) -> VerlExtError | None:
    """The named error for what would not arrive as it is, with its traceback; or `None` for what does.

    Args:
        error: what the reward function raised.
        sample: for which sample, for the message.
        scorer: which reward function, for the message.
    """
    if isinstance(error.__cause__, StopIteration) and str(error) == "coroutine raised StopIteration":  # PEP 479
        error = error.__cause__
    about = f"for {sample} (from {scorer})"
    named: VerlExtError
    if (name := _no_ordinary_exception(error)) is not None:
        named = MissingRewardError(
            f"the reward function raised {name} {about}: return a score, or raise an ordinary exception"
        )
    elif (reason := _why_lost(error)) is not None:
        named = NotSendableError(
            f"the reward function raised a {type(error).__name__} ({said(error)}) {about}, which Ray cannot send to "
            f"another process: {reason}. Raise an exception of plain text"
        )
    else:
        return None
    return named.with_traceback(error.__traceback__)


def current_task() -> asyncio.Task[Any] | None:
    """The task that runs now, if there is one."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop is running
        return None


def comes_from_outside(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether a coroutine of `task` was cancelled or closed, and did not raise the error by itself."""
    if isinstance(error, asyncio.CancelledError):
        cancelling = getattr(task, "cancelling", None)  # Python 3.10 does not say
        return cancelling is None or cancelling() > 0
    return isinstance(error, GeneratorExit) and current_task() is not task


def _no_ordinary_exception(error: BaseException) -> str | None:
    """The name of what was raised, where that is no ordinary exception."""
    if isinstance(error, StoppedError):
        return error.raised
    ordinary = isinstance(error, Exception) and not isinstance(error, StopIteration)
    return None if ordinary else type(error).__name__


def _why_lost(error: BaseException) -> str | None:
    """Why Ray loses an exception, or dies of it; `None` where it does not."""
    try:
        str(error)
        told = "".join(traceback.format_exception(error))
    except BaseException as another:
        return f"its text cannot be had ({type(another).__name__})"
    return why_not(error) if encodable(told) else "its traceback holds half a character"
