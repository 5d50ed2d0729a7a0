"""verl's agent loop beside ours: what its workers and managers make of what a scorer, or an agent loop, reports."""

from __future__ import annotations

import asyncio
import copy
import sys
from typing import Any
from unittest import mock

import pytest
from compared import assert_same_batch, carried_by_stock, columns_of_all_families, equal, rows_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_process_actors import PATIENCE, Loops, in_this_process
from on_stock import on_stock
from sites import covers

from verl_ext.demo import rig
from verl_ext.plugin import agent_loop as site

few = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
PAIRS = st.sampled_from([2, 4]).flatmap(columns_of_all_families)
"""verl's agent loop manager cuts a batch into equal shares, one for each of two workers."""


@pytest.fixture(scope="module")
def loops(tmp_path_factory):
    with in_this_process():
        yield Loops(rig.build_model_dir(tmp_path_factory.mktemp("model")))


def answered(columns):
    """The reward function's answers: a score, and what each row has in these columns."""
    return [lambda row=row: {"score": 0.5, **copy.copy(row)} for row in rows_of(columns)]


def assert_same_output(ours: Any, theirs: Any, emitted: Any) -> None:
    """verl writes its extra fields, the dicts among them, in the order of a set; and how long it all took."""
    for output in (ours, theirs):
        names = list(output.non_tensor_batch)
        extra = sorted(names[names.index("multi_modal_inputs") + 1 :])
        output.non_tensor_batch.update({name: output.non_tensor_batch.pop(name) for name in extra})
        for timing in ("timing", "metrics"):
            output.meta_info[timing] = bool(output.meta_info.pop(timing, None))
    assert_same_batch(ours, theirs, emitted)


@covers("agent_loop", "AgentLoopWorker.generate_sequences")
@few
@given(PAIRS)
def test_a_worker_answers_a_manager_that_is_not_ours_as_verls_own_does(loops, columns):
    carried = carried_by_stock(columns)
    batch = loops.prompt_batch(answered(carried))
    ours = loops.loop.generate_sequences.remote(batch).future().result(PATIENCE)
    with on_stock():
        theirs = loops.loop.generate_sequences.remote(batch).future().result(PATIENCE)
    assert_same_output(ours, theirs, carried)


@covers("agent_loop", "AgentLoopManager.generate_sequences")
@few
@given(PAIRS)
def test_the_manager_makes_of_uniform_rows_what_verls_own_makes(loops, columns):
    carried = carried_by_stock(columns)
    batch = loops.prompt_batch(answered(carried))
    ours = loops.rollouts.generate_sequences(copy.deepcopy(batch))
    with on_stock():
        theirs = loops.rollouts.generate_sequences(copy.deepcopy(batch))
    assert_same_output(ours, theirs, carried)


@covers("fully_async", "FullyAsyncAgentLoopManager.generate_sequences_single")
@few
@given(PAIRS)
def test_the_fully_async_manager_makes_of_one_sample_what_verls_own_makes(loops, columns):
    carried = carried_by_stock(columns)
    batch = loops.prompt_batch(answered(carried))
    ours = asyncio.run(loops.single_rollouts.generate_sequences_single(copy.deepcopy(batch)))
    with on_stock():
        theirs = asyncio.run(loops.single_rollouts.generate_sequences_single(copy.deepcopy(batch)))
    assert_same_output(ours, theirs, carried)


# --- sessions ----------------------------------------------------------------------------------------------------


def output_of(**fields):
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

    given = {"prompt_ids": [1, 2], "response_ids": [3, 4], "response_mask": [1, 1], "metrics": AgentLoopMetrics()}
    return AgentLoopOutput(**{**given, **fields})


def scored(loops, outputs, answer):
    """The outputs of a session after verl's worker has scored it."""

    async def compute(worker, outputs, kwargs):
        await worker._compute_score(outputs, kwargs)
        return outputs

    prompt = {name: column[0] for name, column in loops.prompt_batch([answer]).non_tensor_batch.items()}
    return loops.loop.__ray_call__.remote(compute, outputs, prompt).future().result(PATIENCE)


def told(outputs):
    return [(output.reward_score, dict(output.extra_fields)) for output in outputs]


