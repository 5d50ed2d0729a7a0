"""verl's fully-async path: its rollouter finalizes each sample alone, its queue sends them, its trainer joins them."""

import asyncio
import contextlib
import json
from functools import partial

import numpy as np
import pytest
import ray
from actors import release
from planned import (
    QUESTIONS,
    REWARDS,
    answered,
    assert_bit_for_bit,
    assert_rows_hold,
    described,
    lost_keys,
    lost_or_raised,
    question,
    reward_columns,
    score,
)
from planned import rows_of as rows_of_plans
from verl import DataProto

from verl_ext import (
    FieldCollisionError,
    PluginMissingError,
    SparseDataProto,
    SparseNonTensor,
    assemble_reward_extra_info,
)
from verl_ext.demo import rig

fully_async = pytest.importorskip("fully_async", reason="verl 0.7 comes without the code of this trainer")

pytestmark = pytest.mark.ray

N = 2


# --- the surroundings --------------------------------------------------------------------------------------------


def interrupted_client(rows, config):
    """The recorded client, whose second answer to each prompt began with older weights than it ended with."""

    class Interrupted(rig.RecordedClient):
        async def generate(self, request_id, *, priority=0, **kwargs):
            output = await super().generate(request_id, priority=priority, **kwargs)
            output.extra_fields["max_global_steps"] += priority
            return output

    return Interrupted(rows, config, global_steps=fully_async.OLDEST_WEIGHTS)


@pytest.fixture(scope="module")
def config(model_dir):
    return rig.compose_config(model_dir, [*REWARDS, f"actor_rollout_ref.rollout.n={N}"])


@pytest.fixture(scope="module")
def manager(config, rows):
    """verl's fully-async manager of two agent-loop workers, whose samples one reward worker scores."""
    rewards = rig.reward_loop_manager(config)
    client = interrupted_client(answered(rows, N), config)
    manager = rig.fully_async_manager(config, client, rewards.reward_loop_workers)
    yield manager
    release(manager)
    release(rewards)


@pytest.fixture(scope="module")
def queue(config):
    with fully_async.message_queue(config) as client:
        yield client


@pytest.fixture
def rollout(config):
    """A function from rows to the rollout samples that verl's rollouter feeds, each for n answers to one row."""
    return partial(fully_async.rollout_samples, config=config)


@pytest.fixture
def train_on(manager, queue, config, rollout):
    """A function from rows to the trainer and its batch, by way of rollouter and queue."""

    async def travel(rows, at_once, balance):
        settings = config.copy()
        settings.trainer.balance_batch = balance
        trainer = fully_async.Trainer(settings, queue, len(rows))
        await fully_async.Rollouter(manager, queue).send(rollout(rows), at_once)
        return trainer, await trainer._fit_generate()

    def run(rows, at_once=False, balance=False):
        trainer, batch = asyncio.run(travel(rows, at_once, balance))
        return trainer, trainer._fit_compute_reward(batch)

    yield run
    asyncio.run(queue.clear_queue())


# --- what the samples earn ---------------------------------------------------------------------------------------

GSM8K = ("openai/gsm8k", [{"acc": 1.0}, {"acc": 0.0}])
MATH_DAPO = (
    "math_dapo",
    [{"score": 1.0, "acc": True, "pred": "22"}, {"score": -1.0, "acc": False, "pred": "[INVALID]"}],
)


def planned(*rewards):
    """What each answer to a question earns beside its score."""
    return ("planned", [{"score": 1.0, **reward} for reward in rewards])


def pairs(first, second, key="value"):
    return planned({key: first}, {key: second})


BIG = 2**53 + 1

