"""verl's default trainer end to end on a CPU: what stock verl makes of mixed rewards, and what verl-ext makes of them.

Each test runs verl's real v1 trainer twice: with the plugin off in every process (`stock`), and on in every one
(`ours`). `doubles` says what stands in for GPUs and a model.
"""

import json
import logging
import math
import re
from contextlib import contextmanager, nullcontext

import pytest
from marks import slow_after

from e2e_v1.stock import STOCK

if STOCK is None:
    pytest.skip("verl before 0.8 has no trainer on TransferQueue", allow_module_level=True)
pytest.importorskip("transfer_queue", reason="verl's v1 trainer needs TransferQueue")

from e2e_v1 import v1
from e2e_v1.v1 import planned, recorded
from verl_ext import FieldCollisionError, PluginMissingError
from verl_ext.demo.data import read_rows
from verl_ext.errors import VerlExtError

pytestmark = pytest.mark.ray

GONE = v1.doubles.GONE

needs_colocated_reward = pytest.mark.skipif(
    not STOCK.scores_colocated, reason="this verl's _compute_reward_colocate is a stub that raises NotImplementedError"
)
needs_group_filter = pytest.mark.skipif(not STOCK.filters_groups, reason="this verl's trainer has no group filter")


@pytest.fixture(scope="module")
def rows():
    """One row of gsm8k, whose scorer returns a number, and one of math_dapo, whose scorer returns a dict; all right."""
    return [
        recorded(
            next(
                row for row in read_rows() if row["data_source"] == source and row["extra_info"]["recorded"] == "right"
            )
        )
        for source in ("openai/gsm8k", "math_dapo")
    ]


@pytest.fixture
def warned(caplog):
    """A function from a text to the number of verl-ext's warnings that hold it."""
    caplog.set_level(logging.WARNING, logger="verl_ext")
    return lambda text: sum(
        record.name.startswith("verl_ext") and text in record.getMessage() for record in caplog.records
    )


def mean(metrics, source, key):
    """The mean of `key` in `source`, of which there is one series, whatever its number of responses; or `None`."""
    series = {
        name: value for name, value in metrics.items() if re.fullmatch(rf"val-(core|aux)/{source}/{key}/mean@\d+", name)
    }
    assert len(series) <= 1, f"split into {series}"
    return next(iter(series.values()), None)


def headline(metrics, source):
    """The names of the headline metrics of `source`, without what they are prefixed with."""
    return sorted(
        name.removeprefix(f"val-core/{source}/") for name in metrics if name.startswith(f"val-core/{source}/")
    )


@contextmanager
def over_nones():
    """For stock verl's validation of columns with `None` in them: where verl takes the mean, it ends with an error."""
    with nullcontext() if STOCK.drops_none else pytest.raises(TypeError, match="NoneType"):
        yield


# --- validation --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_validation_dump_keeps_a_rows_own_score_beside_rows_whose_scorer_returns_one(rows, stock, ours):
    def dumped(run):
        return {line["gts"]: [line["score"], line["acc"], line["pred"]] for line in run.validation_dump()}

    run = stock(val=rows)
    with over_nones():
        run.validate()
    assert dumped(run) == {"369": [None, 1.0, None], "22": [1.0, True, "22"]}

    run = ours(val=rows)
    run.validate()
    assert dumped(run) == {"369": [1.0, 1.0, None], "22": [1.0, True, "22"]}


def test_uniform_rows_are_validated_and_dumped_as_on_stock_verl(rows, stock, ours):
    def outcome(run):
        metrics = run.validate()
        lines = [{key: value for key, value in line.items() if key != "uid"} for line in run.validation_dump()]
        return metrics, sorted(lines, key=str)

    # Both sessions of a prompt earn the same: verl's bootstrap draws by the order in which they arrive.
    right = {**rows[1], "responses": rows[1]["responses"] * 2}
    wrong = {**right, "prompt": [{"role": "user", "content": "Another one."}], "responses": ["No idea."] * 2}
    assert outcome(ours(val=[right, wrong])) == outcome(stock(val=[right, wrong]))


