"""What the trainers log of a step, whatever a scorer returns: verl's own functions beside ours."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from on_stock import on_stock
from outcomes import outcome, raised, spelled
from sites import covers
from values import FAMILIES, each_family

from verl_ext import plugin
from verl_ext.plugin import _run, _site
from verl_ext.schema import object_column

pytestmark = pytest.mark.filterwarnings("ignore")  # NumPy's and torch's, of what they make of such values

SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def plugin_is_on(monkeypatch):
    plugin.activate()
    monkeypatch.setattr(_site, "_warned", set())


WHICH = st.sampled_from(["sparse", "sparse", "all"])


def new_run(which):
    return _run.of(SimpleNamespace(config=OmegaConf.create({"verl_ext": {"metrics": which}})))


def reward_rows(family, count):
    """The dicts of `count` samples, by a scorer of one schema."""
    values = st.lists(FAMILIES[family], min_size=count, max_size=count)
    keys = st.sampled_from(["acc", "score", "pred", "reward", "reward/x", 3, None])
    return st.builds(
        lambda key, values, other: [{key: value, "other": number} for value, number in zip(values, other, strict=True)],
        keys,
        values,
        st.lists(st.floats(-1, 1), min_size=count, max_size=count),
    )


def assert_logs_what_stock_logs(ours, theirs, rows, run):
    """The same names and numbers; beside them only ours, where they are asked for or a value is missing."""
    assert not raised(theirs)
    assert {name: ours[name] for name in theirs} == theirs
    added = ours.keys() - theirs.keys()
    assert all(name.startswith("reward_extra/") for name in added)
    if run.settings.metrics == "sparse" and all(value is not None for row in rows for value in row.values()):
        assert not added


# --- the DataProto trainers ------------------------------------------------------------------------------------------


def stock_column(values):
    """What verl makes of the values of a key that every row has, where it can."""
    try:
        return np.array(values)
    except Exception:
        return object_column(values)


def batch_of(rows):
    """A trained batch, with the tensors that verl's metrics read."""
    from verl import DataProto

    count = len(rows)
    tokens = torch.arange(count * 3, dtype=torch.float32).reshape(count, 3)
    named = ["token_level_scores", "token_level_rewards", "advantages", "returns"]
    return DataProto.from_dict(
        tensors={
            **dict.fromkeys(named, tokens),
            "prompts": torch.ones(count, 2, dtype=torch.long),
            "responses": torch.ones(count, 3, dtype=torch.long),
            "response_mask": torch.ones(count, 3, dtype=torch.long),
            "attention_mask": torch.ones(count, 5, dtype=torch.long),
        },
        non_tensors={
            **{key: stock_column([row[key] for row in rows]) for key in rows[0]},
            "data_source": np.array(["a", "b"] * count, dtype=object)[:count],
        },
        meta_info={"reward_extra_keys": list(rows[0])},
    )


@covers("metrics", "compute_data_metrics")
@each_family()
@given(rows=st.data(), which=WHICH)
@settings(SETTINGS, max_examples=3)
def test_a_step_of_the_dataproto_trainers_logs_what_stock_logs(family, rows, which):
    from verl.trainer.ppo import metric_utils

    run = new_run(which)
    drawn = rows.draw(reward_rows(family, 3))

    def metrics():
        return metric_utils.compute_data_metrics(batch_of(drawn), use_critic=False)

    with on_stock():
        theirs = outcome(metrics)
    for _ in range(2):
        assert_logs_what_stock_logs(outcome(metrics), theirs, drawn, run)


# --- the v1 trainer --------------------------------------------------------------------------------------------------


@covers("trainer_v1", "PPOTrainer._compute_metrics")
@each_family()
@given(rows=st.data(), padding=st.booleans(), which=WHICH)
@settings(SETTINGS, max_examples=3)
def test_a_step_of_the_v1_trainer_logs_what_stock_logs(family, rows, padding, which):
    trainer_sync = pytest.importorskip("verl.trainer.ppo.v1.trainer_sync")
    from queue_in_memory import QueueInMemory
    from transfer_queue import KVBatchMeta

    drawn = rows.draw(reward_rows(family, 3))
    trainer = object.__new__(trainer_sync.PPOTrainerSync)
    trainer.config = OmegaConf.create(
        {"actor_rollout_ref": {"rollout": {}, "model": {}}, "trainer": {"n_gpus_per_node": 1, "nnodes": 1}}
    )
    trainer.use_critic, trainer._rollout_moe_lb_metrics_accumulator = False, None
    trainer._get_n_gpus_for_throughput = lambda: 1
    setattr(trainer, _run._RUN, run := new_run(which))
    queue = QueueInMemory()
    keys = [f"u_{session}_0" for session in range(len(drawn))]
    for key, row in zip(keys, drawn, strict=True):
        responses = torch.ones(3, dtype=torch.long)
        queue.partitions.setdefault("train", {})[key] = {
            "prompts": torch.ones(2, dtype=torch.long),
            "responses": responses,
            "response_mask": responses,
            **dict.fromkeys(["advantages", "returns", "rm_scores"], responses.float()),
            "num_turns": 2,
            "data_source": "a",
            "extra_fields": {"reward_extra_info": row},
        }
    tags = [{"min_global_steps": 0, "max_global_steps": 0} for _ in keys]
    tags[-1]["is_padding"] = padding

    def metrics():
        found = {}
        batch = KVBatchMeta(keys=keys, tags=tags, partition_id="train")
        with queue.in_place():
            trainer._compute_metrics(batch, found, {"step": 1.0}, global_steps=1, epoch=0)
        return found

    with on_stock():
        theirs = outcome(metrics)
    assert_logs_what_stock_logs(outcome(metrics), theirs, drawn, run)


