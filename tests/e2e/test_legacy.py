"""The legacy trainer's real `fit` and `_validate` over rows of different reward schemas: stock's outcome, and ours."""

import json
import logging
import re
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import torch
from marks import slow_after
from verl.trainer.ppo import core_algos

from verl_ext import plugin
from verl_ext.errors import MissingRewardError
from verl_ext.plugin import _site

from . import legacy
from .legacy import GSM8K, MATH, MATH_DAPO, PROMPTS, STEPS, N, emitted, of, question, question_of

pytestmark = pytest.mark.ray


# --- the surroundings --------------------------------------------------------------------------------------------


@pytest.fixture
def trainer(shared, tmp_path_factory):
    """A function from rows to train on, rows to validate on and overrides to a trainer that has not run."""

    def make(rows_train, rows_val, *overrides):
        return legacy.legacy_trainer(rows_train, rows_val, overrides, tmp_path_factory.mktemp("run"), shared)

    return make


@pytest.fixture
def train(trainer):
    """A function from rows and overrides to the run of their trainer; it validates on the rows given last."""

    def run(rows_train, *overrides, rows_val=None):
        return legacy.fit(trainer(rows_train, rows_val or rows_train[:4], *overrides))

    return run


@pytest.fixture
def filled_columns(monkeypatch):
    """`with filled_columns():` the columns are aligned, with None where a key is missing; the rest is stock verl.

    That is what users have who fill the keys in by themselves.
    """

    @contextmanager
    def columns_only():
        others = plugin.SITES.keys() - {"protocol", "reward_loop", "agent_loop"}
        plugin.deactivate()
        with monkeypatch.context() as environment:
            environment.setenv("VERL_EXT_DISABLE", ",".join(others))
            plugin.activate()
            try:
                yield
            finally:
                plugin.deactivate()
        plugin.activate()

    return columns_only


@pytest.fixture
def warnings(caplog, monkeypatch):
    """The plugin's warnings, as if none had been given in this process before."""
    monkeypatch.setattr(_site, "_warned", set())
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records if record.name.startswith("verl_ext")]


def earned_in_validation(rows):
    """Score and dict of each row's one answer: verl's validation asks for one, and the rows get theirs in turn."""
    return [emitted(row, legacy.answers(row)[number % N]) for number, row in enumerate(rows)]


def parsed(lines):
    return [json.loads(line) for line in lines]


def assert_dumped_as_emitted(lines, rows):
    """Each line holds the score and the values that its own answer earned, `null` for keys that it did not return."""
    entries = parsed(lines)
    by_question = {row["prompt"][0]["content"]: row for row in rows}
    earned = [emitted(by_question[question_of(entry)], entry["output"]) for entry in entries]
    keys = dict.fromkeys(key for _, info in earned for key in info)
    for entry, (score, info) in zip(entries, earned, strict=True):
        assert entry["score"] == pytest.approx(score)
        for key in keys.keys() - {"score"}:
            assert (key, entry[key]) == (key, info.get(key))
            assert isinstance(entry[key], str) == isinstance(info.get(key), str)


def _where_it_runs(algorithm):
    stops = algorithm == "remax" and not legacy.REMAX_TAKES_REWARDS_APART
    why = (
        "verl 0.7's REMAX unites the greedy answers' reward columns with the sampled ones': an error on stock verl too"
    )
    return pytest.param(algorithm, marks=pytest.mark.skipif(stops, reason=why))


# --- two steps of training, and a validation ---------------------------------------------------------------------

VANISH = "score and pred vanish without a word"

# How stock verl ends, by order: GRPO and the algorithms that end otherwise.
ON_STOCK = {
    "gsm8k first": {
        "grpo": VANISH,
        "gdpo": "AssertionError: GDPO reward key 'score' not found",
        "remax": "KeyError: 'score'",
    },
    "math_dapo first": {"grpo": "KeyError: 'score'"},
    "by worker: gsm8k, math_dapo": {
        "grpo": "AssertionError: Key 'score' is not present",
        "remax": "KeyError: 'score'",
    },
    "by worker: math_dapo, gsm8k": {
        "grpo": "AssertionError: Conflicting values for meta_info key",
        "remax": "KeyError: 'score'",
    },
}