@pytest.mark.slow
def test_a_reward_key_named_reward_is_kept_apart_and_not_counted_as_the_reward(stock, ours, warned):
    one_by_one = ["data.val_batch_size=1"]
    right, wrong = "{'score': 1.0, 'reward': 0.25}", "{'score': 0.0, 'reward': 0.25}"
    mixed = [
        planned("a", right, source="planned/gsm8k"),
        planned("b", wrong, source="planned/math"),
        planned("c", wrong, source="planned/math"),
        planned("d", right, source="planned/gsm8k"),
    ]
    metrics = stock(val=mixed, overrides=one_by_one).validate()
    assert [mean(metrics, source, "reward") for source in ("planned/gsm8k", "planned/math")] == [0.625, 0.125]

    run = ours(val=mixed, overrides=one_by_one)
    metrics = run.validate()
    for source, reward in (("planned/gsm8k", 1.0), ("planned/math", 0.0)):
        assert mean(metrics, source, "reward") == reward
        assert mean(metrics, source, "reward_extra/reward") == 0.25
        assert headline(metrics, source) == ["reward/mean@1"]
    assert sorted((line["reward"], line["reward_extra/reward"]) for line in run.validation_dump()) == [
        (0.0, 0.25),
        (0.0, 0.25),
        (1.0, 0.25),
        (1.0, 0.25),
    ]
    assert warned("reward_extra/reward") == 1


RIGHT, SCORED = "{'score': 1.0, 'acc': 1}", "{'score': 1.0}"

# By data source: four sessions of one prompt; their accuracy where verl counts failed ones, on stock and with verl-ext.
SESSIONS = {
    "planned/without": ([RIGHT, RIGHT, RIGHT, SCORED], 0.75, 1.0),
    "planned/failed": ([RIGHT, RIGHT, RIGHT, GONE], 0.75, 0.75),
    "planned/both": ([RIGHT, RIGHT, SCORED, GONE], 0.5, 2 / 3),
}


@pytest.mark.slow
def test_a_scored_session_without_acc_is_left_out_and_a_failed_one_counts_as_verl_counts_it(stock, ours):
    cases = {source: case for source, case in SESSIONS.items() if GONE not in case[0] or STOCK.waits_for_sessions}
    prompts = {source: planned(f"for {source}", *case[0], source=source) for source, case in cases.items()}

    def expected(accuracy):
        return pytest.approx(accuracy if STOCK.counts_failed_sessions else 1.0)

    for source, (responses, accuracy, _) in cases.items():
        with over_nones() if SCORED in responses else nullcontext():
            assert mean(stock(val=[prompts[source]]).validate(), source, "acc") == expected(accuracy)

    metrics = ours(val=[*prompts.values()]).validate()
    for source, (_, _, accuracy) in cases.items():
        assert mean(metrics, source, "acc") == expected(accuracy)


# By kind: the values of two sessions of one prompt, in the order in which they arrive, and what stock verl makes of it.
NOT_NUMBERS = {
    "a number, then text": (42, "none", TypeError),
    "text, then a number": ("none", 42, None),
    "lists of one shape": ([1, 2], [3, 4], 2.5),
    "lists of other shapes": ([1], [2, 3], ValueError),
    "dicts": ({"a": 1}, {"a": 2}, TypeError),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_after(2, NOT_NUMBERS))
def test_what_stock_verl_cannot_average_is_left_out_of_the_metrics_with_one_warning(kind, stock, ours, warned):
    first, second, made_by_stock = NOT_NUMBERS[kind]
    key = f"verdict of {kind}"
    answers = {"score": 1.0, "acc": 1, key: first}, {"score": 1.0, "acc": 1, key: second, "seconds": 1}
    odd = [planned("question", *answers)]
    if isinstance(made_by_stock, type):
        with pytest.raises(made_by_stock):
            stock(val=odd).validate()
    else:
        assert mean(stock(val=odd).validate(), "planned", key) == made_by_stock

    run = ours(val=odd)
    metrics = run.validate()
    averaged = isinstance(made_by_stock, float)
    assert mean(metrics, "planned", key) == (made_by_stock if averaged else None)
    assert mean(metrics, "planned", "acc") == 1.0
    assert warned(repr(key)) == (0 if averaged else 1)
    assert sorted((line[key] for line in run.validation_dump()), key=repr) == sorted([first, second], key=repr)