MIXED = {
    "gsm8k first": (
        [GSM8K, MATH_DAPO],
        {
            "acc": ("float64", [1.0, 0.0, 1.0, 0.0]),
            "score": ("object", [None, None, 1.0, -1.0]),
            "pred": ("object", [None, None, "22", "[INVALID]"]),
        },
        "AssertionError",
    ),
    "math_dapo first": (
        [MATH_DAPO, GSM8K, MATH_DAPO],
        {
            "score": ("object", [1.0, -1.0, None, None, 1.0, -1.0]),
            "acc": ("float64", [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]),
            "pred": ("object", ["22", "[INVALID]", None, None, "22", "[INVALID]"]),
        },
        "AssertionError",
    ),
    "mixed within a sample": (
        [planned({"judge": "good"}, {"steps": 3}), planned({"steps": 1}, {"judge": "bad"})],
        {
            "score": ("float64", [1.0] * 4),
            "judge": ("object", ["good", None, None, "bad"]),
            "steps": ("object", [None, 3, 1, None]),
        },
        "KeyError",
    ),
    "a key that only a second answer has": (
        [planned({}, {"note": "late"}), planned({}, {"note": "later"})],
        {"score": ("float64", [1.0] * 4), "note": ("object", [None, "late", None, "later"])},
        ["note"],
    ),
    "the same keys in another order": (
        [planned({"a": 1, "b": 2}, {"a": 3, "b": 4}), planned({"b": 6, "a": 5}, {"b": 8, "a": 7})],
        {"score": ("float64", [1.0] * 4), "a": ("int64", [1, 3, 5, 7]), "b": ("int64", [2, 4, 6, 8])},
        "AssertionError",
    ),
    "a sample with no reward keys but the score's": (
        [planned({}, {}), pairs(1, 2)],
        {"score": ("float64", [1.0] * 4), "value": ("object", [None, None, 1, 2])},
        "AssertionError",
    ),
    "numbers in one sample, text in the other": (
        [pairs(42, 7), pairs("42", "x")],
        {"score": ("float64", [1.0] * 4), "value": ("object", [42, 7, "42", "x"])},
        ["value"],
    ),
    "an integer that no float holds, beside floats": (
        [pairs(BIG, 1), pairs(0.5, 1.5)],
        {"score": ("float64", [1.0] * 4), "value": ("object", [BIG, 1, 0.5, 1.5])},
        ["value"],
    ),
    "lists of another length in each sample": (
        [pairs([1, 2], [3, 4]), pairs([1], [2])],
        {"score": ("float64", [1.0] * 4), "value": ("object", [[1, 2], [3, 4], [1], [2]])},
        "ValueError",
    ),
    "lists in one sample, numbers in the other": (
        [pairs([1, 2], [3, 4]), pairs(5, 6)],
        {"score": ("float64", [1.0] * 4), "value": ("object", [[1, 2], [3, 4], 5, 6])},
        "ValueError",
    ),
    "NumPy scalars that one sample lacks": (
        [pairs(np.int8(1), np.float32(0.5)), planned({}, {})],
        {"score": ("float64", [1.0] * 4), "value": ("object", [1, 0.5, None, None])},
        "AssertionError",
    ),
    "narrow integers of two widths": (
        [pairs(np.int8(1), np.int8(2)), pairs(np.int16(300), np.int16(4))],
        {"score": ("float64", [1.0] * 4), "value": ("int64", [1, 2, 300, 4])},
        [],
    ),
}
"""Samples, each with what its n answers earn; the trainer's reward columns, written out by hand; what becomes of it on
stock verl: the exception, or the keys that lose values (none where only the dtype depends on the cut)."""

UNIFORM = {
    "gsm8k alone": [GSM8K, GSM8K],
    "math_dapo alone": [MATH_DAPO, MATH_DAPO],
    "bools in one sample, numbers in the other": [pairs(True, False), pairs(0.5, 2)],
    "narrow floats in one sample, wide ones in the other": [pairs(np.float32(0.1), np.float32(0.2)), pairs(0.1, 0.2)],
    "texts of other lengths": [pairs("a", "bc"), pairs("def", "")],
    "lists of one shape": [pairs([1, 2], [3, 4]), pairs([5, 6], [7, 8])],
    "None in one sample, numbers in the other": [pairs(None, 1.0), pairs(0.5, 0.25)],
    "dicts": [pairs({"a": 1}, {}), pairs({"b": [1, 2]}, {"a": None})],
    "keys named as columns that only the agent loop reads": [
        planned({"index": 5, "priority": 1}, {"index": 6, "priority": 2}),
        planned({"index": 7, "priority": 3}, {"index": 8, "priority": 4}),
    ],
}
"""Samples whose answers all have the same keys, with values that stock verl keeps."""


@pytest.fixture
def rows_of(rows):
    """A function from samples to rows."""
    return partial(rows_of_plans, rows)


def emissions(samples):
    return [info for _, rewards in samples for info in rewards]


# --- one sample --------------------------------------------------------------------------------------------------


