"""verl's own `AgentLoopManager.generate_sequences` on real Ray workers, with the plugin and on stock verl."""

import asyncio
import copy
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import agent_loops
import numpy as np
import pytest
import ray
import rollouts
from actors import of_version, release
from marks import slow_after
from omegaconf import OmegaConf
from oracle import keys_of
from rollouts import emitting, lost, lost_or_raised, prompts, up_to_extra_fields
from verl import DataProto
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker

from verl_ext import BatchMismatchError, FieldCollisionError, PluginMissingError, SparseDataProto, SparseNonTensor
from verl_ext.demo import rig

pytestmark = pytest.mark.ray

SPLITS = {
    "all schemas in each worker": ("gsm8k dapo odd nothing", "gsm8k dapo odd nothing"),
    "one schema per worker": ("gsm8k gsm8k", "dapo dapo", "odd odd"),
    "a first worker whose rows emit nothing": ("nothing nothing", "dapo dapo"),
    "a last worker whose rows emit nothing": ("dapo dapo", "nothing nothing"),
    "a row whose dict is None": ("gsm8k none", "gsm8k gsm8k"),
    "more workers than schemas": ("gsm8k gsm8k", "gsm8k dapo", "dapo dapo"),
    "one worker, the short schema first": ("gsm8k dapo",),
    "one worker, the long schema first": ("dapo gsm8k",),
}
UNIFORM = {
    "one worker": ("plain plain plain",),
    "three workers": ("plain plain", "plain plain", "plain plain"),
    "verl's own scorer": ("dapo dapo", "dapo dapo"),
    "rows that emit nothing": ("nothing nothing", "nothing nothing"),
}
training_and_validation = pytest.mark.parametrize(
    "validate", slow_after(1, [False, True]), ids=["training", "validation"]
)


@pytest.fixture(scope="module")
def loops(model_dir, rows):
    loops = rollouts.Rollouts(model_dir, rows, workers=3)
    yield loops
    loops.release()


def started(worker_class, env=None):
    """A fixture: one more worker, of a class or in an environment of its own."""

    @pytest.fixture(scope="module")
    def worker(loops):
        worker = loops.start(worker_class, env)
        yield worker
        ray.kill(worker)

    return worker


super_caller = started(agent_loops.CallsSuper)
replacer = started(agent_loops.ReplacesPostprocess)
adopter = started(agent_loops.AdoptsColumn)
untaught = started(agent_loops.AgentLoopWorker, {"VERL_EXT_DISABLE": "1"})


class Way:
    """A way in which samples come to their rewards: which agent loop runs, and who scores in it."""

    def __init__(self, agent=None, in_loop=False, scored=True):
        self.agent, self.in_loop, self.scored = agent, in_loop, scored

    def prepare(self, loops, rows, workers, validate=False):
        """A manager, a batch for it, and what is emitted and scored for each row."""
        infos, scores = loops.emitted(rows) if self.scored else ([None] * len(rows), None)
        if self.agent:
            rows = [emitting(row, info, score) for row, info, score in zip(rows, infos, scores, strict=True)]
        manager = loops.manager(workers, scorers=loops.scorers if self.in_loop else ())
        return manager, prompts(rows, agent=self.agent, validate=validate), infos, scores


IN_THE_LOOP = Way(in_loop=True)
BY_ITSELF = Way(agent="scores_itself")
NOT_AT_ALL = Way(scored=False)
scored = pytest.mark.parametrize("way", [IN_THE_LOOP, BY_ITSELF], ids=["in the loop", "by the agent loop itself"])


def assert_whole(output, rows, infos, scores, loops):
    """Every emitted value stands at its row, and all else is there as verl makes it."""
    columns = output.non_tensor_batch
    assert lost(columns, infos) == []
    keys = keys_of(infos)
    for key in keys:
        absent = [row for row, info in enumerate(infos) if key not in (info or {})]
        assert [columns[key][row] for row in absent] == [None] * len(absent)
    assert output.meta_info["reward_extra_keys"] == keys
    assert_nothing_of_ours_shows(output)
    assert columns["reward_extra_info"].tolist() == infos

    assert output.batch["rm_scores"].sum(dim=1).tolist() == pytest.approx(scores)
    responses = [loops.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in output.batch["responses"]]
    assert responses == [row["response"] for row in rows]
    assert columns["__num_turns__"].tolist() == [2] * len(rows)
    assert columns["multi_modal_inputs"].tolist() == [{}] * len(rows)
    assert columns["raw_prompt"].tolist() == [row["prompt"] for row in rows]


