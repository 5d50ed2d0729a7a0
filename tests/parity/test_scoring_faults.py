"""What a reward function raises: an ordinary exception is what it is on stock verl, anything else is named.

Ordinary is what verl and Ray carry: of the rest, some is never answered there, some ends a process, some names nothing.
"""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures
import inspect
import re
import sys
import threading
from contextlib import suppress
from typing import Any

import pytest
from in_process_actors import Loops, in_this_process
from marks import slow_after
from on_stock import on_stock
from sites import covers

from verl_ext import MissingRewardError, NotSendableError
from verl_ext.demo import rig

PATHS = ["reward loop", "agent loop"]
SINCE_3_11 = sys.version_info >= (3, 11)
FUNCTIONS = ["as_told", "as_told_by_a_coroutine"]


class JudgeError(Exception):
    """As users write it."""


class CodedError(Exception):
    """Pickles, and does not come back: its constructor takes more than its text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


class LockedError(Exception):
    def __init__(self) -> None:
        super().__init__("busy")
        self.lock = threading.Lock()


class UnpicklingEndsError(Exception):
    def __reduce__(self) -> tuple[Any, ...]:
        return sys.exit, (3,)


class PicklingFailsError(Exception):
    def __reduce__(self) -> tuple[Any, ...]:
        raise RuntimeError("not to be pickled")


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not to be said")


class OwnSignal(BaseException):
    """A user's own, which `except Exception` does not catch."""


class OwnStop(StopIteration):
    """Whose value a future would hand on as the score."""


def raising(error):
    def answer():
        raise error

    return answer


def endless():
    return endless()


def first_of_none():
    return next(found for found in [] if found)


def first_of_none_in_a_generator():
    return max(first_of_none() for _ in range(1))


def chained():
    try:
        raise KeyError("score")
    except KeyError as error:
        raise JudgeError("no score in the answer") from error


ORDINARY = {
    "ValueError": raising(ValueError("bad")),
    "KeyError": raising(KeyError("score")),
    "OSError": raising(FileNotFoundError(2, "No such file", "judge.json")),
    "UnicodeDecodeError": lambda: b"\xff".decode(),
    "of a user's own": raising(JudgeError("timeout after 3 s")),
    "chained": chained,
    "RecursionError": endless,
    "MemoryError": raising(MemoryError("no room")),
    "TimeoutError": raising(asyncio.TimeoutError("late")),
    "InvalidStateError": raising(concurrent.futures.InvalidStateError("done")),
    "StopAsyncIteration": raising(StopAsyncIteration("end")),
    "StopIteration in a generator": first_of_none_in_a_generator,
    "text in another script": raising(ValueError("Größe \N{GRINNING FACE}")),
    "a megabyte of text": raising(ValueError("x" * 2**20)),
}
if SINCE_3_11:
    ORDINARY["ExceptionGroup"] = raising(builtins.ExceptionGroup("two", [ValueError("a"), StopIteration("b")]))

NO_EXCEPTIONS = {
    "StopIteration": (first_of_none, "StopIteration"),
    "a subclass of StopIteration": (raising(OwnStop(1.0)), "OwnStop"),
    "SystemExit": (lambda: sys.exit(3), "SystemExit"),
    "KeyboardInterrupt": (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
    "GeneratorExit": (raising(GeneratorExit()), "GeneratorExit"),
    "a BaseException of a user's own": (raising(OwnSignal("stop")), "OwnSignal"),
}
if SINCE_3_11:  # before, a task does not tell whether it is being cancelled
    NO_EXCEPTIONS["CancelledError"] = (raising(asyncio.CancelledError()), "CancelledError")
    group = builtins.BaseExceptionGroup("two", [SystemExit(3), ValueError("a")])
    NO_EXCEPTIONS["BaseExceptionGroup"] = (raising(group), "BaseExceptionGroup")

LOST = {
    "does not come back": (raising(CodedError(500, "judge down")), r"CodedError \(500: judge down\)", "missing 1 req"),
    "comes back as the end of the driver": (
        raising(UnpicklingEndsError("x")),
        r"UnpicklingEndsError \(x\)",
        "SystemEx",
    ),
    "does not pickle": (raising(LockedError()), r"LockedError \(busy\)", "cannot pickle '_thread.lock'"),
    "raises when it is pickled": (raising(PicklingFailsError("x")), r"PicklingFailsError \(x\)", "not to be pickled"),
    "has no text": (raising(MuteError()), r"MuteError \(its text cannot be had \(RuntimeError\)\)", "its text cannot"),
    "has half a character": (raising(ValueError("\ud800")), r"ValueError \(\\ud800\)", "holds half a character"),
}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return rig.build_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=FUNCTIONS)
def loops(request, model_dir):
    with in_this_process():
        yield Loops(model_dir, request.param)


