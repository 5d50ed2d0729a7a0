"""What can go wrong in a batch: the caller sees a named error or Ray's own, and the next batch is right.

On real Ray, through the reward loop and through the agent loop that scores in the loop.
"""

import asyncio
import copy
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import ray
from actors import release
from marks import slow_after
from ray.exceptions import RayActorError, RayTaskError
from this_verl import PADS_FOR_REWARD_WORKERS

from verl_ext import FieldCollisionError, MissingRewardError, NotSendableError, SparseDataProto
from verl_ext.demo import rig

pytestmark = pytest.mark.ray

SCORERS = Path(__file__).with_name("scorers.py")
ROWS = 8
AS_TOLD = [
    f"reward.custom_reward_function.path='{SCORERS}'",
    "reward.custom_reward_function.name=as_told",
    "reward.num_workers=2",
    "actor_rollout_ref.rollout.agent.num_workers=2",
]


class Paths:
    """Both managers, anew for each test that kills a worker, and the same rows for each batch."""

    def __init__(self, model_dir, rows, overrides=()):
        self.config = rig.compose_config(model_dir, [*AS_TOLD, *overrides])
        self.rows = rows[:ROWS]
        self.client = rig.RecordedClient(rows, self.config)
        self.start()

    def start(self):
        self.rewards = rig.reward_loop_manager(self.config)
        self.loops = rig.agent_loop_manager(self.config, self.client, self.rewards.reward_loop_workers)

    def release(self):
        release(self.loops)
        release(self.rewards)

    def told(self, **by_row):
        """The rows, some of which say what goes wrong with them."""
        rows = copy.deepcopy(self.rows)
        for row, wrong in by_row.pop("wrong", {}).items():
            rows[row]["extra_info"]["wrong"] = wrong
        for row in rows:
            row["extra_info"].update(by_row)
        return rows

    def reward_loop(self, rows):
        return self.rewards.compute_rm_score(rig.scored_batch(rows, self.config))

    def agent_loop(self, rows):
        return self.loops.generate_sequences(rig.prompt_batch(rows))


@pytest.fixture(scope="module")
def paths(model_dir, rows):
    paths = Paths(model_dir, rows)
    yield paths
    paths.release()


on_both_paths = pytest.mark.parametrize("path", ["reward_loop", "agent_loop"])


def columns(batch):
    return {key: batch.non_tensor_batch[key].tolist() for key in batch.meta_info["reward_extra_keys"]}


def assert_right(batch, rows):
    """Every row has what `conditional_keys` returns for it."""
    from scorers import conditional_keys

    found = columns(batch)
    for place, row in enumerate(rows):
        emitted = conditional_keys(None, None, None, row["extra_info"])
        emitted = emitted if isinstance(emitted, dict) else {"acc": emitted}
        assert {key: values[place] for key, values in found.items() if key in emitted} == emitted
        assert all(values[place] is None for key, values in found.items() if key not in emitted)


REFUSED = {
    "raises": (RayTaskError, "connection reset"),
    "returns None": (MissingRewardError, r"data source 'math_dapo', index 4 is None \(from .*as_told"),
    "returns a list": (MissingRewardError, r"data source 'math_dapo', index 4 is \[1\.0, 2\.0\] \(from .*as_told"),
    "returns text": (MissingRewardError, "data source 'math_dapo', index 4 is 'right'"),
    "returns a list that holds itself as the score": (MissingRewardError, r"index 4 is \[1\.0, \[\.\.\.\]\]"),
    "raises StopIteration": (
        MissingRewardError,
        r"raised StopIteration for a sample, data source 'math_dapo', index 4",
    ),
    **(
        {"raises CancelledError": (MissingRewardError, r"raised CancelledError for a sample, data source 'math_dapo'")}
        if sys.version_info >= (3, 11)  # before, a task does not tell whether it is being cancelled
        else {}
    ),
    "raises what does not come back": (
        NotSendableError,
        r"a CodedError \(500: judge down\) for a sample, data source 'math_dapo', index 4 .*TypeError: .*missing",
    ),
    "raises what does not pickle": (
        NotSendableError,
        r"a PicklingFailsError \(busy\) for a sample.* not to be pickled",
    ),
    "raises half a character": (NotSendableError, r"a ValueError \(\\ud800\) for a sample.* holds half a character"),
    "exits": (MissingRewardError, r"raised SystemExit for a sample, data source 'math_dapo', index 4 \(from .*as_told"),
    "is interrupted": (MissingRewardError, "raised KeyboardInterrupt for a sample, data source 'math_dapo', index 4"),
    "returns no score": (KeyError, "score"),
    "returns a lock": (
        NotSendableError,
        "reward key 'lock' of a sample, data source 'math_dapo', index 4 holds a lock",
    ),
    "returns a list of 900 levels": (NotSendableError, "reward key 'deep' of a sample.* holds a list .* recursion"),
    "returns a lock in a list": (NotSendableError, "reward key 'nested' of a sample.* holds a list"),
}
REFUSED_BY_VERL = {"returns a list", "returns text", "returns a list that holds itself as the score"}
"""Scores that the agent loop's own check of types refuses, which Ray hands on."""


