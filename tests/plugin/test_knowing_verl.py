"""What a site makes of verl's code by looking at it: the fault is there, it is mended upstream, or it is unknown code.

The copies of verl's own functions are doctored at run time: mended, renamed, or with other parameters.
"""

import asyncio
import functools
import inspect
import logging
import re
import textwrap
import traceback
from functools import reduce
from importlib import import_module
from types import FunctionType, SimpleNamespace

import numpy as np
import pytest
import ray
import torch
from held import HELD
from verl.protocol import DataProto

from verl_ext import SparseDataProto, UnsupportedVerlError, plugin
from verl_ext.plugin import SITES, State
from verl_ext.plugin._trial import MIXED_ROWS, mentions, seeing, verls_own
from verl_ext.plugin.agent_loop import _Sample
from verl_ext.protocol import as_sparse


def report_of(name):
    return next(report for report in plugin.status() if report.name == name)


def owner_of(name, target):
    *path, attribute = target.split(".")
    return reduce(getattr, path, import_module(SITES[name])), attribute


@pytest.fixture
def doctored(monkeypatch):
    """A function that puts something in the place of verl's own function of a site, and activates the plugin anew."""
    monkeypatch.delenv(plugin.DISABLE, raising=False)
    plugin.deactivate()

    def put(name, **by_target):
        for target, change in by_target.items():
            owner, attribute = owner_of(name, target.replace("__", "."))
            standing = vars(owner)[attribute]
            new = change(getattr(standing, "__func__", standing))
            if new is None:
                monkeypatch.delattr(owner, attribute)
            else:
                monkeypatch.setattr(owner, attribute, staticmethod(new) if isinstance(standing, staticmethod) else new)
        plugin.activate()
        return report_of(name)

    yield put
    plugin.deactivate()
    monkeypatch.undo()
    plugin.activate()


def mended(*replacements):
    """From verl's own function to a copy of its source with `replacements`."""

    def mend(function):
        source = textwrap.dedent(inspect.getsource(function))
        source = source[re.search(r"^(async )?def ", source, re.MULTILINE).start() :]  # no decorators
        for faulty, right in replacements:
            assert faulty in source
            source = source.replace(faulty, right)
        namespace = dict(function.__globals__)
        exec(compile("from __future__ import annotations\n" + source, "<doctored>", "exec"), namespace)  # noqa: S102
        return namespace[function.__name__]

    return mend


UNION_OF_KEYS = (
    ("list(reward_extra_infos[0].keys())", "list(dict.fromkeys(key for info in reward_extra_infos for key in info))"),
    ("np.array([info[key] for", "np.array([info.get(key) for"),
)