def raised(loops, path, answer):
    """What a batch of two comes to, of which the second sample's answer is this one."""
    answers = [lambda: {"score": 1.0}, answer]
    try:
        if path == "reward loop":
            return loops.rewards.compute_rm_score(loops.scored_batch(answers))
        return loops.rollouts.generate_sequences(loops.prompt_batch(answers))
    except BaseException as error:
        return error


def innermost(error):
    """Ray's error of an error of a task is of the same kind."""
    while hasattr(error, "cause"):
        error = error.cause
    return error


@covers("reward", "get_custom_reward_fn")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", slow_after(5, ORDINARY))
def test_an_ordinary_exception_is_what_it_is_on_stock_verl(loops, path, kind):
    ours = raised(loops, path, ORDINARY[kind])
    with on_stock():
        theirs = raised(loops, path, ORDINARY[kind])
    assert type(ours).__name__ == type(theirs).__name__
    assert type(innermost(ours)) is type(innermost(theirs))
    assert str(innermost(ours)) == str(innermost(theirs))
    assert str(ours).splitlines()[-1] == str(theirs).splitlines()[-1]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", NO_EXCEPTIONS)
def test_what_is_no_ordinary_exception_is_named_with_its_sample_and_the_next_batch_is_right(loops, path, kind):
    answer, name = NO_EXCEPTIONS[kind]
    error = raised(loops, path, answer)
    assert isinstance(error, MissingRewardError), error
    assert re.search(
        rf"raised {name} for a sample, data source 'told', index 1 \(from .*answers\.py:as_told", str(innermost(error))
    )
    assert "test_scoring_faults.py" in str(error), "where it was raised"
    batch = raised(loops, path, lambda: {"score": 0.5})
    assert batch.non_tensor_batch["score"].tolist() == [1.0, 0.5]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", LOST)
def test_an_exception_that_does_not_reach_another_process_is_named_with_its_sample(loops, path, kind):
    answer, name, reason = LOST[kind]
    error = raised(loops, path, answer)
    assert isinstance(error, NotSendableError), error
    assert re.search(rf"raised a {name} for a sample, data source 'told', index 1 .*{reason}", str(innermost(error)))
    assert "test_scoring_faults.py" in str(error), "where it was raised"


@pytest.fixture
def waiting(loops, monkeypatch):
    """verl's worker, a batch, and an event that is set when the worker waits for a judge that never answers."""

    async def never(data):
        waiting.set()
        await asyncio.Event().wait()

    waiting, worker = asyncio.Event(), loops.scorer._instance
    monkeypatch.setattr(worker.reward_manager, "run_single", never)
    return worker, loops.scored_batch([lambda: None]), waiting


def test_a_call_that_is_cancelled_is_cancelled(waiting):
    worker, batch, waits = waiting

    async def cancel():
        task = asyncio.create_task(worker.compute_score_batch(batch))
        await waits.wait()
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())


def test_a_deadline_is_a_deadline(waiting):
    worker, batch, _ = waiting
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(asyncio.wait_for(worker.compute_score(batch), 0.1))


def test_a_call_that_is_closed_with_its_loop_closes(waiting):
    worker, batch, waits = waiting
    loop = asyncio.new_event_loop()
    task = loop.create_task(worker.compute_score(batch))
    loop.run_until_complete(waits.wait())
    coroutine = task.get_coro()
    coroutine.close()
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    with suppress(asyncio.CancelledError, RuntimeError):  # what asyncio says of a task whose coroutine is gone
        task.cancel()
        loop.run_until_complete(task)
    loop.close()