@covers("agent_loop", "AgentLoopWorker._compute_score")
@few
@given(columns_of_all_families(1), st.integers(1, 3), st.booleans())
def test_a_session_is_scored_as_by_verls_own_worker(loops, columns, count, scores_itself):
    (row,) = rows_of(columns)
    outputs = [output_of(extra_fields={"turn": number}) for number in range(count)]
    if scores_itself:
        outputs[-1].reward_score = 0.25
        outputs[-1].extra_fields["reward_extra_info"] = row
    ours = told(scored(loops, outputs, lambda: {"score": 0.5, **row}))
    with on_stock():
        theirs = told(scored(loops, outputs, lambda: {"score": 0.5, **row}))
    assert [score for score, _ in ours] == [score for score, _ in theirs]
    for (_, fields), (_, their_fields) in zip(ours, theirs, strict=True):
        assert equal(fields, their_fields)


@covers("agent_loop", "AgentLoopOutput.as_dict")
@few
@given(columns_of_all_families(1), st.booleans())
def test_an_output_becomes_the_same_dict(columns, explicit):
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

    (row,) = rows_of(columns)
    output = output_of(reward_score=0.5, **({"extra_fields": {}} if explicit else {}))
    output.extra_fields.update(reward_extra_info=row, teacher_ids=[1], sandbox="s-1")
    theirs = AgentLoopOutput.as_dict(output)
    ours = site._as_dict.teach(AgentLoopOutput.as_dict)(output)
    assert equal(dict(sorted(ours.items())), dict(sorted(theirs.items())))


class Queue:
    """A double for the client of TransferQueue: it keeps what v1's agent loop worker puts there."""

    def __init__(self):
        self.rewards, self.status = {}, {}

    def init(self):
        """verl's worker connects."""

    async def async_kv_put(self, key, partition_id, tag):
        self.status[key] = tag["status"]

    async def async_kv_batch_put(self, keys, fields, tags, partition_id):
        reported = [fields["reward_extra_info"] for fields in list(fields["extra_fields"])]
        scores = [float(scores.sum()) for scores in fields["rm_scores"].unbind()]
        self.rewards.update(zip(keys, zip(scores, reported, strict=True), strict=True))


class Sessions:
    """v1's agent loop worker, and what its sessions left in the queue."""

    def __init__(self, loops):
        from verl.trainer.ppo.v1 import agent_loop_tq

        self.loops, self.queue = loops, Queue()
        self._module = agent_loop_tq
        worker = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class
        with self._queue():
            self.worker = worker(loops.config, loops.rollouts.llm_client, None, [loops.scorer])

    def _queue(self):
        return mock.patch.object(self._module, "tq", self.queue)

    def rewards(self, outputs, answer):
        """By output, the score and the reward info of a session."""
        columns = self.loops.prompt_batch([answer]).non_tensor_batch
        prompt = {name: column[0] for name, column in columns.items()}
        self.queue.rewards.clear()
        with self._queue():
            asyncio.run(self.worker._agent_loop_postprocess(outputs, False, session_id=0, global_steps=1, **prompt))
        return list(self.queue.rewards.values())

    def statuses(self, answers):
        """What becomes of the groups of sessions whose samples get these answers."""
        columns = self.loops.prompt_batch(answers).non_tensor_batch
        prompts = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        trajectory = {"step": 1, "sample_index": 0, "rollout_n": 0, "validate": False}

        async def run():
            started = [
                self.worker._run_prompt(
                    {**prompt, "agent_name": "single_turn_agent", "global_steps": 1}, {}, trajectory=trajectory
                )
                for prompt in prompts
            ]
            await asyncio.wait_for(asyncio.gather(*started), PATIENCE)

        with self._queue():
            asyncio.run(run())
        return [self.queue.status[prompt["uid"]] for prompt in prompts]


@pytest.fixture
def sessions(loops):
    return Sessions(loops)


def reporting(*infos, score=None):
    """The outputs of a session that report these dicts; the score, where the loop knows it, is the last one's."""
    outputs = [output_of(extra_fields={} if info is None else {"reward_extra_info": info}) for info in infos]
    outputs[-1].reward_score = score
    return outputs


SCORED = {"score": 0.5, "acc": 1.0}