def test_a_sample_leaves_the_rollouter_with_aligned_columns_and_no_trace_of_how_they_came(manager, rollout):
    (sample,) = rollout([question(0, [{"score": 1.0, "judge": "good"}, {"score": 0.0, "steps": [1, 2]}])])
    prompts = sample.full_batch
    meta_info, columns = dict(prompts.meta_info), list(prompts.non_tensor_batch)

    output = asyncio.run(manager.generate_sequences_single(prompts))

    assert reward_columns(output) == {
        "score": ("float64", [1.0, 0.0]),
        "judge": ("object", ["good", None]),
        "steps": ("object", [None, [1, 2]]),
    }
    assert output.batch["rm_scores"].sum(dim=1).tolist() == [1.0, 0.0]
    assert output.non_tensor_batch["reward_extra_info"].tolist() == [
        {"score": 1.0, "judge": "good"},
        {"score": 0.0, "steps": [1, 2]},
    ]
    assert not any(isinstance(column, SparseNonTensor) for column in output.non_tensor_batch.values())
    assert not [name for name in [*output.non_tensor_batch, *output.meta_info] if "verl_ext" in name]
    assert sorted(output.meta_info) == ["metrics", "reward_extra_keys"]
    assert (prompts.meta_info, list(prompts.non_tensor_batch)) == (meta_info, columns)


def test_a_reward_key_named_uid_which_the_rollouter_writes_later_is_refused_where_the_sample_is_generated(
    manager, queue, rollout
):
    (sample,) = rollout([question(0, [{"score": 1.0}, {"score": 0.0, "uid": "mine"}])])
    with pytest.raises(FieldCollisionError, match=r"'uid' \(first in row 1\)") as caught:
        asyncio.run(fully_async.Rollouter(manager, queue)._process_single_sample_streaming(sample))
    assert list(caught.value.collisions) == ["uid"]
    assert asyncio.run(queue.get_queue_size()) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "rewards",
    [
        pytest.param([{"score": 1.0}, {"score": 1.0}], id="uniform"),
        pytest.param([{"score": 1.0, "acc": 1}, {"score": 1.0}], id="a KeyError at the worker"),
        pytest.param([{"score": 1.0, "steps": [1]}, {"score": 1.0, "steps": [1, 2]}], id="a ValueError at the worker"),
    ],
)
def test_a_worker_without_the_plugin_is_a_named_error_whether_its_rows_are_uniform_or_mixed(
    rewards, manager, untaught_worker, rollout, monkeypatch
):
    monkeypatch.setattr(manager, "agent_loop_workers", [untaught_worker])
    monkeypatch.setattr(manager, "_worker_index", 0, raising=False)
    (sample,) = rollout([question(0, rewards)])
    with pytest.raises(PluginMissingError, match=r"1 of 1 workers .*worker 0 on node [\d.]+"):
        asyncio.run(manager.generate_sequences_single(sample.full_batch))


@pytest.fixture(scope="module")
def untaught_worker(manager, config):
    """An agent-loop worker whose process does not run the plugin."""
    remote = manager.agent_loop_workers_class.options(runtime_env={"env_vars": {"VERL_EXT_DISABLE": "1"}})
    worker = remote.remote(config, manager.llm_client, None, manager.reward_loop_worker_handles)
    yield worker
    ray.kill(worker)


# --- the batch that the trainer assembles ------------------------------------------------------------------------


@pytest.mark.parametrize("case", MIXED)
def test_samples_finalized_alone_give_the_trainer_the_batch_that_finalizing_all_rows_at_once_would_have_given(
    case, train_on, rows_of, manager, rollout, stock
):
    samples, by_hand, on_stock = MIXED[case]
    emitted = emissions(samples)

    trainer, batch = train_on(rows_of(samples))

    found = reward_columns(batch)
    assert (list(found), found) == (list(by_hand), by_hand)
    assert json.loads(json.dumps(found)) == {key: list(column) for key, column in found.items()}, (
        "a NumPy scalar is left"
    )
    assert found == {key: described(column) for key, column in assemble_reward_extra_info(emitted).items()}
    assert batch.non_tensor_batch["reward_extra_info"].tolist() == emitted
    assert not any(isinstance(column, SparseNonTensor) for column in batch.non_tensor_batch.values())
    assert list(trainer.reward_extra_infos_dict) == list(by_hand)
    assert trainer.reward_tensor.sum(dim=1).tolist() == [score(info) for info in emitted]

    whole = manager.generate_sequences(DataProto.concat([sample.full_batch for sample in rollout(rows_of(samples))]))
    assert reward_columns(whole) == found
    assert set(batch.non_tensor_batch) - set(whole.non_tensor_batch) == {"uid", "processing_times", "tool_calls_times"}
    for name in whole.non_tensor_batch:
        assert described(batch.non_tensor_batch[name]) == described(whole.non_tensor_batch[name])
    assert all(whole.batch[name].equal(batch.batch[name]) for name in whole.batch.keys())

    with stock():
        assert lost_or_raised(lambda: train_on(rows_of(samples))[1], emitted) == on_stock