def assert_nothing_of_ours_shows(output):
    names = [*output.non_tensor_batch, *output.meta_info]
    assert [name for name in names if "verl_ext" in name] == []
    assert {type(column) for column in output.non_tensor_batch.values()} == {np.ndarray}


def assert_identical(ours, theirs):
    """Tensors, columns and `meta_info` are the same bit for bit; timings only by name."""
    assert list(ours.batch.keys()) == list(theirs.batch.keys())
    for name, tensor in theirs.batch.items():
        assert ours.batch[name].dtype == tensor.dtype
        assert ours.batch[name].equal(tensor), name

    columns = ours.non_tensor_batch
    assert columns.keys() == theirs.non_tensor_batch.keys()
    assert up_to_extra_fields(columns) == up_to_extra_fields(theirs.non_tensor_batch)
    for name, column in theirs.non_tensor_batch.items():
        assert (columns[name].dtype, columns[name].shape) == (column.dtype, column.shape), name
        assert columns[name].tolist() == column.tolist(), name
        assert list(map(type, columns[name])) == list(map(type, column)), name

    assert list(ours.meta_info) == list(theirs.meta_info)
    assert list(ours.meta_info["timing"]) == list(theirs.meta_info["timing"])
    assert ours.meta_info.get("reward_extra_keys") == theirs.meta_info.get("reward_extra_keys")


# --- mixed and uniform rewards -----------------------------------------------------------------------------------


@training_and_validation
@scored
@pytest.mark.parametrize("split", slow_after(4, SPLITS))
def test_mixed_rewards_arrive_whole_on_every_split_where_stock_verl_fails_or_loses_some(
    split, way, validate, loops, stock
):
    rows = loops.kinds(*SPLITS[split])
    manager, batch, infos, scores = way.prepare(loops, rows, len(SPLITS[split]), validate)

    output = manager.generate_sequences(copy.deepcopy(batch))

    assert isinstance(output, SparseDataProto)
    assert_whole(output, rows, infos, scores, loops)
    with stock():
        assert lost_or_raised(lambda: manager.generate_sequences(batch), infos), "stock verl keeps it all, too"


@training_and_validation
@pytest.mark.parametrize(
    "way", slow_after(1, [IN_THE_LOOP, BY_ITSELF, NOT_AT_ALL]), ids=["in the loop", "by itself", "not scored"]
)
@pytest.mark.parametrize("split", slow_after(2, UNIFORM))
def test_uniform_rewards_come_out_bit_for_bit_as_on_stock_verl(split, way, validate, loops, stock):
    manager, batch, infos, _ = way.prepare(loops, loops.kinds(*UNIFORM[split]), len(UNIFORM[split]), validate)
    ours = manager.generate_sequences(copy.deepcopy(batch))
    with stock():
        theirs = manager.generate_sequences(batch)
    assert theirs.meta_info.get("reward_extra_keys", []) == keys_of(infos)
    assert_identical(ours, theirs)


def test_where_nothing_scores_there_are_neither_scores_nor_reward_keys(loops):
    manager, batch, _, _ = NOT_AT_ALL.prepare(loops, loops.kinds("gsm8k dapo", "dapo odd"), 2)
    output = manager.generate_sequences(batch)
    assert "rm_scores" not in output.batch.keys()
    assert set(output.meta_info) == {"timing"}
    assert "reward_extra_info" not in output.non_tensor_batch


def test_an_agent_loop_that_emits_keys_but_no_score_gets_its_columns_and_no_reward_keys(loops, stock):
    infos = [{"acc": 1.0}, {"acc": 0.0}, {"pred": "7"}, {"pred": "37"}]
    rows = [emitting(row, info, None) for row, info in zip(loops.rows, infos, strict=False)]
    manager = loops.manager(2)

    output = manager.generate_sequences(prompts(rows, agent="scores_itself"))

    assert lost(output.non_tensor_batch, infos) == []
    assert set(output.meta_info) == {"timing"}
    with stock(), pytest.raises(AssertionError):
        manager.generate_sequences(prompts(rows, agent="scores_itself"))