def as_if_of(module, function):
    """A function as if it were defined in a module of verl's: no trial runs what is another's."""
    theirs = FunctionType(
        function.__code__,
        {**function.__globals__, "__name__": module},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    theirs.__module__ = module
    return theirs


def concat_by_union(data):
    return SparseDataProto.concat([as_sparse(batch) for batch in data])


# --- mended upstream -------------------------------------------------------------------------------------------------


def test_a_reward_loop_that_aligns_keys_by_itself_is_left_to_verl_and_said(doctored):
    report = doctored("reward_loop", RewardLoopManager__compute_rm_score=mended(*UNION_OF_KEYS))
    assert report.stands
    assert "RewardLoopManager.compute_rm_score (not needed)" in report.detail
    assert "RewardLoopWorker.compute_score_batch (not needed)" in report.detail
    manager = owner_of("reward_loop", "RewardLoopManager")[0].RewardLoopManager
    assert verls_own(manager, "compute_rm_score") is manager.compute_rm_score


def test_an_agent_loop_that_aligns_keys_in_workers_and_between_them_is_left_to_verl_and_so_is_fully_async(
    doctored, monkeypatch
):
    monkeypatch.setattr(DataProto, "concat", staticmethod(as_if_of("verl.protocol", concat_by_union)))
    report = doctored("agent_loop", AgentLoopWorker___postprocess=mended(*UNION_OF_KEYS))
    for target in ("AgentLoopWorker._postprocess", "AgentLoopManager.generate_sequences"):
        assert f"{target} (not needed)" in report.detail
    if "fully_async" in (report.name for report in plugin.status() if report.state is not State.WAITING):
        assert report_of("fully_async").state is State.NOT_NEEDED


def test_an_agent_loop_that_aligns_keys_in_workers_alone_is_still_taught(doctored):
    report = doctored("agent_loop", AgentLoopWorker___postprocess=mended(*UNION_OF_KEYS))
    assert report.state is State.ACTIVE
    assert "AgentLoopWorker._postprocess (not needed)" not in report.detail


def test_a_gdpo_that_keeps_nan_out_is_left_to_verl(doctored):
    mend = mended(("np.asarray(comp, dtype=np.float32)", "np.nan_to_num(np.asarray(comp, dtype=np.float32))"))
    report = doctored("advantage", compute_gdpo_outcome_advantage=mend)
    assert (report.state, report.detail) == (State.NOT_NEEDED, "compute_gdpo_outcome_advantage (not needed)")


def test_validation_metrics_that_average_what_is_there_are_left_to_verl(doctored):
    def mend(function):
        taught = import_module("verl_ext.plugin.metrics")._process_validation_metrics.teach(function)
        return as_if_of(SITES["metrics"], taught)

    report = doctored("metrics", process_validation_metrics=mend)
    assert report.stands
    assert "process_validation_metrics (not needed)" in report.detail


@pytest.mark.skipif(
    not hasattr(import_module(SITES["trainer"]).RayPPOTrainer, "_write_generations"), reason="not in verl 0.7"
)
def test_a_dump_that_keeps_both_scores_and_writes_whatever_there_is_is_left_to_verl(doctored):
    mend = mended(
        ("base_data[k] = v", "base_data[k] = [o if x is None else x for x, o in zip(v, base_data.get(k, v))]"),
        ('"score": scores', '"score": scores, "earned": scores'),
        (
            "{k: v[i] for k, v in base_data.items()}",
            "{k: str(v[i]) if k == 'thing' else v[i] for k, v in base_data.items()}",
        ),
        ("default=str", "default=lambda value: getattr(value, 'item', value.__str__)()"),
    )
    report = doctored("trainer", RayPPOTrainer___write_generations=mend)
    assert "RayPPOTrainer._write_generations (not needed)" in report.detail


RIGHT_IN_SOME_VERSIONS = ("AgentLoopOutput.as_dict", "RayPPOTrainer._write_generations")

FAULTS = (KeyError, AssertionError, TypeError)
"""What the faults that the trials look for are on stock verl, where they are no silent loss."""


@pytest.mark.parametrize(
    ("name", "target"),
    [
        (name, patch.target)
        for name in ("reward_loop", "agent_loop", "metrics", "advantage", "trainer")
        for patch in import_module(f"verl_ext.plugin.{name}").site._patches
        if hasattr(patch.needed, "__wrapped__") and patch.target not in RIGHT_IN_SOME_VERSIONS
    ],
)
def test_a_trial_runs_verls_own_code_to_the_fault_and_does_not_stumble_before(name, target):
    site = import_module(f"verl_ext.plugin.{name}").site
    works = next(patch.needed.__wrapped__ for patch in site._patches if patch.target == target)
    try:
        assert not works(import_module(SITES[name]))
    except FAULTS as fault:
        frames = [frame.name for frame in traceback.extract_tb(fault.__traceback__)]
        assert len(frames) > 2, "the trial failed before verl's own code"
        assert "found" in str(fault) or isinstance(fault, TypeError)


V1 = next((name for name in ("trainer_v1", "main_ppo_sync") if name in HELD), None)


def mentioning(function):
    """As a verl that hands a sample's rewards on by itself, by the shape of its function."""

    def mended(self, batch, *args, **kwargs):
        fields = ["extra_fields"]
        return fields and function(self, batch, *args, **kwargs)

    return mended


@pytest.mark.skipif(V1 is None, reason="no v1 trainer before verl 0.8")
@pytest.mark.parametrize(
    ("mended", "left"),
    {
        "_log_rollout_data": {"PPOTrainer._log_rollout_data", "PPOTrainer._dump_generations"},
        "_compute_advantage": {"PPOTrainer._compute_advantage", "compute_advantage_for_multi_trajectories"},
        "_compute_reward_colocate": {"PPOTrainer._compute_reward_colocate"},
    }.items(),
)
def test_a_v1_trainer_that_hands_rewards_on_by_itself_is_left_to_verl(mended, left, doctored):
    site = import_module(f"verl_ext.plugin.{V1}").site
    taught = {patch.target for patch in site._patches}
    report = doctored(V1, **{f"PPOTrainer__{mended}": mentioning})
    assert report.stands
    unneeded = {part.removesuffix(" (not needed)") for part in report.detail.split(", ") if "(not needed)" in part}
    assert unneeded == left & taught


def test_a_wrapper_of_others_is_never_run_for_a_trial(doctored):
    called = []

    def wrap(function):
        @functools.wraps(function)
        def theirs(*args, **kwargs):
            called.append(args)
            return function(*args, **kwargs)

        return theirs

    report = doctored("reward_loop", RewardLoopManager__compute_rm_score=wrap)
    assert (report.state, called) == (State.ACTIVE, [])


def test_seeing_replaces_names_of_the_module_and_built_in_ones_for_a_copy_only():
    def opens():
        return open("nowhere"), np

    assert seeing(opens, open=lambda name: f"opened {name}", np=None)() == ("opened nowhere", None)
    with pytest.raises(FileNotFoundError):
        opens()


def test_mentions_looks_at_names_and_constants_of_a_function_and_of_those_within():
    def function(data):
        fields = ["prompts", "responses"]
        return [(lambda item: item.extra_fields)(item) for item in data], fields, {"metric", "uid"} & set(data)

    assert all(mentions(function, word) for word in ("prompts", "extra_fields", "metric"))
    assert not mentions(function, "reward_extra_info")


# --- unknown ---------------------------------------------------------------------------------------------------------


def renamed(function):
    return None


def other_parameters(function):
    def changed(self, batch, data=None, *, timeout=None):
        return function(self, batch)

    return changed


GUARDED = {
    ("reward_loop", "RewardLoopManager__compute_rm_score"): [renamed, other_parameters],
    ("reward_loop", "RewardLoopWorker__compute_score_batch"): [renamed],
    ("agent_loop", "AgentLoopWorker___postprocess"): [renamed],
    ("agent_loop", "AgentLoopManager__generate_sequences"): [renamed],
    ("protocol", "DataProto__concat"): [renamed],
}


@pytest.mark.parametrize(
    ("name", "target", "change"), [(*where, change) for where, changes in GUARDED.items() for change in changes]
)
def test_unknown_code_is_a_warning_at_activation_that_says_what_is_lost(name, target, change, doctored, caplog):
    report = doctored(name, **{target: change})
    assert report.state is State.UNKNOWN
    assert target.replace("__", ".").replace(".._", "._").rpartition(".")[2].lstrip("_") in report.detail
    purpose = import_module(f"verl_ext.plugin.{name}").site.purpose
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any(SITES[name] in message and purpose in message for message in warnings)


def scored_by(manager_class, infos, name):
    """What verl's own manager makes of samples that its workers scored."""
    outputs = [{"reward_score": 1.0, "reward_extra_info": info} for info in infos]
    count = len(infos)
    manager = SimpleNamespace(
        reward_model_manager=None,
        reward_loop_workers=[SimpleNamespace(compute_score_batch=SimpleNamespace(remote=lambda chunk: outputs))],
        reward_manager_cls=SimpleNamespace(assemble_rm_scores=lambda data, scores: torch.zeros(count, 1)),
    )
    batch = DataProto.from_dict(
        tensors={key: torch.ones(count, 1, dtype=torch.long) for key in ("prompts", "responses", "attention_mask")}
    )
    return getattr(manager_class, name)(manager, batch)


@pytest.fixture
def renamed_reward_loop(doctored, monkeypatch):
    module = import_module(SITES["reward_loop"])
    monkeypatch.setattr(module, "ray", SimpleNamespace(get=list))  # the workers' answers are there already
    monkeypatch.setattr(
        module.RewardLoopManager, "score_batch", vars(module.RewardLoopManager)["compute_rm_score"], raising=False
    )
    doctored("reward_loop", RewardLoopManager__compute_rm_score=renamed)
    return module.RewardLoopManager


def test_the_first_mixed_batch_of_an_unknown_reward_loop_is_an_error_that_names_the_site_and_the_switch(
    renamed_reward_loop,
):
    uniform = scored_by(renamed_reward_loop, [{"acc": 1.0}, {"acc": 0.0}], "score_batch")
    assert uniform.non_tensor_batch["acc"].tolist() == [1.0, 0.0]
    with pytest.raises(UnsupportedVerlError) as caught:
        scored_by(renamed_reward_loop, [{"acc": 1.0}, {"acc": 0.0, "pred": "4"}], "score_batch")
    message = str(caught.value)
    for part in ("'pred'", "'reward_loop'", "compute_rm_score is not there", "VERL_EXT_DISABLE=reward_loop"):
        assert part in message


def test_keys_that_are_no_text_are_named_there_as_they_are(renamed_reward_loop):
    uniform = scored_by(renamed_reward_loop, [{"acc": 1.0, 7: 1, None: 2}] * 2, "score_batch")
    assert uniform.non_tensor_batch[7].tolist() == [1, 1]
    with pytest.raises(UnsupportedVerlError, match=r"every sample of a batch has \(7, None, 'pred'\) would be lost"):
        scored_by(renamed_reward_loop, [{"acc": 1.0, 7: 1, None: 2}, {"acc": 0.0, "pred": "4"}], "score_batch")


def test_the_switch_in_that_error_accepts_what_stock_verl_does(renamed_reward_loop, monkeypatch):
    plugin.deactivate()
    monkeypatch.setenv(plugin.DISABLE, "reward_loop")
    plugin.activate()
    reply = scored_by(renamed_reward_loop, [{"acc": 1.0}, {"acc": 0.0, "pred": "4"}], "score_batch")
    assert set(reply.non_tensor_batch) == {"acc"}, "stock verl kept the key"


def test_a_mixed_chunk_of_a_renamed_worker_function_is_refused_where_it_was_scored(doctored, monkeypatch):
    worker = owner_of("reward_loop", "RewardLoopWorker")[0].RewardLoopWorker

    async def score_chunk(self, data):
        return [{"reward_score": 1.0, "reward_extra_info": row} for row in data]

    monkeypatch.setattr(worker, "score_chunk", score_chunk, raising=False)
    monkeypatch.setattr(score_chunk, "__module__", worker.__module__)
    doctored("reward_loop", RewardLoopWorker__compute_score_batch=renamed)
    assert len(asyncio.run(worker.score_chunk(None, [{"acc": 1.0}] * 2))) == 2
    with pytest.raises(UnsupportedVerlError, match="'pred'"):
        asyncio.run(worker.score_chunk(None, [{"acc": 1.0}, {"acc": 1.0, "pred": "4"}]))


@pytest.mark.parametrize("site", ["agent_loop", "protocol"])
def test_a_mixed_chunk_of_an_unknown_agent_loop_is_refused_where_it_becomes_a_batch(site, doctored, monkeypatch):
    worker = owner_of("agent_loop", "AgentLoopWorker")[0].AgentLoopWorker
    monkeypatch.setattr(worker, "into_batch", vars(worker)["_postprocess"], raising=False)
    unknown = {"agent_loop": "AgentLoopWorker___postprocess", "protocol": "DataProto__concat"}
    doctored(site, **{unknown[site]: renamed})
    assert report_of("agent_loop").state is State.UNKNOWN
    samples = [[_Sample({"acc": 1.0}), _Sample({"acc": 0.0})], [_Sample(row) for row in MIXED_ROWS]]
    uniform = worker.into_batch(_Sample({}), samples[0])
    assert uniform.non_tensor_batch["acc"].tolist() == [1.0, 0.0]
    with pytest.raises(UnsupportedVerlError, match=r"'found'.*VERL_EXT_DISABLE=agent_loop"):
        worker.into_batch(_Sample({}), samples[1])


@pytest.mark.skipif("fully_async" not in HELD, reason="verl 0.7 has no fully-async code")
def test_a_mixed_sample_of_an_unknown_fully_async_rollouter_is_refused_by_what_its_batch_still_holds(
    doctored, monkeypatch
):
    manager = import_module(SITES["fully_async"]).FullyAsyncAgentLoopManager
    worker = owner_of("agent_loop", "AgentLoopWorker")[0].AgentLoopWorker

    async def generate_one(self, rows):
        return worker._postprocess(_Sample({}), [_Sample(row) for row in rows])

    monkeypatch.setattr(manager, "generate_one", generate_one, raising=False)
    report = doctored("fully_async", FullyAsyncAgentLoopManager__generate_sequences_single=renamed)
    assert report.state is State.UNKNOWN
    assert report_of("agent_loop").state is State.ACTIVE
    assert len(asyncio.run(manager.generate_one(None, [{"acc": 1.0}, {"acc": 0.0}]))) == 2
    with pytest.raises(UnsupportedVerlError, match=r"'found'.*VERL_EXT_DISABLE=fully_async"):
        asyncio.run(manager.generate_one(None, [{"acc": 1.0}, {"acc": 1.0, "found": 2.0}]))


def test_where_stock_verl_fails_on_mixed_rows_the_error_says_why(renamed_reward_loop, doctored):
    with pytest.raises(UnsupportedVerlError, match="'pred'"):
        scored_by(renamed_reward_loop, [{"acc": 1.0, "pred": "4"}, {"acc": 0.0}], "score_batch")


def gdpo_arguments(column):
    ones = torch.ones(2, 1)
    return {
        "token_level_rewards": ones,
        "response_mask": ones,
        "index": np.array(["a", "a"]),
        "config": {"gdpo_reward_keys": ["acc"]},
        "non_tensor_batch": {"acc": np.array(column)},
        "batch": {"prompts": ones, "attention_mask": torch.ones(2, 2, dtype=torch.long)},
    }


def test_a_gdpo_of_unknown_parameters_refuses_components_that_some_samples_lack(doctored, monkeypatch):
    def changed(function):
        return lambda response_mask, **kwargs: function(response_mask=response_mask, **kwargs)

    module = import_module(SITES["advantage"])
    own = vars(module)["compute_gdpo_outcome_advantage"]
    monkeypatch.setitem(module.ADV_ESTIMATOR_REGISTRY, "gdpo", new := changed(own))
    assert doctored("advantage", compute_gdpo_outcome_advantage=lambda function: new).state is State.UNKNOWN
    gdpo = import_module(SITES["advantage"]).compute_gdpo_outcome_advantage
    assert gdpo(**gdpo_arguments([0.0, 1.0]))[0].isfinite().all()
    with pytest.raises(UnsupportedVerlError, match=r"'acc'.*VERL_EXT_DISABLE=advantage"):
        module.get_adv_estimator_fn("gdpo")(**gdpo_arguments([None, 1.0]))


def test_metrics_that_another_project_put_in_the_place_of_verls_are_left_to_it_with_a_warning(doctored, caplog):
    def theirs(function):
        return lambda sources, uids, infos: {"theirs": infos}

    report = doctored("metrics", process_validation_metrics=theirs)
    assert report.state is State.UNKNOWN
    module = import_module(SITES["metrics"])
    assert module.process_validation_metrics(["s"], ["a"], {"acc": [None]}) == {"theirs": {"acc": [None]}}
    assert "metric_utils is not what this version knows" in caplog.text


def test_deactivation_takes_the_guards_away(doctored):
    module = import_module(SITES["reward_loop"])
    before = {name: dict(vars(vars(module)[name])) for name in ("RewardLoopManager", "RewardLoopWorker")}
    doctored("reward_loop", RewardLoopManager__compute_rm_score=renamed)
    assert module.ray is not ray
    plugin.deactivate()
    assert module.ray is ray
    for name, contents in before.items():
        found = dict(vars(vars(module)[name]))
        assert all(found[attribute] is value for attribute, value in contents.items() if attribute in found)