# --- the fully-async trainer -----------------------------------------------------------------------------------------


@pytest.fixture
def utils():
    return pytest.importorskip("verl.experimental.fully_async_policy.detach_utils")


NAMES = ["actor/loss", "perf/time_per_step", "critic/score/max", "training/global_step", "reward/x", "timing_s/step"]
STEPS = st.lists(
    st.dictionaries(
        st.sampled_from(NAMES),
        st.integers(-3, 3) | st.floats(-2, 2) | st.floats(-2, 2).map(np.float32) | st.floats(-2, 2).map(torch.tensor),
    ),
    min_size=1,
    max_size=3,
)


@covers(
    "aggregator",
    "MetricsAggregator.add_step_metrics",
    "MetricsAggregator.get_aggregated_metrics",
    "MetricsAggregator.reset",
)
@each_family()
@given(steps=STEPS, rows=st.data(), which=WHICH)
@settings(SETTINGS, max_examples=3)
def test_several_steps_are_logged_as_one_as_stock_does(family, steps, rows, utils, which):
    from verl.trainer.ppo import metric_utils

    run = new_run(which)
    drawn = [rows.draw(reward_rows(family, 2)) for _ in steps]

    def aggregated():
        aggregator = utils.MetricsAggregator(total_gpus=1)
        for _ in range(2):
            for number, step in enumerate(steps):
                metrics = metric_utils.compute_data_metrics(batch_of(drawn[number]), use_critic=False)
                aggregator.add_step_metrics({**metrics, **step}, sample_count=number, timestamp=float(number))
            found = {
                "metrics": aggregator.get_aggregated_metrics(),
                "values": aggregator.metric_values,
                "counts": [aggregator.sample_counts, aggregator.timestamps, aggregator.step_count],
            }
            yield copy.deepcopy(found)
            aggregator.reset()
        yield [aggregator.get_aggregated_metrics(), aggregator.metric_values, aggregator.step_count]

    with on_stock():
        theirs = spelled(list(aggregated()))
    ours = spelled(list(aggregated()))
    of_one_schema = len({tuple(row) for rows in drawn for row in rows}) == 1
    every_row = [row for rows in drawn for row in rows] if of_one_schema else [{"acc": None}]
    for mine, verls in zip(ours[:2], theirs[:2], strict=True):
        assert mine["counts"] == verls["counts"]
        assert_logs_what_stock_logs(mine["metrics"], verls["metrics"], every_row, run)
    assert ours[2] == theirs[2]


@covers("aggregator", "RolloutSample.__init__", "assemble_batch_from_rollout_samples")
@each_family()
@given(rows=st.data(), balanced=st.booleans())
@settings(SETTINGS, max_examples=3)
def test_rollout_samples_become_the_batch_that_they_become_on_stock(family, rows, balanced, utils):
    drawn = rows.draw(reward_rows(family, 4))

    def assembled():
        samples = []
        for number, some in enumerate([drawn[:2], drawn[2:]]):
            batch = batch_of(some)
            uids = np.array([f"p{number}"] * 2, dtype=object)
            batch.non_tensor_batch.update(uid=uids, min_global_steps=np.zeros(2), max_global_steps=np.ones(2))
            batch.meta_info["metrics"] = [{"generate_sequences": 0.5, "tool_calls": 1.0}] * 2
            samples.append(utils.RolloutSample(batch, f"s{number}", epoch=0, rollout_status={"count": number}))
        fields = [(sample.sample_id, sample.epoch, sample.rollout_status) for sample in samples]
        seen = []
        balance = (lambda batch, metrics: seen.append((len(batch), metrics))) if balanced else None
        batch = utils.assemble_batch_from_rollout_samples(samples, None, None, balance)
        return [dict(batch.batch.items()), batch.non_tensor_batch, batch.meta_info, fields, seen]

    with on_stock():
        theirs = outcome(assembled)
    with on_stock(but="aggregator"):  # what `concat` makes of reward columns is compared where it is patched
        assert outcome(assembled) == theirs