@pytest.mark.parametrize("order", slow_after(2, legacy.ORDERS))
@pytest.mark.parametrize("algorithm", slow_after(1, map(_where_it_runs, legacy.ALGORITHMS)))
def test_a_mixed_run_trains_and_validates_to_the_end_with_every_value_where_stock_verl_fails_or_loses_some(
    algorithm, order, rows, trainer, stock
):
    mixed, val = legacy.ORDERS[order](rows), rows[20:28]
    ours = trainer(mixed, val, *legacy.ALGORITHMS[algorithm])
    run = legacy.fit(ours)

    assert run.error is None
    assert run.steps_done == len(run.batches) == STEPS
    assert run.versions == [0, *range(1, STEPS + 1)]
    assert legacy.lost_values(legacy.returned(mixed), run.arrived(ours)) == []
    nans, advantages = run.nans()
    assert advantages > 0
    assert nans == 0
    nulls = {name for metrics in run.metrics.values() for name, value in metrics.items() if value is None}
    assert nulls <= {"training/rollout_actor_probs_pearson_corr"}  # a replay is certain of all tokens alike
    for step in range(1, STEPS + 1):
        assert_dumped_as_emitted(run.rollouts[step], mixed)
    assert_dumped_as_emitted(run.validations[STEPS], val)

    with stock():
        theirs = trainer(mixed, of(rows, GSM8K)[:4], *legacy.ALGORITHMS[algorithm])
        run = legacy.fit(theirs)
    outcome = ON_STOCK[order].get(algorithm, ON_STOCK[order]["grpo"])
    if outcome == VANISH:
        assert run.error is None
        lost = legacy.lost_values(legacy.returned(mixed), run.arrived(theirs))
        assert {key for _, key, _, _ in lost} == {"score", "pred"}
    else:
        assert run.steps_done == 0
        assert outcome in f"{type(run.error).__name__}: {run.error}"


def untimed(metrics):
    return {name: value for name, value in metrics.items() if not name.startswith(("timing", "perf"))}


UNIFORM = {
    GSM8K: lambda rows: of(rows, GSM8K),
    MATH_DAPO: lambda rows: of(rows, MATH_DAPO),
    "a user's scorer": lambda rows: [question("plain", number) for number in range(legacy.QUESTIONS)],
}


@pytest.mark.parametrize("kind", slow_after(1, UNIFORM))
@pytest.mark.parametrize("algorithm", slow_after(1, map(_where_it_runs, ["grpo", "remax", "gdpo"])))
def test_a_uniform_run_gives_the_actor_the_logs_and_the_dumps_what_stock_verl_gives_them(
    algorithm, kind, rows, train, stock
):
    uniform = UNIFORM[kind](rows)
    overrides = [f"algorithm.adv_estimator={algorithm}"]
    if algorithm == "gdpo":
        overrides.append(f"+algorithm.gdpo_reward_keys={'[acc]' if kind == GSM8K else '[score]'}")
    fit = partial(train, uniform[: STEPS * PROMPTS], *overrides, rows_val=uniform[10:16])
    ours = fit()
    with stock():
        theirs = fit()

    assert ours.error is None
    assert ours.steps_done == STEPS
    if legacy.DUMPS_NUMPY or kind == GSM8K:
        assert theirs.error is None
        assert theirs.steps_done == STEPS
        assert ours.rollouts == theirs.rollouts
        assert ours.validations == theirs.validations
    else:  # in its first dump, once the actor has its first batch
        assert "is not JSON serializable" in str(theirs.error)
    assert len(theirs.batches) > 0
    for ours_given, theirs_given in zip(ours.batches, theirs.batches, strict=theirs.error is None):
        assert ours_given.keys() == theirs_given.keys()
        assert ours_given["advantages"].equal(theirs_given["advantages"])
    for step in range(theirs.steps_done):
        logged, expected = untimed(ours.metrics[step + 1]), untimed(theirs.metrics[step + 1])
        assert logged.items() <= expected.items()
        # a list: where each prompt has one answer, stock verl logs the mean of its elements
        assert expected.keys() - logged.keys() <= {"val-aux/plain/steps/mean@1"}


# --- validation --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("sources", [(GSM8K, MATH_DAPO), (MATH_DAPO, GSM8K)], ids=lambda sources: f"{sources[0]} first")
def test_validation_over_batches_of_different_schemas_keeps_each_list_as_long_as_the_samples(
    sources, rows, trainer, stock
):
    train = of(rows, GSM8K)
    val = [row for source in sources for row in of(rows, source)[:4]]  # two batches
    scores, infos = zip(*earned_in_validation(val), strict=True)

    lists, _ = legacy.validate(trainer(train, val), merged=True)
    assert lists["reward_extra_infos_dict"] == {
        "reward": list(scores),
        **{key: [info.get(key) for info in infos] for key in ("acc", "score", "pred")},
    }

    metrics, lines = legacy.validate(trainer(train, val))
    for source in sources:
        of_source = [info for row, info in zip(val, infos, strict=True) if row["data_source"] == source]
        assert metrics[f"val-core/{source}/acc/mean@1"] == np.mean([info["acc"] for info in of_source])
    assert metrics[f"val-aux/{MATH_DAPO}/score/mean@1"] == metrics[f"val-aux/{MATH_DAPO}/reward/mean@1"]
    assert [name for name in metrics if f"{GSM8K}/score" in name or "/pred/" in name] == []
    assert_dumped_as_emitted(lines, val)

    with stock(), pytest.raises(AssertionError, match=r"(score|pred): len\(lst\)=4, len\(sample_scores\)=8"):
        legacy.validate(trainer(train, val))