MEASURED = ("processing_times", "tool_calls_times", "fully_async/processing_time/", "fully_async/total_wait_time")
"""How long things took: what differs from run to run."""


@pytest.mark.parametrize("case", UNIFORM)
def test_uniform_samples_give_the_trainer_bit_for_bit_the_batch_of_stock_verl(case, train_on, rows_of, stock):
    samples = UNIFORM[case]
    _, ours = train_on(rows_of(samples))
    with stock():
        _, theirs = train_on(rows_of(samples))

    assert isinstance(ours, SparseDataProto) and type(theirs) is DataProto
    assert lost_keys(theirs, emissions(samples)) == []
    assert_bit_for_bit(ours, theirs, MEASURED)


def test_the_trainers_statistics_are_those_of_all_samples_together(train_on, rows_of):
    trainer, batch = train_on(rows_of([GSM8K, MATH_DAPO, planned({}, {"note": 1})]))
    times = batch.non_tensor_batch["processing_times"]
    assert times.dtype == np.float64 and times.shape == (3 * N,) and times.min() > 0
    assert batch.non_tensor_batch["tool_calls_times"].tolist() == [0.0] * (3 * N)

    # The second answer of each sample began with older weights than it ended with.
    expected = {
        "trajectory_param_versions": [fully_async.OLDEST_WEIGHTS, fully_async.OLDEST_WEIGHTS + 1] * 3,
        "param_version_diversity": 2,
        "fully_async/partial/total_partial_num": 3,
        "fully_async/partial/partial_ratio": 0.5,
        "fully_async/partial/max_partial_span": 1,
        "fully_async/processing_time/avg": sum(times) / len(times),
        "fully_async/processing_time/max": max(times),
        "fully_async/processing_time/min": min(times),
        "fully_async/processing_time/tp50": np.median(times),
        "timing_s/agent_loop/tool_calls/max": 0.0,
        "fully_async/count/total_generated_samples": 0,  # as it stood when the first of the samples was sent
        "global_token_num": batch.batch["attention_mask"].sum(dim=1).tolist(),
    }
    found = {key: batch.meta_info[key] for key in expected}
    found["trajectory_param_versions"] = list(found["trajectory_param_versions"])
    assert found == {key: pytest.approx(value) for key, value in expected.items()}
    assert "metrics" not in batch.meta_info  # verl's assembly turns it into the columns of times
    assert trainer.metrics["fully_async/count/stale_trajectory_processed"] == 3
    assert trainer.metrics["fully_async/partial/total_partial_num"] == 3


def test_rows_that_the_trainer_reorders_keep_their_rewards(train_on, rows_of):
    samples = [MATH_DAPO, planned({}, {"note": 1}), GSM8K, pairs("a", None)]
    emitted = {
        (f"uid_sample_0_{number}", answer): info
        for number, (_, infos) in enumerate(samples)
        for answer, info in enumerate(infos)
    }

    _, batch = train_on(rows_of(samples), balance=True)

    uids = batch.non_tensor_batch["uid"].tolist()
    answers = [version - fully_async.OLDEST_WEIGHTS for version in batch.non_tensor_batch["max_global_steps"]]
    assert uids != sorted(uids), "the rows are in the order in which they came: this case proves nothing"
    ordered = [emitted[row] for row in zip(uids, answers, strict=True)]
    assert_rows_hold(batch, ordered)
    assert batch.non_tensor_batch["reward_extra_info"].tolist() == ordered


@pytest.mark.slow
def test_256_samples_in_flight_at_once_on_one_manager_keep_their_rows_apart(train_on):
    rewards = {
        f"uid_sample_0_{number}": [
            {"score": number / 256, f"only {number % 7}": f"sample {number}", "both": number},
            {"score": -number / 256, "both": -number} | ({"odd": [number]} if number % 2 else {}),
        ]
        for number in range(QUESTIONS)
    }
    _, batch = train_on([question(number, infos) for number, infos in enumerate(rewards.values())], at_once=True)

    uids = batch.non_tensor_batch["uid"][::N].tolist()  # in the order of their arrival
    assert sorted(uids) == sorted(rewards)
    assert batch.non_tensor_batch["uid"][1::N].tolist() == uids
    assert_rows_hold(batch, [info for uid in uids for info in rewards[uid]])