def test_a_validation_batch_of_one_schema_after_one_of_another_gives_none_for_what_it_lacks(rows, stock, ours):
    def columns(run):
        return {line["gts"]: {key: line[key] for key in ("acc", "pred")} for line in run.validation_dump()}

    for ordered in (rows, rows[::-1]):
        theirs = stock(val=ordered, overrides=["data.val_batch_size=1"])
        with over_nones():
            theirs.validate()
        mine = ours(val=ordered, overrides=["data.val_batch_size=1"])
        mine.validate()
        assert columns(mine) == {"369": {"acc": 1.0, "pred": None}, "22": {"acc": True, "pred": "22"}}
        assert columns(theirs) == columns(mine)


# --- training: dumps and agent loops -----------------------------------------------------------------------------

TWO_GROUPS = [
    planned("with acc", "{'score': 1.0, 'acc': 1}", "{'score': 0.0, 'acc': 0}", source="planned/acc"),
    planned("with judge", "{'score': 1.0, 'judge': 'good'}", "{'score': 0.0}", source="planned/judge"),
]


def test_the_rollout_dump_carries_the_reward_columns(stock, ours):
    run = stock(train=TWO_GROUPS)
    run.step()
    assert {key for line in run.rollout_dump() for key in line} == {"input", "output", "gts", "score", "step", "uid"}

    run = ours(train=TWO_GROUPS)
    run.step()
    earned = [(line["score"], line["acc"], line["judge"]) for line in run.rollout_dump()]
    assert sorted(earned, key=repr) == [(0.0, 0, None), (0.0, None, None), (1.0, 1, None), (1.0, None, "good")]


PENALTY = [
    "reward.reward_manager.name=dapo",
    "+reward.reward_kwargs.max_resp_len=64",
    "+reward.reward_kwargs.overlong_buffer_cfg={enable: true, len: 64, penalty_factor: 1.0, log: false}",
]
"""verl's own reward manager takes off one 64th for each token of an answer."""


@pytest.mark.slow
def test_what_a_reward_manager_takes_off_a_score_is_in_both_dumps_beside_what_score_is_there(stock, ours):
    scored = [planned(f"question {n}", "{'score': 1.0}", "{'score': 1.0, 'acc': 1}") for n in range(2)]

    def lines(run):
        run.validate()
        run.step()
        return run.validation_dump(), run.rollout_dump()

    validation, rollout = lines(stock(train=scored, overrides=PENALTY))
    assert {line["score"] for line in validation} == {1.0}
    earned = sorted(line["score"] for line in rollout)
    assert earned[-1] < 1.0  # and the reward function's own score is nowhere

    validation, rollout = lines(ours(train=scored, overrides=PENALTY))
    assert [(line["score"], line["reward_sum"] == line["reward"] < 1.0) for line in validation] == [(1.0, True)] * 4
    assert sorted(line["score"] for line in rollout) == earned
    assert [line["reward_extra/score"] for line in rollout] == [1.0] * 4


@pytest.mark.slow
def test_a_reward_key_that_names_a_field_of_a_dump_is_beside_it_in_both_and_its_metric_is_as_on_stock(stock, ours):
    names = {"uid": 7, "input": 8, "gts": "none", "step": 9}
    named = [planned(f"question {n}", {"score": 1.0, **names}) for n in range(2)]

    run = stock(train=named)
    as_on_stock = {name for name in run.validate() if "/uid/" in name}
    assert as_on_stock
    assert [line["input"] for line in run.validation_dump()] == [8, 8]  # the prompt is nowhere, nor is the key `uid`
    assert all(line["uid"] != 7 for line in run.validation_dump())

    run = ours(train=named)
    metrics = run.validate()
    assert {name for name in metrics if "/uid/" in name} == as_on_stock
    assert mean(metrics, "planned", "uid") == 7
    run.step()
    for step, dump in enumerate((run.validation_dump(), run.rollout_dump())):
        for line in dump:
            assert "question" in line["input"]
            assert (line["gts"], line["step"]) == ("none", step)
            assert isinstance(line["uid"], str)
            assert {key: line[f"reward_extra/{key}"] for key in ("uid", "input", "step")} == {
                "uid": 7,
                "input": 8,
                "step": 9,
            }
            assert "reward_extra/gts" not in line