def test_each_output_of_a_session_keeps_what_the_loop_reported_beside_its_own_score(sessions):
    infos = [{"turn": 0, "tool": "search"}, {"turn": 1}, {"turn": 2, "acc": 1.0}]
    with on_stock():
        theirs = sessions.rewards(reporting(*infos, score=0.75), answer=None)
    assert theirs == [(0.75, infos[-1])] * 3
    ours = sessions.rewards(reporting(*infos, score=0.75), answer=None)
    assert ours == [
        (0.75, {"turn": 0, "acc": 1.0, "tool": "search"}),
        (0.75, {"turn": 1, "acc": 1.0}),
        (0.75, {"turn": 2, "acc": 1.0}),
    ]


def test_each_output_of_a_session_keeps_what_the_loop_reported_where_a_scorer_scores(sessions):
    infos = [{"turn": 0, "acc": 0.25}, None, {"turn": 2, "acc": 0.75}]
    with on_stock():
        theirs = sessions.rewards(reporting(*infos), lambda: dict(SCORED))
    assert theirs == [(0.5, SCORED)] * 3
    ours = sessions.rewards(reporting(*infos), lambda: dict(SCORED))
    assert ours == [
        (0.5, {"score": 0.5, "acc": 0.25, "turn": 0}),
        (0.5, {"score": 0.5, "acc": 1.0, "turn": 2}),
        (0.5, {"score": 0.5, "acc": 1.0, "turn": 2}),
    ]


def test_a_session_whose_scorer_raises_has_failed_also_where_stock_verl_waits_for_ever(sessions):
    def ordinary():
        raise ConnectionError("connection reset")

    def first_of_none():
        return next(found for found in [] if found)

    with on_stock():
        assert sessions.statuses([lambda: 1.0, ordinary]) == ["finished", "failure"]
    for wrong in (ordinary, first_of_none, lambda: sys.exit(3)):
        assert sessions.statuses([lambda: 1.0, wrong, lambda: 0.5]) == ["finished", "failure", "finished"]


@pytest.mark.parametrize("infos", [[{"turn": 0}], [None], [None, None, None], [{}, None]])
def test_a_session_whose_loop_reports_nothing_before_its_last_output_is_as_on_stock_verl(sessions, infos):
    ours = sessions.rewards(reporting(*infos), lambda: dict(SCORED))
    with on_stock():
        assert ours == sessions.rewards(reporting(*infos), lambda: dict(SCORED))


def test_what_a_loop_reports_that_is_no_dict_gives_way_as_on_stock_verl(sessions):
    ours = sessions.rewards(reporting(["junk"], "junk", 7), lambda: dict(SCORED))
    with on_stock():
        assert ours == sessions.rewards(reporting(["junk"], "junk", 7), lambda: dict(SCORED))


def test_the_outputs_of_a_session_may_share_one_dict_of_extra_fields(sessions):
    first = output_of(extra_fields={"reward_extra_info": {"turn": 0}})
    last = first.model_copy()
    assert last.extra_fields is first.extra_fields
    ours = sessions.rewards([first, last], lambda: dict(SCORED))
    assert ours == [(0.5, {**SCORED, "turn": 0})] * 2


def test_a_scorer_that_returns_no_dict_of_rewards_leaves_each_output_its_own(sessions, monkeypatch):
    async def without(self, data):
        return {"reward_score": 0.5, "reward_extra_info": None}

    worker = sessions.loops.scorer._instance
    monkeypatch.setattr(type(worker.reward_manager), "run_single", without)
    ours = sessions.rewards(reporting({"turn": 0}, {"turn": 1}), answer=None)
    assert ours == [(0.5, {"turn": 0}), (0.5, {"turn": 1})]


@covers("fully_async_agent_loop", "FullyAsyncAgentLoopManager.generate_sequences_single")
def test_where_older_clones_have_the_fully_async_manager_it_gets_the_very_same_patch():
    from verl_ext.plugin import fully_async, fully_async_agent_loop

    ((earlier,), (later,)) = fully_async_agent_loop.site._patches, fully_async.site._patches
    assert (earlier.target, earlier.parameters, earlier.teach) == (later.target, later.parameters, later.teach)