# --- how it may be called ----------------------------------------------------------------------------------------


def test_all_three_call_styles_of_verl_give_the_finalized_batch(loops):
    manager, batch, infos, _ = IN_THE_LOOP.prepare(loops, loops.kinds("gsm8k dapo", "odd nothing"), 2)

    def call():
        return manager.generate_sequences(copy.deepcopy(batch))

    async def awaited():
        return await manager.generate_sequences(copy.deepcopy(batch))

    async def called_by_a_plain_function():
        return call()

    plain = call()
    assert lost(plain.non_tensor_batch, infos) == []
    for output in (asyncio.run(awaited()), asyncio.run(called_by_a_plain_function())):
        assert_identical(output, plain)


def test_the_callers_batch_keeps_its_meta_info(loops):
    manager, batch, _, _ = IN_THE_LOOP.prepare(loops, loops.kinds("gsm8k", "dapo"), 2)
    columns = set(batch.non_tensor_batch)
    manager.generate_sequences(batch)
    assert batch.meta_info == {"global_steps": 1}
    assert set(batch.non_tensor_batch) == columns | {"priority"}  # which verl adds, or the rig


def test_a_worker_answers_requests_with_and_without_our_mark_at_the_same_time(loops):
    manager, batch, infos, _ = IN_THE_LOOP.prepare(loops, loops.kinds("dapo dapo dapo"), 1)

    async def both():
        unmarked = manager.agent_loop_workers[0].generate_sequences.remote(copy.deepcopy(batch))
        return await asyncio.gather(manager.generate_sequences(copy.deepcopy(batch)), unmarked)

    ours, theirs = asyncio.run(both())
    for output in (ours, theirs):
        assert lost(output.non_tensor_batch, infos) == []
        assert_nothing_of_ours_shows(output)
    assert type(theirs) is DataProto


@pytest.fixture
def skipping(loops, tmp_path, monkeypatch):
    """verl's `SkipManager` at step 1 with a directory of its own: it dumps a rollout, and replays it."""
    skip = pytest.importorskip("verl.utils.skip", reason="verl dumps and replays rollouts since 0.9")
    config = copy.deepcopy(loops.config)
    OmegaConf.update(config, "skip.rollout", {"enable": True, "steps": [1], "dump_dir": str(tmp_path)})
    for name in ("config", "step", "skip_instances"):
        monkeypatch.setattr(skip.SkipManager, name, getattr(skip.SkipManager, name, None), raising=False)
    skip.SkipManager.init(config)
    skip.SkipManager.set_step(1)
    return config


def test_a_dumped_rollout_is_replayed_with_all_its_rewards_and_without_workers(loops, skipping):
    manager, batch, infos, scores = IN_THE_LOOP.prepare(loops, rows := loops.kinds("gsm8k dapo", "odd nothing"), 2)

    dumped = manager.generate_sequences(copy.deepcopy(batch))
    manager.agent_loop_workers = []
    replays = [manager.generate_sequences(copy.deepcopy(batch)) for _ in range(2)]

    for output in (dumped, *replays):
        assert_whole(output, rows, infos, scores, loops)
        assert_identical(output, dumped)


def test_a_rollout_is_replayed_with_the_plugin_off_as_with_it_on(loops, skipping, stock):
    manager, batch, _, _ = IN_THE_LOOP.prepare(loops, loops.kinds("gsm8k dapo", "odd nothing"), 2)
    dumped = manager.generate_sequences(copy.deepcopy(batch))
    with stock():
        manager.agent_loop_workers = []
        replayed = manager.generate_sequences(copy.deepcopy(batch))
    assert_identical(replayed, dumped)
    assert_nothing_of_ours_shows(replayed)


def test_a_rollout_dumped_by_stock_verl_is_replayed_as_it_is(loops, skipping, stock):
    manager, batch, _, _ = IN_THE_LOOP.prepare(loops, loops.kinds("dapo dapo", "dapo dapo"), 2)
    with stock():
        dumped = manager.generate_sequences(copy.deepcopy(batch))
    manager.agent_loop_workers = []
    assert_identical(manager.generate_sequences(batch), dumped)


