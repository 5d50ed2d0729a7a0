"""verl's reward loop and agent loop in this process: managers, workers, reward managers and tokenizers are its own.

Two doubles: `Actor` for Ray's actors, and `rig.RecordedClient` for the model server.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import ray
from answers import ANSWERS
from ray import cloudpickle
from ray.exceptions import RayTaskError

from verl_ext.demo import rig

PATIENCE = 30.0
"""Seconds after which an answer that never comes is given up; Ray would wait for ever."""


class Reply:
    """A double for Ray's object reference."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def future(self) -> Future[Any]:
        return self._future

    def __await__(self) -> Any:
        return asyncio.wait_for(asyncio.wrap_future(self._future), PATIENCE).__await__()


class Actor:
    """A double for an async actor of Ray's: an object in a thread and an event loop of its own.

    What goes in and comes out, an error too, is pickled as Ray pickles it.
    """

    def __init__(self, made: Callable[[], Any]) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._instance = asyncio.run_coroutine_threadsafe(_awaited(made), self._loop).result(PATIENCE)

    def __getattr__(self, name: str) -> Any:
        return _Method(lambda *args: getattr(self._instance, name)(*args), name, self._loop)

    @property
    def __ray_call__(self) -> Any:
        return _Method(lambda function, *args: function(self._instance, *args), "__ray_call__", self._loop)


class _Method:
    def __init__(self, function: Callable[..., Any], name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._function, self._name, self._loop = function, name, loop

    def remote(self, *args: Any) -> Reply:
        return Reply(asyncio.run_coroutine_threadsafe(self._answer(cloudpickle.dumps(args)), self._loop))

    async def _answer(self, request: bytes) -> Any:
        try:
            answer = await _awaited(lambda: self._function(*cloudpickle.loads(request)))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            told = "".join(traceback.format_exception(error))
            cause = error.cause if isinstance(error, RayTaskError) else error
            sent = cloudpickle.dumps(RayTaskError(self._name, told, cause, ip="127.0.0.1"))
            raise cloudpickle.loads(sent).as_instanceof_cause() from None
        return cloudpickle.loads(cloudpickle.dumps(answer))


async def _awaited(function: Callable[[], Any]) -> Any:
    found = function()
    return await found if asyncio.iscoroutine(found) else found


@contextmanager
def in_this_process() -> Any:
    """`ray.get` takes the answers of `Actor`s."""

    def get(replies: Any, timeout: float = PATIENCE) -> Any:
        if isinstance(replies, Reply):
            return replies.future().result(timeout)
        return [reply.future().result(timeout) for reply in replies]

    with mock.patch.object(ray, "get", get):
        yield


def row(index: int, **extra_info: Any) -> dict[str, Any]:
    """A row of verl's format, with the model's answer beside it."""
    return {
        "data_source": "told",
        "prompt": [{"role": "user", "content": f"question {index}"}],
        "ability": "none",
        "reward_model": {"style": "rule", "ground_truth": "none"},
        "extra_info": {"index": index, **extra_info},
        "response": f"answer {index}",
    }


class Loops:
    """verl's managers on actors of this process, whose reward function does what it is told."""

    def __init__(self, model_dir: Path, function: str = "as_told", *overrides: str, workers: int = 2) -> None:
        from verl.experimental.agent_loop.agent_loop import AgentLoopManager, AgentLoopWorker
        from verl.experimental.fully_async_policy.fully_async_rollouter import FullyAsyncAgentLoopManager
        from verl.experimental.reward_loop.reward_loop import RewardLoopManager, RewardLoopWorker

        self.config = config = rig.compose_config(
            model_dir,
            [
                f"reward.custom_reward_function.path='{Path(__file__).with_name('answers.py')}'",
                f"reward.custom_reward_function.name={function}",
                "data.max_prompt_length=64",
                "data.max_response_length=16",
                *overrides,
            ],
        )
        client = rig.RecordedClient([row(index) for index in range(ROWS)], config)
        scorers = [Actor(lambda: RewardLoopWorker(config, None)) for _ in range(workers)]
        loops = [Actor(lambda: AgentLoopWorker(config, client, None, scorers)) for _ in range(workers)]

        class Rewards(RewardLoopManager):  # type: ignore[misc]
            def _init_reward_loop_workers(self) -> None:
                self.reward_loop_workers = scorers

        def manager(cls: Any) -> Any:
            made = cls(config, client, reward_loop_worker_handles=scorers)
            made.agent_loop_workers = loops
            return made

        self.scorer, self.loop = scorers[0], loops[0]
        self.rewards = Rewards(config)
        self.rollouts, self.single_rollouts = manager(AgentLoopManager), manager(FullyAsyncAgentLoopManager)

    def scored_batch(self, answers: Sequence[Callable[[], Any]]) -> Any:
        """A batch to be scored, with these answers of the reward function."""
        ANSWERS.update(enumerate(answers))
        return rig.scored_batch([row(index) for index in range(len(answers))], self.config)

    def prompt_batch(self, answers: Sequence[Callable[[], Any]]) -> Any:
        """A batch of prompts, with these answers of the reward function to what is rolled out."""
        ANSWERS.update(enumerate(answers))
        return rig.prompt_batch([row(index) for index in range(len(answers))])


ROWS = 8
"""How many samples a batch may have."""