@on_both_paths
@pytest.mark.parametrize("wrong", slow_after(6, REFUSED))
def test_a_scorer_that_goes_wrong_is_named_and_the_next_batch_is_right(wrong, path, paths):
    error, message = REFUSED[wrong]
    if path == "agent_loop" and wrong in REFUSED_BY_VERL:
        error, message = RayTaskError, "reward_score"
    rows = paths.told(wrong={4: wrong})
    assert rows[4]["data_source"] == "math_dapo"
    batch = rig.prompt_batch(rows) if path == "agent_loop" else rig.scored_batch(rows, paths.config)
    before = {**batch.non_tensor_batch}, dict(batch.meta_info)
    call = paths.loops.generate_sequences if path == "agent_loop" else paths.rewards.compute_rm_score
    with pytest.raises(error, match=message):
        call(batch)
    assert all(batch.non_tensor_batch[name] is column for name, column in before[0].items())
    verls_own = {"priority"} if path == "agent_loop" else set()
    assert {*batch.non_tensor_batch} - verls_own == {*before[0]} - verls_own
    assert batch.meta_info == before[1]
    assert_right(getattr(paths, path)(paths.rows), paths.rows)


@on_both_paths
@pytest.mark.parametrize(
    ("wrong", "key", "is_right"),
    [
        ("returns a list that holds itself", "knot", lambda value: value[0] == 1.0 and value[1] is value),
        ("returns a list of 400 levels", "deep", lambda value: depth(value) == 400),
        ("returns 10 MB of text", "text", lambda value: value == "x" * 10_000_000),
    ],
)
def test_a_list_that_holds_itself_which_ends_rays_process_on_stock_verl_and_large_values_arrive(
    wrong, key, is_right, path, paths
):
    batch = getattr(paths, path)(paths.told(wrong={2: wrong}))
    assert is_right(batch.non_tensor_batch[key][2])
    assert [value for row, value in enumerate(batch.non_tensor_batch[key]) if row != 2] == [None] * (ROWS - 1)


def depth(value):
    levels = 0
    while isinstance(value, list):
        value, levels = value[0], levels + 1
    return levels


@pytest.mark.slow
@on_both_paths
def test_10_mb_of_text_on_every_row_arrive(path, paths):
    batch = getattr(paths, path)(paths.told(wrong=dict.fromkeys(range(ROWS), "returns 10 MB of text")))
    assert batch.non_tensor_batch["text"].tolist() == ["x" * 10_000_000] * ROWS


@on_both_paths
def test_a_dict_that_a_thread_goes_on_writing_is_a_whole_row_or_rays_error(path, paths):
    try:
        batch = getattr(paths, path)(paths.told(wrong=dict.fromkeys(range(ROWS), "goes on writing")))
    except RayTaskError as error:
        assert "changed size during iteration" in str(error)
    else:
        assert batch.non_tensor_batch["acc"].tolist() == [1.0] * ROWS
    assert_right(getattr(paths, path)(paths.rows), paths.rows)