def test_a_refused_rollout_is_not_dumped(loops, skipping):
    rows = [emitting(row, {"uid": "mine"}) for row in loops.rows[:2]]
    with pytest.raises(FieldCollisionError, match="uid"):
        loops.manager(2, scorers=loops.scorers).generate_sequences(prompts(rows))
    rows = [emitting(row, {"reward_uid": "mine"}) for row in loops.rows[:2]]
    output = loops.manager(2, scorers=loops.scorers).generate_sequences(prompts(rows))
    assert output.non_tensor_batch["reward_uid"].tolist() == ["mine", "mine"]


# --- a discriminative reward model -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reward_model(loops, model_dir):
    """verl's own reward worker, with the plugin and without it, in front of a double for a model server."""

    class Server(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            answer = json.dumps({"data": [{"probs": [0.75, 0.25]}]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = rig.compose_config(
        model_dir,
        [
            "reward.reward_model.enable=true",
            "reward.reward_model.enable_resource_pool=true",
            f"reward.reward_model.model_path='{model_dir}'",
            "reward.reward_model.rollout.name=vllm",
        ],
    )
    address = f"127.0.0.1:{server.server_port}"
    environments = [{"env_vars": {"VERL_EXT_DISABLE": off}} for off in ("0", "1")]
    workers = [ray.remote(RewardLoopWorker).options(runtime_env=env).remote(config, address) for env in environments]
    yield workers
    for worker in workers:
        ray.kill(worker)
    server.shutdown()


@pytest.mark.slow
def test_a_discriminative_reward_model_gives_rows_without_keys_where_stock_verl_raises(loops, reward_model, stock):
    rows = loops.kinds("gsm8k dapo", "gsm8k dapo")
    with_plugin, without_plugin = reward_model
    output = loops.manager(2, scorers=[with_plugin]).generate_sequences(prompts(rows))
    assert_whole(output, rows, [{}] * 4, [0.25] * 4, loops)
    with stock(), pytest.raises(KeyError, match="reward_extra_info"):
        loops.manager(2, scorers=[without_plugin]).generate_sequences(prompts(rows))


# --- workers that differ in more than their rewards --------------------------------------------------------------


def test_agent_loops_with_different_extra_fields_on_different_workers_are_aligned_where_stock_verl_raises(loops, stock):
    rows = loops.kinds("gsm8k gsm8k", "dapo dapo", "odd odd")
    agents = ["single_turn_agent"] * 2 + ["own_fields"] * 2 + ["tool_agent"] * 2
    infos, scores = loops.emitted(rows)
    manager = loops.manager(3, scorers=loops.scorers)

    output = manager.generate_sequences(prompts(rows, agent=agents))

    assert_whole(output, rows, infos, scores, loops)
    assert output.non_tensor_batch["sandbox"].tolist() == [None, None, "s-1", "s-1", None, None]
    assert output.non_tensor_batch["plan"].tolist() == [None, None, ["look", "answer"], ["look", "answer"], None, None]
    assert output.non_tensor_batch["turn_scores"].tolist() == [[]] * 6
    uniform = prompts(loops.kinds("dapo dapo", "dapo dapo", "dapo dapo"), agent=agents)
    with stock(), pytest.raises(AssertionError):
        manager.generate_sequences(uniform)


@pytest.mark.slow
def test_workers_that_lack_a_column_get_what_verls_readers_take_for_nothing(loops, super_caller, stock):
    rows = loops.kinds("gsm8k gsm8k", "dapo dapo")
    infos, scores = loops.emitted(rows)
    manager = loops.manager([loops.workers[0], super_caller], scorers=loops.scorers)

    output = manager.generate_sequences(prompts(rows))

    assert_whole(output, rows, infos, scores, loops)  # so multi_modal_inputs is {} in every row
    assert output.non_tensor_batch["seen"].tolist()[:2] == [None, None]
    with stock(), pytest.raises(AssertionError):
        manager.generate_sequences(prompts(loops.kinds("dapo dapo", "dapo dapo")))


def test_scores_on_some_workers_only_are_an_error_that_names_the_tensor(loops):
    rows = [emitting(row, {"acc": 1.0}) for row in loops.rows[:4]]
    batch = prompts(rows, agent=["scores_itself", "scores_itself", "single_turn_agent", "single_turn_agent"])
    with pytest.raises(BatchMismatchError, match=r"the tensor 'rm_scores' is missing in batch.* 1 "):
        loops.manager(2).generate_sequences(batch)


# --- reward keys that name something -----------------------------------------------------------------------------

PLACES = {
    "batch": "a tensor of this batch",
    "output": "a column of this batch",
    "prompts": "a column of (this batch|the batch it is united with)",
}
CASES = rollouts.collisions()
REFUSED = [case for case in CASES if case["where"] != "allowed"]


@scored
@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["key"])
def test_a_reward_key_that_names_a_field_is_refused_at_the_first_batch_by_name_and_place(case, way, loops):
    rows = loops.kinds("gsm8k gsm8k", "gsm8k odd")
    rows[3]["extra_info"]["emit"][case["key"]] = "mine"
    manager, batch, _, _ = way.prepare(loops, rows, 2)
    before = {name: column.tolist() for name, column in batch.non_tensor_batch.items()}

    with pytest.raises(
        FieldCollisionError, match=f"'{case['key']}' .first in row 3.*{PLACES[case['where']]}"
    ) as caught:
        manager.generate_sequences(batch)

    assert list(caught.value.collisions) == [case["key"]]
    assert f"reward_{case['key']}" in str(caught.value)
    assert {name: batch.non_tensor_batch[name].tolist() for name in before} == before


@scored
@pytest.mark.parametrize("key", [*(case["key"] for case in CASES if case["where"] == "allowed"), "tools_kwargs"])
def test_a_reward_key_that_names_what_only_the_agent_loop_reads_works_as_on_stock_verl(key, way, loops, stock):
    rows = [emitting(row, {key: number}) for number, row in enumerate(loops.rows[:4], start=10)]
    manager, batch, _, _ = way.prepare(loops, rows, 2)
    output = manager.generate_sequences(copy.deepcopy(batch))
    assert output.non_tensor_batch[key].tolist() == [10, 11, 12, 13]
    assert output.meta_info["reward_extra_keys"] == [key]
    with stock():
        theirs = manager.generate_sequences(copy.deepcopy(batch))
    assert theirs.non_tensor_batch[key].tolist() == [10, 11, 12, 13]
    assert output.non_tensor_batch[key].dtype == theirs.non_tensor_batch[key].dtype

    del rows[0]["extra_info"]["emit"][key]
    manager, batch, _, _ = way.prepare(loops, rows, 2)
    assert manager.generate_sequences(batch).non_tensor_batch[key].tolist() == [None, 11, 12, 13]


@scored
def test_a_reward_key_never_takes_the_place_of_what_the_agent_loop_writes_itself(way, loops):
    rows = [emitting(row, {"raw_prompt": "mine"}) for row in loops.rows[:2]]
    manager, batch, _, _ = way.prepare(loops, rows, 2)
    with pytest.raises(FieldCollisionError, match=r"'raw_prompt' .* is already a column of this batch"):
        manager.generate_sequences(batch)


# --- worker classes of the user's --------------------------------------------------------------------------------


def test_a_worker_class_that_calls_super_is_covered(loops, super_caller, stock):
    manager, batch, infos, _ = IN_THE_LOOP.prepare(loops, loops.kinds("gsm8k", "dapo"), [super_caller] * 2)

    output = manager.generate_sequences(copy.deepcopy(batch))

    assert lost(output.non_tensor_batch, infos) == []
    assert_nothing_of_ours_shows(output)
    assert [fields["reward_extra_info"] for fields in output.non_tensor_batch["seen"]] == infos, "put back after super"
    with stock(), pytest.raises(AssertionError):
        manager.generate_sequences(batch)


@pytest.mark.slow
def test_a_manager_with_a_worker_class_of_its_own_is_covered(loops):
    config = copy.deepcopy(loops.config)
    config.actor_rollout_ref.rollout.agent.num_workers = 1
    manager = agent_loops.OwnManager.create(config, loops.client, reward_loop_worker_handles=loops.scorers)
    rows = loops.kinds("gsm8k dapo")
    infos, _ = loops.emitted(rows)
    output = manager.generate_sequences(prompts(rows))
    release(manager)
    assert "seen" in output.non_tensor_batch
    assert lost(output.non_tensor_batch, infos) == []


def outcome(manager, batch):
    """What a call comes to, so that two of them can be compared: the columns, or the error as it is on the worker."""
    try:
        output = manager.generate_sequences(copy.deepcopy(batch))
    except Exception as error:
        error = getattr(error, "cause", error)  # Ray's own text names processes and lines
        return type(error), str(error)
    return {name: (column.dtype, column.tolist()) for name, column in output.non_tensor_batch.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "split", [("dapo dapo", "dapo dapo"), ("gsm8k dapo",), ("dapo gsm8k",), ("gsm8k gsm8k", "dapo dapo"), ("odd odd",)]
)
def test_a_worker_class_that_replaces_postprocess_behaves_as_on_stock_verl_also_in_errors(
    split, loops, replacer, stock
):
    manager, batch, _, _ = IN_THE_LOOP.prepare(loops, loops.kinds(*split), [replacer] * len(split))
    ours = outcome(manager, batch)
    with stock():
        assert ours == outcome(manager, batch)


@pytest.mark.slow
@pytest.mark.parametrize("split", [("gsm8k dapo odd",), ("gsm8k gsm8k", "dapo dapo"), ("nothing nothing", "odd dapo")])
def test_a_worker_class_that_replaces_postprocess_adopts_the_column_in_one_line(split, loops, adopter):
    manager, batch, infos, scores = IN_THE_LOOP.prepare(loops, loops.kinds(*split), [adopter] * len(split))
    output = manager.generate_sequences(batch)
    assert lost(output.non_tensor_batch, infos) == []
    assert output.meta_info["reward_extra_keys"] == keys_of(infos)
    assert output.batch["rm_scores"].sum(dim=1).tolist() == pytest.approx(scores)
    assert_nothing_of_ours_shows(output)


# --- processes without the plugin --------------------------------------------------------------------------------


@pytest.mark.parametrize("order", slow_after(1, ["first", "last", "alone"]))
@pytest.mark.parametrize("kinds", ["dapo dapo", "gsm8k dapo", "dapo gsm8k", "odd odd", "nothing none"])
def test_a_worker_without_the_plugin_is_an_error_that_says_where_it_runs(kinds, order, loops, untaught):
    workers = {"first": [untaught, loops.workers[0]], "last": [loops.workers[0], untaught], "alone": [untaught]}[order]
    manager, batch, _, _ = IN_THE_LOOP.prepare(loops, loops.kinds(*[kinds] * len(workers)), workers)
    place = rf"worker {workers.index(untaught)} on node [\d.]+ \(pid \d+\)"
    with pytest.raises(PluginMissingError, match=rf"1 of {len(workers)} workers do not run .*'agent_loop': {place}"):
        manager.generate_sequences(batch)


def test_a_dead_worker_is_the_error_that_it_is_on_stock_verl(loops):
    manager, batch, _, _ = IN_THE_LOOP.prepare(loops, loops.kinds("gsm8k", "dapo"), 2)
    dead = loops.start(agent_loops.AgentLoopWorker)
    ray.kill(dead)
    manager.agent_loop_workers = [loops.workers[0], dead]
    with pytest.raises(ray.exceptions.RayActorError):
        manager.generate_sequences(batch)


def test_a_worker_of_another_version_is_an_error_that_names_the_version(loops):
    manager, batch, _, _ = IN_THE_LOOP.prepare(loops, loops.kinds("gsm8k", "dapo"), 2)
    with (
        of_version(loops.workers[1], "0.0.1"),
        pytest.raises(PluginMissingError, match=r"1 of 2 workers run verl-ext '0\.0\.1': worker 1 on node [\d.]+"),
    ):
        manager.generate_sequences(batch)


def test_a_driver_without_the_plugin_gets_stock_verl_from_workers_with_it(loops, stock):
    manager, batch, _, _ = IN_THE_LOOP.prepare(loops, loops.kinds("dapo dapo", "dapo dapo"), 2)
    with stock():
        output = manager.generate_sequences(copy.deepcopy(batch))
        assert type(output) is DataProto
        assert_nothing_of_ours_shows(output)
        assert not any(isinstance(column, SparseNonTensor) for column in output.non_tensor_batch.values())
        manager, batch, _, _ = IN_THE_LOOP.prepare(loops, loops.kinds("dapo gsm8k"), 1)
        with pytest.raises(KeyError, match="score"):
            manager.generate_sequences(batch)