def test_validation_averages_over_the_responses_that_have_the_key_under_the_prompts_number_of_responses(
    rows, trainer, stock
):
    val = of(rows, MATH_DAPO)[:2] + of(rows, GSM8K)[:2]
    make = partial(trainer, of(rows, GSM8K), val, f"actor_rollout_ref.rollout.val_kwargs.n={N}")
    metrics, lines = legacy.validate(make())

    assert len(lines) == N * len(val)
    assert_dumped_as_emitted(lines, val)
    scores = [emitted(row, answer)[0] for row in val[:2] for answer in legacy.answers(row)]
    assert metrics[f"val-aux/{MATH_DAPO}/score/mean@{N}"] == pytest.approx(np.mean(scores))
    assert {name.rsplit("@")[-1].split("/")[0] for name in metrics if "@" in name} == {str(N)}
    with stock(), pytest.raises(AssertionError):
        legacy.validate(make())


@pytest.mark.slow
def test_a_reward_key_named_reward_is_kept_apart_from_verls_own_metric_with_one_warning(trainer, stock, warnings):
    questions = [question("returns_reward", number) for number in range(8)]
    plain = [question("only_its_score", number) for number in range(8, 12)]
    val = questions + plain

    lists, _ = legacy.validate(trainer(val, val), merged=True)
    scores = [score for score, _ in earned_in_validation(val)]
    assert lists["reward_extra_infos_dict"]["reward"] == scores
    assert lists["reward_extra_infos_dict"]["reward_extra/reward"] == [0.25] * 8 + [None] * 4

    metrics, lines = legacy.validate(trainer(val, val))
    assert metrics["val-aux/returns_reward/reward/mean@1"] == np.mean(scores[:8])
    assert metrics["val-aux/returns_reward/reward_extra/reward/mean@1"] == 0.25
    assert metrics["val-aux/only_its_score/reward/mean@1"] == np.mean(scores[8:])
    assert [(entry["reward"], entry["reward_extra/reward"]) for entry in parsed(lines)] == [
        *((score, 0.25) for score in scores[:8]),
        *((score, None) for score in scores[8:]),
    ]
    about = [message for message in warnings() if "'reward'" in message]
    assert len(about) == 1
    assert "reward_extra/reward" in about[0]

    with stock(), pytest.raises(AssertionError, match=r"reward: len\(lst\)=16, len\(sample_scores\)=8"):
        legacy.validate(trainer(questions, questions))


@pytest.mark.slow
def test_what_is_no_number_everywhere_is_averaged_where_it_is_one_with_one_warning_for_each_key(
    trainer, stock, filled_columns, warnings
):
    val = [question("now_text_now_number", number) for number in range(8)]
    make = partial(trainer, val, val, f"actor_rollout_ref.rollout.val_kwargs.n={N}")
    metrics, lines = legacy.validate(make())
    averaged = {key: metrics.get(f"val-aux/now_text_now_number/{key}/mean@{N}") for key in ("mark", "steps", "detail")}
    assert averaged == {"mark": 42, "steps": 0.5, "detail": None}
    assert metrics[f"val-core/now_text_now_number/reward/mean@{N}"] == 0.5
    assert_dumped_as_emitted(lines, val)
    said = {key: len([message for message in warnings() if f"'{key}'" in message]) for key in averaged}
    assert said == {"mark": 1, "steps": 0, "detail": 1}

    with filled_columns(), pytest.raises(TypeError):
        legacy.validate(make())
    with stock(), pytest.raises(ValueError, match="inhomogeneous shape"):
        legacy.validate(make())


# --- GDPO --------------------------------------------------------------------------------------------------------

OVER_ACC_AND_SCORE = ["algorithm.adv_estimator=gdpo", "+algorithm.gdpo_reward_keys=[acc,score]"]
OVER_ACC_AND_FORMAT = ["algorithm.adv_estimator=gdpo", "+algorithm.gdpo_reward_keys=[acc,format]"]