def test_what_verl_adds_to_fill_up_the_batch_earned_nothing_in_the_rollout_dump(ours):
    run = ours(train=TWO_GROUPS[:1] * 3, overrides=["actor_rollout_ref.actor.ppo_mini_batch_size=2"])
    run.step()
    added = [line for line in run.rollout_dump() if line["uid"].startswith("pad")]
    assert len(added) == 2
    assert all(line["score"] == 0.0 and line["acc"] is None for line in added)


@pytest.mark.slow
def test_a_value_that_json_cannot_hold_is_dumped_as_text_with_one_warning(stock, ours, warned):
    # TransferQueue and Pydantic make text of a Decimal, a date, a Fraction on the way; a complex number arrives.
    odd = [planned(f"question {n}", {"score": 1.0, "phase": 1j}) for n in range(2)]
    with pytest.raises(TypeError, match="Object of type complex is not JSON serializable"):
        stock(train=odd).fit()

    run = ours(train=odd)
    assert len(run.fit()) == 2
    for dump in (run.validation_dump(0), run.rollout_dump(1), run.validation_dump(1)):
        assert [line["phase"] for line in dump] == ["1j", "1j"]
    assert warned("'phase' holds a complex, which JSON cannot") == 1


@pytest.mark.slow
def test_an_agent_loop_of_two_outputs_that_sets_its_own_score_may_report_nothing_beside_it(stock, ours):
    own = [planned(f"question {n}", "{}", "{}", agent_name="scores_itself") for n in range(2)]
    with pytest.raises(ValueError, match="Received an empty list as keys"):  # every session: KeyError in the worker
        stock(val=own).validate()

    run = ours(val=own)
    assert mean(run.validate(), "planned", "reward") == 0.75
    assert [line["score"] for line in run.validation_dump()] == [0.75] * 8
    run.step()
    assert [line["score"] for line in run.rollout_dump()] == [0.75] * 8


def test_fields_that_only_one_agent_loop_has_survive_the_queue(stock, ours):
    names = ["own_fields", "single_turn_agent"]
    loops = [planned(f"question {name}", "{'score': 1.0}", source=f"planned/{name}", agent_name=name) for name in names]
    for start in (stock, ours):
        run = start(train=loops)
        fields = dict(run.rollout("data_source", "extra_fields"))
        assert fields["planned/own_fields"]["sandbox"] == "s-1"
        assert fields["planned/own_fields"]["plan"] == ["look", "answer"]
        assert "sandbox" not in fields["planned/single_turn_agent"]
        assert [extra["reward_extra_info"] for extra in fields.values()] == [{"score": 1.0}] * 2


# --- a colocated reward model ------------------------------------------------------------------------------------


def colocated(model_dir):
    """A reward model on the trainer's GPUs: it scores after the rollout, in the trainer's process."""
    return [
        "reward.reward_model.enable=true",
        "reward.reward_model.enable_resource_pool=false",
        f"reward.reward_model.model_path='{model_dir}'",
        "reward.reward_manager.source=importlib",
        "reward.reward_manager.name=NeedsNoDataSource",
        f"reward.reward_manager.module.path='{v1.USERS_FILE}'",
    ]


@needs_colocated_reward
def test_what_a_colocated_reward_model_reports_reaches_metrics_and_both_dumps(stock, ours, model_dir):
    judged = [planned(f"question {n}", "{'score': 1.0, 'acc': 1}", "{'score': 0.0, 'acc': 0}") for n in range(2)]
    run = stock(train=judged, overrides=colocated(model_dir))
    metrics = run.validate()
    assert (mean(metrics, "planned", "reward"), mean(metrics, "planned", "acc")) == (0.5, None)
    run.step()
    assert not any("acc" in line for line in [*run.validation_dump(0), *run.rollout_dump(1)])

    run = ours(train=judged, overrides=colocated(model_dir))
    metrics = run.validate()
    assert (mean(metrics, "planned", "reward"), mean(metrics, "planned", "acc")) == (0.5, 0.5)
    run.step()
    for dump in (run.validation_dump(0), run.rollout_dump(1)):
        assert sorted((line["score"], line["acc"]) for line in dump) == [(0.0, 0)] * 2 + [(1.0, 1)] * 2


