"""verl's own `RewardLoopManager.compute_rm_score` on real Ray workers, with the plugin and on stock verl."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import ray
from actors import give_back, of_version
from marks import slow_after
from this_verl import PADS_FOR_REWARD_WORKERS

from verl_ext import FieldCollisionError, MissingRewardError, PluginMissingError, SparseDataProto
from verl_ext.demo import rig

SCORERS = Path(__file__).with_name("scorers.py")

pytestmark = pytest.mark.ray

ROWS = 16 if PADS_FOR_REWARD_WORKERS else 12
"""How many are scored by one, two or three workers."""

unequal_shares = pytest.mark.skipif(not PADS_FOR_REWARD_WORKERS, reason="verl scores unequal shares since 0.9")


def custom(function):
    return [f"reward.custom_reward_function.path='{SCORERS}'", f"reward.custom_reward_function.name={function}"]


def own_manager(name):
    return [
        "reward.reward_manager.source=importlib",
        f"reward.reward_manager.name={name}",
        f"reward.reward_manager.module.path='{SCORERS}'",
    ]


OVERLONG = [
    "reward.reward_manager.name=dapo",
    "+reward.reward_kwargs.overlong_buffer_cfg.enable=true",
    "+reward.reward_kwargs.overlong_buffer_cfg.len=64",
    "+reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=1.0",
    "+reward.reward_kwargs.overlong_buffer_cfg.log=true",
    "+reward.reward_kwargs.max_resp_len=96",
]
LIMITED = ["reward.reward_manager.name=rate_limited", "+reward.max_concurrent=16", "+reward.timeout=1.0"]

MIXED = {
    "naive, one worker": ["reward.num_workers=1"],
    "naive, three workers": ["reward.num_workers=3"],
    "dapo": ["reward.reward_manager.name=dapo"],
    "dapo with the overlong buffer": OVERLONG,
    "gdpo": ["reward.reward_manager.name=gdpo"],
    "rate limited, with time-outs and exceptions": [*LIMITED, *custom("slow_or_broken")],
    "a custom function from a file": custom("conditional_keys"),
    "a manager that sometimes returns no extra info": own_manager("SometimesWithoutExtraInfo"),
}


@pytest.fixture
def manage(model_dir):
    """A function from overrides to (manager, config)."""
    with ExitStack() as after:

        def start(overrides):
            config = rig.compose_config(model_dir, overrides)
            manager = rig.reward_loop_manager(config)
            after.callback(give_back, [*manager.reward_loop_workers])
            return manager, config

        yield start


def emitted(manager, rows, config):
    """What the scorers return for each row: asked of one worker, without any manager in between."""
    outputs = ray.get(manager.reward_loop_workers[0].compute_score_batch.remote(rig.scored_batch(rows, config)))
    return [output.get("reward_extra_info") or {} for output in outputs], [o["reward_score"] for o in outputs]


def missing_values(columns, infos):
    """The (row, key, value) that are not in the columns, by the plainest comparison there is."""
    gone = []
    for row, info in enumerate(infos):
        for key, value in info.items():
            found = columns[key][row] if key in columns else "no such column"
            found = found.tolist() if isinstance(found, np.ndarray | np.generic) else found
            if found != value or isinstance(found, str) != isinstance(value, str):
                gone.append((row, key, value))
    return gone


def rotations(rows):
    """The same rows, each data source first once."""
    return [[*rows[shift:], *rows[:shift]] for shift in range(3)]


@pytest.mark.parametrize("case", slow_after(2, MIXED))
def test_mixed_rows_arrive_whole_in_any_order_where_stock_verl_fails_or_loses_some(case, manage, rows, stock):
    manager, config = manage(MIXED[case])
    stock_outcomes = []
    for ordered in rotations(rows[:ROWS]):
        infos, scores = emitted(manager, ordered, config)
        assert len({tuple(info) for info in infos}) > 1, "the rows are not mixed"

        scored = manager.compute_rm_score(rig.scored_batch(ordered, config))

        assert missing_values(scored.non_tensor_batch, infos) == []
        assert scored.meta_info["reward_extra_keys"] == list(dict.fromkeys(key for info in infos for key in info))
        assert set(scored.non_tensor_batch) == set(scored.meta_info["reward_extra_keys"])
        for key, column in scored.non_tensor_batch.items():
            assert [column[row] for row, info in enumerate(infos) if key not in info] == [None] * sum(
                key not in info for info in infos
            )
        assert scored.batch["rm_scores"].sum(dim=1).tolist() == pytest.approx([float(score) for score in scores])

        with stock():
            try:
                reply = manager.compute_rm_score(rig.scored_batch(ordered, config))
                stock_outcomes.append(missing_values(reply.non_tensor_batch, infos))
            except KeyError as error:
                stock_outcomes.append(error)
    assert all(stock_outcomes), "stock verl kept every value: this case proves nothing"


@pytest.mark.parametrize("count", [pytest.param(1, marks=unequal_shares), 2, pytest.param(5, marks=unequal_shares), 6])
def test_uniform_rows_come_out_bit_for_bit_as_on_stock_verl(count, manage, rows, stock):
    manager, config = manage([*custom("one_schema"), "reward.num_workers=2"])
    ours = manager.compute_rm_score(rig.scored_batch(rows[:count], config))
    with stock():
        theirs = manager.compute_rm_score(rig.scored_batch(rows[:count], config))

    assert isinstance(ours, SparseDataProto)
    assert list(ours.non_tensor_batch) == list(theirs.non_tensor_batch)
    for key, column in theirs.non_tensor_batch.items():
        assert ours.non_tensor_batch[key].dtype == column.dtype
        assert ours.non_tensor_batch[key].tolist() == column.tolist()
    assert ours.meta_info == theirs.meta_info
    assert list(ours.batch.keys()) == list(theirs.batch.keys())
    assert ours.batch["rm_scores"].equal(theirs.batch["rm_scores"])


def test_a_reward_without_extra_info_gives_no_columns(manage, rows):
    manager, config = manage(own_manager("WithoutExtraInfo"))
    scored = manager.compute_rm_score(rig.scored_batch(rows[:4], config))
    assert scored.non_tensor_batch == {}
    assert scored.meta_info == {"reward_extra_keys": []}
    assert scored.batch["rm_scores"].sum(dim=1).tolist() == [0.25] * 4


@pytest.mark.skipif(PADS_FOR_REWARD_WORKERS, reason="verl scores unequal shares since 0.9")
def test_rows_that_the_workers_cannot_share_equally_are_the_error_that_they_are_on_stock_verl(manage, rows):
    manager, config = manage(["reward.num_workers=2"])
    with pytest.raises(AssertionError, match=r"only support equal chunk\. Got size of DataProto 3 and chunk 2"):
        manager.compute_rm_score(rig.scored_batch(rows[:3], config))


def test_a_batch_of_0_rows_gives_0_scores_where_stock_verl_raises(manage, rows, stock):
    manager, config = manage(["reward.num_workers=1"])
    none = rig.scored_batch(rows[:1], config)[0:0]
    scored = manager.compute_rm_score(none)
    assert scored.batch["rm_scores"].shape == (0, config.data.max_response_length)
    assert scored.meta_info == {"reward_extra_keys": []}
    with stock(), pytest.raises((RuntimeError, IndexError)):
        manager.compute_rm_score(none)


def test_the_callers_batch_is_left_as_it_was(manage, rows):
    manager, config = manage(["reward.num_workers=1"])
    batch = rig.scored_batch(rows[:4], config)
    batch.meta_info["global_steps"] = 3
    columns = list(batch.non_tensor_batch)
    manager.compute_rm_score(batch)
    assert batch.meta_info == {"global_steps": 3}
    assert list(batch.non_tensor_batch) == columns


def test_a_reward_key_that_names_a_tensor_of_the_batch_is_refused_by_name(manage, rows):
    manager, config = manage(custom("names_a_tensor"))
    with pytest.raises(FieldCollisionError, match=r"'responses' .*row 0.* a tensor of the batch that was scored"):
        manager.compute_rm_score(rig.scored_batch(rows[:2], config))


def test_a_score_of_none_is_a_named_error_with_the_data_source_the_index_and_the_scorer(manage, rows, stock):
    manager, config = manage([*custom("sometimes_no_score"), "reward.num_workers=2"])
    message = r"score of row \d of \d, data source 'math_dapo', index 4 is None \(from .*scorers.py:sometimes_no_score"
    with pytest.raises(MissingRewardError, match=message):
        manager.compute_rm_score(rig.scored_batch(rows[:6], config))
    with stock(), pytest.raises(TypeError):
        manager.compute_rm_score(rig.scored_batch(rows[:6], config))


@pytest.fixture(scope="module")
def untaught_worker(model_dir):
    """A reward worker whose process does not run the plugin."""
    from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

    remote = ray.remote(RewardLoopWorker).options(runtime_env={"env_vars": {"VERL_EXT_DISABLE": "1"}})
    worker = remote.remote(rig.compose_config(model_dir), None)
    yield worker
    ray.kill(worker)


@pytest.mark.slow
@pytest.mark.parametrize("untaught", [[0], [1], [0, 1]])
def test_a_worker_without_the_plugin_is_a_named_error_that_says_where_it_runs(untaught, untaught_worker, manage, rows):
    manager, config = manage(["reward.num_workers=2"])
    for place in untaught:
        manager.reward_loop_workers[place] = untaught_worker
    with pytest.raises(PluginMissingError, match=rf"{len(untaught)} of 2 .*worker {untaught[0]} on node [\d.]+"):
        manager.compute_rm_score(rig.scored_batch(rows[:6], config))


def test_a_worker_of_another_version_is_a_named_error(manage, rows):
    manager, config = manage(["reward.num_workers=1"])
    with (
        of_version(manager.reward_loop_workers[0], "0.0.1"),
        pytest.raises(PluginMissingError, match=r"1 of 1 workers run verl-ext '0\.0\.1': worker 0 on node"),
    ):
        manager.compute_rm_score(rig.scored_batch(rows[:2], config))


@pytest.mark.slow
def test_a_worker_class_that_replaces_the_method_keeps_stock_behaviour_and_is_not_taken_for_a_missing_plugin(
    manage, rows, caplog
):
    from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

    class OwnWorker(RewardLoopWorker):
        async def compute_score_batch(self, data):
            return [{"reward_score": 1.0, "reward_extra_info": {"mine": row}} for row in range(len(data))]

    manager, config = manage(["reward.num_workers=1"])
    manager.reward_loop_workers = [ray.remote(OwnWorker).remote(config, None)]
    scored = manager.compute_rm_score(rig.scored_batch(rows[:3], config))
    assert scored.non_tensor_batch["mine"].tolist() == [0, 1, 2]
    assert "compute_score_batch of their own" in caplog.text


@pytest.mark.slow
def test_what_a_worker_class_adds_to_the_answer_of_verls_own_method_arrives(manage, rows):
    from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

    class Timed(RewardLoopWorker):
        async def compute_score(self, data):
            answer = await super().compute_score(data)
            answer["reward_extra_info"].update(latency=1.5)
            if "steps" in answer["reward_extra_info"]:
                answer["reward_extra_info"]["steps"].append(99)
            return answer

    manager, config = manage([*custom("conditional_keys"), "reward.num_workers=1"])
    manager.reward_loop_workers = [ray.remote(Timed).remote(config, None)]
    scored = manager.compute_rm_score(rig.scored_batch(rows[:6], config))
    assert scored.non_tensor_batch["latency"].tolist() == [1.5] * 6
    assert scored.non_tensor_batch["steps"].tolist() == [None, [0.1, 99], None, None, None, [0.1, 0.1, 99]]


def test_a_score_that_stock_verl_takes_is_taken_also_in_the_midst_of_a_batch(manage, rows):
    manager, config = manage([*custom("arrays_as_scores"), "reward.num_workers=1"])
    scored = manager.compute_rm_score(rig.scored_batch(rows[:4], config))
    assert scored.batch["rm_scores"].sum(dim=1).tolist() == [0.0, 1.5, 3.0, 4.5]


def test_a_driver_without_the_plugin_never_sees_an_envelope(manage, rows, stock):
    manager, config = manage(["reward.num_workers=2"])
    gsm8k = [row for row in rows if row["data_source"] == "openai/gsm8k"][:4]
    with stock():
        reply = manager.compute_rm_score(rig.scored_batch(gsm8k, config))
    assert list(reply.non_tensor_batch) == ["acc"]
    assert reply.non_tensor_batch["acc"].dtype == np.float64