def test_gdpo_over_a_component_that_is_none_for_some_samples_ends_with_nan_in_every_advantage_on_stock_verl(
    rows, train, filled_columns, stock, caplog
):
    caplog.set_level(logging.WARNING)
    with filled_columns():
        run = train(rows[: STEPS * PROMPTS], *OVER_ACC_AND_SCORE, rows_val=of(rows, GSM8K)[:4])
    assert run.error is None
    assert run.steps_done == STEPS
    nans, advantages = run.nans()
    assert nans == advantages > 0
    assert caplog.records == []

    with stock():  # without any of ours, where the scorer itself returns the None
        questions = [question("format_is_none", number) for number in range(STEPS * PROMPTS)]
        run = train(questions, *OVER_ACC_AND_FORMAT, rows_val=of(rows, GSM8K)[:4])
    assert run.error is None
    assert run.steps_done == STEPS
    nans, advantages = run.nans()
    assert nans == advantages > 0
    assert caplog.records == []


def test_gdpo_over_a_component_that_some_samples_lack_stops_at_the_first_batch_and_names_the_setting(rows, train):
    run = train(rows[: STEPS * PROMPTS], *OVER_ACC_AND_SCORE)
    assert run.steps_done == 0
    assert run.batches == []
    assert isinstance(run.error, MissingRewardError)
    for told in (
        "'score'",
        "8 of 12 samples",
        f"{GSM8K} 4 of 4",
        f"{MATH} 4 of 4",
        "+verl_ext.fill.score=",
    ):
        assert told in str(run.error)
    assert MATH_DAPO not in str(run.error)


def test_gdpo_stops_where_the_scorer_itself_returns_none_for_a_component(train):
    run = train([question("format_is_none", number) for number in range(STEPS * PROMPTS)], *OVER_ACC_AND_FORMAT)
    assert run.steps_done == 0
    assert run.batches == []
    assert isinstance(run.error, MissingRewardError)
    for told in ("'format'", "2 of 12 samples", "format_is_none 2 of 12", "+verl_ext.fill.format="):
        assert told in str(run.error)


def test_gdpo_trains_with_the_fill_value_and_shows_it_nowhere_else(rows, trainer):
    mixed = rows[: STEPS * PROMPTS]
    ours = trainer(mixed, mixed[:4], *OVER_ACC_AND_SCORE, "+verl_ext.fill.score=0.25")
    run = legacy.fit(ours)
    assert run.error is None
    assert run.steps_done == STEPS
    assert run.nans()[0] == 0
    assert legacy.lost_values(legacy.returned(mixed), run.arrived(ours)) == []
    for step, batch in enumerate(run.batches):
        filled = {
            "acc": np.array(run.column(step, "acc"), dtype=np.float32),
            "score": np.array([0.25 if v is None else v for v in run.column(step, "score")], dtype=np.float32),
        }
        expected, _ = core_algos.compute_gdpo_outcome_advantage(
            token_level_rewards=batch["token_level_rewards"],
            response_mask=batch["response_mask"],
            index=np.array(run.column(step, "uid"), dtype=object),
            config=ours.config.algorithm,
            non_tensor_batch=filled,
            batch=batch,
        )
        assert torch.allclose(batch["advantages"], expected)
        present = [value for value in run.column(step, "score") if value is not None]
        assert run.metrics[step + 1]["gdpo/score/mean"] == pytest.approx(np.mean(present))
        assert_dumped_as_emitted(run.rollouts[step + 1], mixed)


# --- a score that is none ----------------------------------------------------------------------------------------

# Questions of one batch, the first three for one agent-loop worker. 2, 6 and 10 get `score: None`.
WITHOUT_SCORE = {
    "in the first worker": [2, 0, 1, 3, 4, 5],
    "in the second worker": [0, 1, 3, 4, 2, 5],
    "in each worker": [2, 0, 1, 6, 4, 5],
    "on every row": [2, 6, 10, 2, 6, 10],
}


@pytest.mark.parametrize("place", slow_after(1, WITHOUT_SCORE))
def test_a_score_of_none_is_one_error_that_names_row_data_source_and_scorer(place, train, trainer, stock):
    questions = [question("score_is_none", number) for number in WITHOUT_SCORE[place]]
    run = train(questions * STEPS, rows_val=questions)
    with pytest.raises(MissingRewardError) as validating:
        legacy.validate(trainer(questions, questions))

    assert run.batches == []
    assert isinstance(run.error, MissingRewardError)
    for error in (run.error, validating.value):
        for told in ("score", "None", "'score_is_none'", "scorers.py:compute_score"):
            assert told in str(error)
        assert re.search(r"row \d+ of \d+.* index (2|6|10)\b", str(error))

    with stock():
        run = train(questions * STEPS, rows_val=questions)
        assert run.steps_done == 0
        assert "score_is_none" not in str(run.error)