@pytest.mark.slow
@needs_colocated_reward
def test_a_colocated_reward_model_may_report_other_keys_for_each_sample(stock, ours, model_dir):
    run = stock(train=TWO_GROUPS, overrides=colocated(model_dir))
    with pytest.raises(KeyError):
        run.validate()

    run = ours(train=TWO_GROUPS, overrides=colocated(model_dir))
    metrics = run.validate()
    assert mean(metrics, "planned/acc", "acc") == 0.5
    assert mean(metrics, "planned/judge", "acc") is None
    run.step()
    for dump in (run.validation_dump(0), run.rollout_dump(1)):
        assert sorted(line["judge"] for line in dump if line["judge"]) == ["good"]
        assert sorted(line["acc"] for line in dump if line["acc"] is not None) == [0, 1]


@needs_colocated_reward
def test_what_a_colocated_reward_model_reports_stands_in_the_queue_where_readers_look_for_it(ours, model_dir):
    run = ours(train=TWO_GROUPS, overrides=colocated(model_dir))
    infos = [extra["reward_extra_info"] for (extra,) in run.rollout("extra_fields", score=True)]
    assert sorted(infos, key=repr) == sorted(
        [{"score": 1.0, "acc": 1}, {"score": 0.0, "acc": 0}, {"score": 1.0, "judge": "good"}, {"score": 0.0}], key=repr
    )


@pytest.mark.slow
@needs_colocated_reward
def test_a_colocated_reward_model_may_report_the_same_keys_in_every_validation_and_step(ours, model_dir):
    run = ours(train=TWO_GROUPS, overrides=colocated(model_dir))
    for step in (1, 2):
        assert mean(run.validate(), "planned/acc", "acc") == 0.5
        run.step()
        assert sorted(line["acc"] for line in run.rollout_dump(step) if line["acc"] is not None) == [0, 1]


@needs_colocated_reward
def test_a_none_that_a_colocated_reward_model_reports_is_a_value_and_not_a_missing_key(ours, model_dir):
    judged = [planned("question", {"score": 1.0, "remark": None}, {"score": 0.0})]
    run = ours(train=judged, overrides=colocated(model_dir))
    infos = [extra["reward_extra_info"] for (extra,) in run.rollout("extra_fields", score=True)]
    assert sorted(infos, key=str) == [{"score": 0.0}, {"score": 1.0, "remark": None}]


@pytest.mark.slow
@needs_colocated_reward
def test_a_key_of_a_colocated_reward_model_that_names_a_field_of_the_queue_is_refused_by_name(stock, ours, model_dir):
    judged = [planned("question", "{'score': 1.0, 'data_source': 'mine'}")]
    metrics = stock(val=judged, overrides=colocated(model_dir)).validate()
    assert mean(metrics, "mine", "reward") == 1.0  # the row's own data source is gone

    with pytest.raises(FieldCollisionError, match="'data_source'"):
        ours(val=judged, overrides=colocated(model_dir)).validate()


@needs_colocated_reward
def test_verl_has_no_group_filter_for_a_colocated_reward_model(stock, ours, model_dir):
    for run in (stock, ours):
        with pytest.raises(AssertionError, match="requires the reward metric at sampling time"):
            run(train=TWO_GROUPS, overrides=[*colocated(model_dir), *DAPO])


# --- algorithms that read reward keys ----------------------------------------------------------------------------

DAPO = ["algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=acc"]
SOME_LACK_ACC = [
    planned("all have it", "{'score': 1.0, 'acc': 1}", "{'score': 0.0, 'acc': 0}", source="planned/dense"),
    planned("one lacks it", "{'score': 1.0, 'acc': 1}", "{'score': 0.0}", source="planned/sparse"),
]