def test_requests_with_and_without_the_managers_mark_in_flight_at_once_do_not_disturb_each_other(
    manager, rollout, monkeypatch
):
    monkeypatch.setattr(manager, "agent_loop_workers", manager.agent_loop_workers[:1])
    monkeypatch.setattr(manager, "_worker_index", 0, raising=False)
    uniform = [{"score": 1.0, "acc": 1}, {"score": 0.0, "acc": 0}]
    mixed = [{"score": 1.0, "acc": 1}, {"score": 0.0}]
    plain, marked = (rollout([question(number, rewards) for number in range(16)]) for rewards in (uniform, mixed))
    (worker,) = manager.agent_loop_workers

    async def all_at_once():
        # a driver without the plugin asks the worker as the stock manager does
        theirs = [worker.generate_sequences.remote(sample.full_batch) for sample in plain]
        ours = await asyncio.gather(*(manager.generate_sequences_single(sample.full_batch) for sample in marked))
        return ours, await asyncio.gather(*theirs)

    ours, theirs = asyncio.run(all_at_once())
    assert [reward_columns(batch) for batch in ours] == [
        {"score": ("float64", [1.0, 0.0]), "acc": ("object", [1, None])}
    ] * 16
    assert [type(batch) for batch in theirs] == [DataProto] * 16
    assert [reward_columns(batch) for batch in theirs] == [
        {"score": ("float64", [1.0, 0.0]), "acc": ("int64", [1, 0])}
    ] * 16


# --- verl's dump and replay of rollouts --------------------------------------------------------------------------


@pytest.fixture
def dumping(config, tmp_path, monkeypatch):
    """verl's `SkipManager` writes the samples 0 and 1 to disk, and replays them."""
    skip = pytest.importorskip("verl.utils.skip", reason="verl dumps and replays rollouts since 0.9")
    for name in ("config", "step", "skip_instances"):
        monkeypatch.setattr(skip.SkipManager, name, getattr(skip.SkipManager, name))
    settings = config.copy()
    settings.skip.async_rollout.update({"enable": True, "dump_dir": str(tmp_path), "steps": [0, 1]})
    skip.SkipManager.init(settings)
    return tmp_path


def out_of_reach(*_):
    raise AssertionError("a worker was asked for what is on disk")


def test_mixed_samples_that_verl_dumped_give_the_trainer_the_same_batch_when_it_replays_them(
    train_on, rows_of, manager, dumping, monkeypatch
):
    samples, by_hand, _ = MIXED["gsm8k first"]
    _, generated = train_on(rows_of(samples))
    monkeypatch.setattr(manager, "_select_best_worker", out_of_reach)
    _, replayed = train_on(rows_of(samples))

    assert reward_columns(replayed) == by_hand
    assert list(replayed.non_tensor_batch) == list(generated.non_tensor_batch)
    for name, column in generated.non_tensor_batch.items():
        assert described(replayed.non_tensor_batch[name]) == described(column)
    assert all(replayed.batch[name].equal(tensor) for name, tensor in generated.batch.items())


@pytest.mark.parametrize("dumped_by_us", [True, False], ids=["dumped by us", "dumped by stock verl"])
def test_uniform_samples_that_were_dumped_with_the_plugin_replay_without_it_and_the_other_way_round(
    dumped_by_us, train_on, rows_of, manager, dumping, monkeypatch, stock
):
    samples = UNIFORM["math_dapo alone"]
    with contextlib.nullcontext() if dumped_by_us else stock():
        _, generated = train_on(rows_of(samples))
    monkeypatch.setattr(manager, "_select_best_worker", out_of_reach)
    with stock() if dumped_by_us else contextlib.nullcontext():
        _, replayed = train_on(rows_of(samples))

    assert reward_columns(replayed) == reward_columns(generated)
    assert set(replayed.non_tensor_batch) == set(generated.non_tensor_batch)
    assert lost_keys(replayed, emissions(samples)) == []


def test_a_sample_that_is_refused_is_not_dumped_so_that_the_mended_reward_function_is_asked_again(
    manager, rollout, dumping
):
    (broken,) = rollout([question(0, [{"score": 1.0, "uid": "mine"}] * N)])
    (mended,) = rollout([question(0, [{"score": 1.0, "reward_uid": "mine"}] * N)])
    for sample in (broken, mended):  # as the rollouter does, before it generates
        sample.full_batch.non_tensor_batch["uid"] = np.array([f"uid_{sample.sample_id}"] * N, dtype=object)
    with pytest.raises(FieldCollisionError):
        asyncio.run(manager.generate_sequences_single(broken.full_batch))
    assert list(dumping.rglob("gen_batch.dp")) == []
    output = asyncio.run(manager.generate_sequences_single(mended.full_batch))
    assert output.meta_info["reward_extra_keys"] == ["score", "reward_uid"]
    assert len(list(dumping.rglob("gen_batch.dp"))) == 1