# --- dumps -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_missing_score_does_not_replace_the_dumps_own_where_stock_verl_writes_null(rows, train, filled_columns):
    mixed, val = rows[: STEPS * PROMPTS], of(rows, GSM8K)[:4] + of(rows, MATH_DAPO)[:4]
    run = train(mixed, rows_val=val)
    assert run.error is None
    lines = [*run.rollouts[1], *run.rollouts[2], *run.validations[STEPS]]
    assert all(isinstance(entry["score"], float) for entry in parsed(lines))
    assert any(entry["score"] == 1.0 and entry["pred"] is None for entry in parsed(lines))

    with filled_columns():
        stock_run = train(mixed, rows_val=of(rows, GSM8K)[:4])
    assert stock_run.error is None
    nulls = [entry for entry in parsed(stock_run.rollouts[1]) if entry["score"] is None]
    assert len(nulls) == 8
    assert any(entry["acc"] == 1.0 for entry in nulls)


@pytest.mark.slow
def test_a_missing_key_replaces_none_of_the_fields_that_the_dump_writes_itself(train, filled_columns):
    names = [("names_of_the_dump", "only_its_score")[number % 2] for number in range(STEPS * PROMPTS)]
    questions = [question(name, number) for number, name in enumerate(names)]
    with filled_columns():
        run = train(questions, "trainer.test_freq=-1")
    assert parsed(run.rollouts[1])[-1] == dict.fromkeys(("input", "output", "gts", "score", "step")) | {"acc": 1.0}

    run = train(questions)
    assert run.error is None
    for step, lines in (*run.rollouts.items(), *run.validations.items()):
        entries = parsed(lines)
        mine = [entry for entry in entries if entry["reward_extra/input"] is not None]
        assert len(mine) == len(entries) / 2
        assert {
            tuple(entry[f"reward_extra/{key}"] for key in ("input", "output", "gts", "step")) for entry in mine
        } == {("mine", "mine", "mine", 7)}
        for entry in entries:
            assert "question" in entry["input"]
            assert entry["score"] == float(entry["output"])
            assert (entry["gts"], entry["step"]) == ("", step)


@pytest.mark.slow
def test_numbers_and_booleans_are_dumped_as_such_at_any_depth_where_stock_verl_writes_text_or_nothing(train, stock):
    typed = [question("typed", number) for number in range(STEPS * PROMPTS)]
    sparse = [question("only_its_score" if number % 3 else "typed", number) for number in range(STEPS * PROMPTS)]
    detail = {"tokens": 7, "share": 0.5, "ok": True, "steps": [1, 2.5]}
    for questions in (typed, sparse):
        run = train(questions)
        assert run.error is None
        for entry in parsed([*run.rollouts[1], *run.rollouts[2], *run.validations[STEPS]]):
            number = int(entry["input"].split()[2])
            if questions[number]["data_source"] == "typed":
                assert entry["detail"] == detail
                assert [type(value) for value in entry["detail"].values()] == [int, float, bool, list]
                assert entry["passed"] is (entry["output"] == "1")
                assert (entry["tokens"], type(entry["tokens"])) == (number, int)
            else:
                assert [entry[key] for key in ("detail", "passed", "tokens")] == [None] * 3

    with stock():
        run = train(typed)
    assert isinstance(run.error, TypeError)  # in validation, of the mean of dicts, if not in the dump
    if legacy.DUMPS_NUMPY:
        as_text = {"tokens": "7", "share": "0.5", "ok": "True", "steps": ["1", 2.5]}
        assert parsed(run.rollouts[1])[0]["detail"] == as_text


@pytest.mark.slow
def test_dumped_values_stay_with_their_rows_when_the_trainer_balances_the_batch(rows, train):
    mixed = rows[: STEPS * PROMPTS]
    for balance in (True, False):
        run = train(mixed, f"trainer.balance_batch={balance}")
        assert run.error is None
        asked = [question_of(entry) for entry in parsed(run.rollouts[1])]
        in_order = [row["prompt"][0]["content"] for row in mixed[:PROMPTS] for _ in range(N)]
        assert sorted(asked) == sorted(in_order)
        assert (asked == in_order) is not balance
        assert_dumped_as_emitted(run.rollouts[1], mixed)