@pytest.mark.slow
@on_both_paths
def test_a_reward_worker_killed_in_the_midst_of_a_batch_is_rays_error_and_new_workers_go_on(path, paths):
    with pytest.raises((RayActorError, RayTaskError), match=r"died|unavailable|killed"):
        getattr(paths, path)(paths.told(wrong={5: "dies"}))
    paths.release()
    paths.start()
    assert_right(getattr(paths, path)(paths.rows), paths.rows)


def process_of(worker):
    return ray.get(worker.__ray_call__.remote(lambda self: os.getpid()))


@pytest.mark.slow
def test_an_agent_loop_worker_killed_in_the_midst_of_a_batch_is_rays_error_and_leaves_no_process(paths):
    workers = [*paths.loops.agent_loop_workers, *paths.rewards.reward_loop_workers]
    pids = [process_of(worker) for worker in workers]
    killer = threading.Timer(1.0, os.kill, [pids[0], signal.SIGKILL])
    killer.start()
    with pytest.raises(RayActorError):
        paths.agent_loop(paths.told(seconds=3.0))
    killer.join()
    for worker in workers:
        ray.kill(worker)
    assert until(lambda: not any(map(alive, pids))), "a process is left over"
    paths.start()
    assert_right(paths.agent_loop(paths.rows), paths.rows)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(holds, seconds=30):
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.1)
    return holds()


def test_a_deadline_that_cuts_a_batch_off_leaves_the_manager_as_it_was(paths):
    async def late():
        await asyncio.wait_for(paths.loops.generate_sequences(rig.prompt_batch(paths.told(seconds=5.0))), 0.5)

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(late())
    assert_right(paths.agent_loop(paths.rows), paths.rows)


class RewardModel:
    """A double for `RewardModelManager`: it counts how often its servers are woken, and put back to sleep."""

    def __init__(self, sleeps_badly=False):
        self.awake, self.woken, self.sleeps_badly = False, 0, sleeps_badly

    def wake_up(self):
        self.awake, self.woken = True, self.woken + 1

    def sleep(self):
        if self.sleeps_badly:
            raise ConnectionError("no answer")
        self.awake = False


@pytest.mark.parametrize("wrong", ["raises", "returns None", "returns a lock", "returns no score"])
def test_the_reward_model_is_put_back_to_sleep_where_stock_verl_leaves_it_awake(wrong, paths, stock, monkeypatch):
    models = [RewardModel() for _ in range(2)]
    monkeypatch.setattr(paths.rewards, "reward_model_manager", models[0])
    with pytest.raises(Exception):  # noqa: B017 - which one, others test
        paths.reward_loop(paths.told(wrong={4: wrong}))
    monkeypatch.setattr(paths.rewards, "reward_model_manager", models[1])
    with stock(), pytest.raises(Exception):  # noqa: B017
        paths.reward_loop(paths.told(wrong={4: wrong}))
    assert [(model.woken, model.awake) for model in models] == [(1, False), (1, True)]


def test_where_it_cannot_be_put_to_sleep_the_first_error_is_the_one_that_is_raised(paths, monkeypatch, caplog):
    monkeypatch.setattr(paths.rewards, "reward_model_manager", RewardModel(sleeps_badly=True))
    with pytest.raises(MissingRewardError):
        paths.reward_loop(paths.told(wrong={4: "returns None"}))
    assert "the reward model could not be put back to sleep" in caplog.text
    assert "no answer" in caplog.text


@pytest.mark.skipif(not PADS_FOR_REWARD_WORKERS, reason="verl scores unequal shares since 0.9")
def test_a_refused_batch_is_handed_on_neither_whole_nor_in_part(paths, rows):
    """A collision is found when all rows are there: what the caller holds is as it was, and can be scored again."""
    batch = rig.scored_batch(paths.rows[:3], paths.config)
    batch.batch["acc"] = batch.batch["responses"]
    with pytest.raises(FieldCollisionError, match="'acc'"):
        paths.rewards.compute_rm_score(batch)
    assert not isinstance(batch, SparseDataProto)
    assert "acc" not in batch.non_tensor_batch
    del batch.batch["acc"]
    assert_right(paths.rewards.compute_rm_score(batch), paths.rows[:3])
    assert isinstance(batch.non_tensor_batch["extra_info"], np.ndarray)