@pytest.mark.slow
@needs_group_filter
def test_a_group_filter_whose_metric_some_samples_lack_is_an_error_that_names_the_way_out(stock, ours):
    with pytest.raises(RuntimeError, match=r"Finished groups are missing DAPO metric 'acc': \['[\w-]{36}'\]$"):
        stock(train=SOME_LACK_ACC, overrides=DAPO).step()

    with pytest.raises(VerlExtError, match=r"'acc'.*planned/sparse") as caught:
        ours(train=SOME_LACK_ACC, overrides=DAPO).step()
    assert "+verl_ext.fill.acc=" in str(caught.value)
    assert "planned/dense" not in str(caught.value)


@needs_group_filter
def test_a_group_filter_takes_the_fill_value_where_samples_lack_its_metric(ours):
    run = ours(train=SOME_LACK_ACC, overrides=[*DAPO, "+verl_ext.fill.acc=0.0"])
    metrics = run.step()
    assert "training/filter_groups/evicted_samples" not in metrics
    assert len(run.advantages) == 4
    assert sorted(str(line.get("acc")) for line in run.rollout_dump()) == ["0", "1", "1", "None"]  # a fill is no value


@pytest.mark.slow
@needs_group_filter
def test_a_group_filter_over_a_metric_that_every_sample_has_works_as_on_stock_verl(stock, ours):
    dense = [planned(f"question {n}", "{'score': 1.0, 'acc': 1}", "{'score': 0.0, 'acc': 0}") for n in range(2)]
    for start in (stock, ours):
        run = start(train=dense, overrides=DAPO)
        run.step()
        assert len(run.advantages) == 4


GDPO = [
    "algorithm.adv_estimator=gdpo",
    "+algorithm.gdpo_reward_keys=[accuracy_reward,format_reward]",
    "reward.reward_manager.name=gdpo",
]
COMPONENTS = [
    planned(
        f"question {n}",
        "{'score': 1.0, 'accuracy_reward': 1.0, 'format_reward': 0.0}",
        "{'score': 1.0, 'accuracy_reward': 0.0, 'format_reward': 1.0}",
        "{'score': 0.0, 'accuracy_reward': 0.0, 'format_reward': 0.0}",
        "{'score': 2.0, 'accuracy_reward': 1.0, 'format_reward': 1.0}",
    )
    for n in range(2)
]
WITHOUT_FORMAT = [
    COMPONENTS[0],
    planned(
        "one lacks a component",
        *COMPONENTS[1]["responses"][:3],
        "{'score': 1.0, 'accuracy_reward': 1.0}",
        source="planned/sparse",
    ),
]


def test_gdpo_trains_on_the_components_or_says_at_start_that_it_cannot(stock, ours):
    with pytest.raises(KeyError, match="prompts"):
        stock(train=COMPONENTS, overrides=GDPO).step()

    try:
        run = ours(train=COMPONENTS, overrides=GDPO)
    except VerlExtError as error:
        assert "gdpo" in str(error).lower()
        return
    run.step()
    # By hand: each component normalized within its group of four, added up, whitened over the batch's tokens.
    advantages = sorted(float(row[0]) for row in run.advantages)
    assert advantages == pytest.approx([-math.sqrt(2)] * 2 + [0.0] * 4 + [math.sqrt(2)] * 2, abs=0.01)


@pytest.mark.slow
def test_gdpo_stops_before_a_component_that_some_samples_lack_or_takes_the_fill_value(ours):
    try:
        run = ours(train=WITHOUT_FORMAT, overrides=GDPO)
    except VerlExtError as error:
        assert "gdpo" in str(error).lower()
        return
    with pytest.raises(VerlExtError, match=r"'format_reward'.*planned/sparse") as caught:
        run.step()
    assert "+verl_ext.fill.format_reward=" in str(caught.value)
    assert not run.advantages

    run = ours(train=WITHOUT_FORMAT, overrides=[*GDPO, "+verl_ext.fill.format_reward=0.0"])
    run.step()
    assert len(run.advantages) == 8
    assert all(row.isfinite().all() for row in run.advantages)


@pytest.mark.slow
def test_gdpo_asks_nothing_of_what_verl_adds_to_fill_up_the_batch(ours):
    third = planned("question 2", *COMPONENTS[0]["responses"])
    overrides = [*GDPO, "actor_rollout_ref.actor.ppo_mini_batch_size=2"]
    run = ours(train=[*COMPONENTS, third], overrides=overrides)
    run.step()
    added = [row for row in run.advantages if len(row) == 1]
    earned = sorted(float(row[0]) for row in run.advantages if len(row) > 1)
    assert [float(row[0]) for row in added] == [0.0] * 4
    assert earned == pytest.approx([-math.sqrt(2)] * 3 + [0.0] * 6 + [math.sqrt(2)] * 3, abs=0.01)


# --- whole runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", slow_after(1, v1.form.MODES))
@pytest.mark.parametrize("order", slow_after(1, [1, -1]), ids=["gsm8k first", "math_dapo first"])
def test_a_step_and_two_validations_over_mixed_schemas_keep_every_value(order, mode, rows, stock, ours):
    mixed = [{**row, "responses": [*row["responses"], "No idea."]} for row in rows[::order]]
    overrides = ["trainer.total_training_steps=1", *v1.form.MODES[mode]]

    def outcome(run):
        before, step = run.fit()
        assert all(math.isfinite(value) for row in run.advantages for value in row.tolist())
        assert len(run.advantages) == 4
        dumps = run.validation_dump(0), run.validation_dump(1), run.rollout_dump(1)
        found = [
            sorted([line["gts"], line["score"], line.get("acc", "-"), line.get("pred", "-")] for line in dump)
            for dump in dumps
        ]
        return [[mean(metrics, row["data_source"], "acc") for row in rows] for metrics in (before, step)], found

    def key(line):
        return json.dumps(line)

    gsm8k = [["369", 0.0, 0.0, None], ["369", 1.0, 1.0, None]]
    dapo = [["22", -1.0, False, "[INVALID]"], ["22", 1.0, True, "22"]]

    run = stock(train=mixed, overrides=overrides)
    with over_nones():
        run.fit()
        assert not any("acc" in line for line in run.rollout_dump(1))
    scores = [line["score"] for line in run.validation_dump(0)]
    assert scores.count(None) == 2  # of the gsm8k rows

    means, found = outcome(ours(train=mixed, overrides=overrides))
    assert means == [[0.5, 0.5], [0.5, 0.5]]
    for lines in found:
        assert sorted(lines, key=key) == sorted([*gsm8k, *dapo], key=key)


def test_a_score_of_none_is_a_named_error_in_the_trainers_process(stock, ours):
    without = [
        planned("scored", "{'score': 1.0, 'acc': 1}", source="planned/scored"),
        planned("not scored", "{'score': None, 'acc': 1}", source="planned/unscored"),
    ]
    with pytest.raises(KeyError, match='"rm_scores" not found'):
        stock(val=without).validate()
    with pytest.raises(KeyError, match='"rm_scores" not found'):
        stock(train=without).step()

    with pytest.raises(VerlExtError, match="planned/unscored"):
        ours(val=without).validate()
    with pytest.raises(VerlExtError, match="planned/unscored"):
        ours(train=without).step()


def test_workers_without_the_plugin_are_a_named_error_in_the_trainers_process(processes, ours, rows):
    untaught = processes[True].with_loops_of(processes[False])
    with pytest.raises(PluginMissingError, match="1 of 1 workers"):
        ours(val=rows, workers=untaught).validate()


@pytest.mark.slow
def test_a_manager_of_the_users_own_needs_nothing_but_generate_sequences(rows, stock, ours):
    class OwnManager:
        """All that verl's trainer asks of one."""

        def __init__(self, manager):
            self.generate_sequences = manager.generate_sequences

    for start in (stock, ours):
        run = start(val=rows[:1])
        run.manager = OwnManager(run.manager)
        assert mean(run.validate(), rows[0]["data_source"], "acc") == 1.0
        run.step()
