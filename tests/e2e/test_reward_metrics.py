"""The metrics of reward keys that verl's DataProto trainers log, against the dicts that the scorers returned."""

import json
import logging
import math
import re
import struct

import pytest
from marks import slow_after
from plain_series import logged, series

from verl_ext.demo import rig
from verl_ext.plugin import _site

from . import legacy
from .legacy import GSM8K, MATH, MATH_DAPO, PROMPTS, STEPS, N, emitted, of, question

pytestmark = pytest.mark.ray

SETTINGS = ["trainer.test_freq=-1", "data.shuffle=false"]


@pytest.fixture
def fit(shared, tmp_path):
    """A function from rows and overrides to a legacy run that they make."""

    def run(rows, *overrides, rows_val=None):
        workdir = tmp_path / str(len(list(tmp_path.iterdir())))
        return legacy.fit(legacy.legacy_trainer(rows, rows_val or rows[:4], [*SETTINGS, *overrides], workdir, shared))

    return run


@pytest.fixture
def warnings(caplog, monkeypatch):
    """A function from a text to the plugin's warnings that hold it, as if none had been given before."""
    monkeypatch.setattr(_site, "_warned", set())
    caplog.set_level(logging.WARNING, logger="verl_ext")
    return lambda text: [record.getMessage() for record in caplog.records if text in record.getMessage()]


def samples(rows):
    """A step's samples: each row with each of its answers."""
    return [(row["data_source"], emitted(row, answer)[1]) for row in rows for answer in legacy.answers(row)]


def in_steps(rows, size=PROMPTS):
    return [samples(rows[start : start + size]) for start in range(0, len(rows), size)]


def first_uniform(rows):
    """A step of gsm8k alone, whose scorer returns a number, then one with math_dapo, whose scorer returns a dict."""
    return [*of(rows, GSM8K)[:PROMPTS], *of(rows, MATH_DAPO)[: PROMPTS // 2], *of(rows, MATH)[: PROMPTS // 2]]


# --- the legacy trainer ----------------------------------------------------------------------------------------------


def test_a_legacy_run_logs_of_each_step_what_its_samples_say_and_stock_verl_nothing(rows, fit, stock):
    mixed = first_uniform(rows)
    run = fit(mixed)
    expected = list(series(in_steps(mixed)))
    assert expected[0] == {}
    assert expected[1].keys() > {"reward_extra/score/mean", f"reward_extra/{GSM8K}/score/coverage"}
    assert [logged(run.metrics[step]) for step in range(1, STEPS + 1)] == [pytest.approx(step) for step in expected]
    with stock():
        assert not any(map(logged, fit(of(rows, GSM8K)[: STEPS * PROMPTS]).metrics.values()))


@pytest.mark.slow
def test_a_uniform_run_logs_under_exactly_the_names_of_stock_verl_unless_all_is_asked_for(fit, stock):
    uniform = [question("returns_reward", number) for number in range(STEPS * PROMPTS)]
    ours, every = fit(uniform), fit(uniform, "+verl_ext.metrics=all")
    with stock():
        theirs = fit(uniform)
    for step in range(1, STEPS + 1):
        assert ours.metrics[step].keys() == theirs.metrics[step].keys()
    expected = list(series(in_steps(uniform), every_key=True))
    assert expected[0].keys() >= {"reward_extra/score/std", "reward_extra/acc/mean"}
    assert [logged(every.metrics[step]) for step in range(1, STEPS + 1)] == [pytest.approx(step) for step in expected]


@pytest.mark.slow
def test_a_run_is_told_to_log_none_or_the_shares_of_text_too(rows, fit):
    mixed = rows[:PROMPTS]
    one_step = "trainer.total_training_steps=1"
    assert logged(fit(mixed, one_step, "+verl_ext.metrics=off").metrics[1]) == {}
    found = logged(fit(mixed, one_step, "+verl_ext.text_metrics=[pred]").metrics[1])
    preds = [info["pred"] for _, info in samples(mixed) if "pred" in info]
    assert found["reward_extra/pred/count"] == len(preds)
    shares = {name: value for name, value in found.items() if name.startswith("reward_extra/pred/share/")}
    assert shares == {
        f"reward_extra/pred/share/{text}": preds.count(text) / len(preds) for text in dict.fromkeys(preds)
    }


@pytest.mark.parametrize("nan", slow_after(1, ["missing", "value"]))
def test_nan_of_a_scorer_is_a_value_or_is_missing_in_training_in_validation_and_in_gdpo(nan, fit, warnings):
    asked = [question("judge_is_nan", number) for number in range(PROMPTS)]
    gdpo = ["algorithm.adv_estimator=gdpo", "+algorithm.gdpo_reward_keys=[score,judge]", "+verl_ext.fill.judge=0.0"]
    overrides = ["trainer.total_training_steps=1", "trainer.test_freq=1", f"+verl_ext.nan={nan}"]
    run = fit(asked, *overrides, *(gdpo if nan == "missing" else ["+verl_ext.metrics=all"]), rows_val=asked)
    (metrics,) = run.metrics.values()
    judged = [info["judge"] for _, info in samples(asked)]
    there = [value for value in judged if nan == "value" or not math.isnan(value)]
    assert run.error is None
    assert metrics["reward_extra/judge/count"] == len(there)
    assert metrics["reward_extra/judge/coverage"] == len(there) / len(judged)
    series = "val-aux/judge_is_nan/judge"
    if nan == "missing":
        assert metrics["reward_extra/judge/mean"] == 1.0
        assert run.nans()[0] == 0
        assert metrics[f"{series}/mean@1"] == 1.0
        assert metrics[f"{series}/coverage@1"] == 5 / 6  # of the six questions, number 2 was not judged
    else:  # which verl's file logger writes as null
        assert metrics["reward_extra/judge/mean"] is metrics[f"{series}/mean@1"] is None
        assert f"{series}/coverage@1" not in metrics
    (warning,) = warnings("'judge' is NaN")
    assert "of data source 'judge_is_nan'" in warning


def test_validation_logs_the_coverage_of_a_sparse_key_beside_its_mean(shared, tmp_path):
    val = [question("acc_where_sure", number) for number in range(PROMPTS)]
    both = [f"actor_rollout_ref.rollout.val_kwargs.n={N}"]
    metrics, _ = legacy.validate(legacy.legacy_trainer(val, val, both, tmp_path, shared))
    infos = [info for _, info in samples(val)]
    assert metrics[f"val-aux/acc_where_sure/acc/coverage@{N}"] == sum("acc" in info for info in infos) / len(infos) < 1
    assert f"val-core/acc_where_sure/acc/mean@{N}" in metrics
    assert not any("reward/coverage" in name for name in metrics)


@pytest.mark.slow
def test_each_of_two_trainers_in_a_process_has_its_own_settings_and_series(rows, shared, tmp_path):
    runs = []
    for name, setting in (("one", "all"), ("other", "sparse")):
        rows_of_it = of(rows, GSM8K)[: STEPS * PROMPTS]
        overrides = [*SETTINGS, f"+verl_ext.metrics={setting}"]
        runs.append(legacy.legacy_trainer(rows_of_it, rows_of_it[:4], overrides, tmp_path / name, shared))
    assert [bool(logged(legacy.fit(trainer).metrics[1])) for trainer in runs] == [True, False]


# --- the trainers that generate elsewhere ----------------------------------------------------------------------------


class Logs(list):
    """What a trainer logs, in the place of its tracking."""

    def log(self, data, step):
        self.append(logged(data))


def config_of(shared, *overrides):
    return rig.compose_config(shared.model_dir, [*legacy.SETTINGS, *SETTINGS, *overrides])


@pytest.mark.parametrize("trainer", ["SeparationTrainer", "OneStepOffTrainer"])
def test_the_trainers_that_generate_elsewhere_log_of_each_step_what_its_samples_say(trainer, rows, shared, stock):
    separation = pytest.importorskip("integration.separation", reason="verl 0.7 comes without the one-step-off trainer")
    mixed = first_uniform(rows)
    batches = [separation.loaded(mixed[start : start + PROMPTS]) for start in range(0, len(mixed), PROMPTS)]

    def logs_of(batches):
        made = getattr(separation, trainer)(config_of(shared), shared.agent_loop, steps=len(batches))
        made._init_dump_executor()  # as its constructor does
        made.logger = Logs()
        made.train_on(batches)
        return made.logger

    assert logs_of(batches) == [pytest.approx(step) for step in series(in_steps(mixed))]
    with stock():
        assert logs_of(batches[:1]) == [{}]


@pytest.mark.parametrize("setting", slow_after(1, ["sparse", "off"]))
def test_fully_async_logs_steps_together_by_the_samples_that_have_a_key(setting, rows, shared, stock):
    """Two steps are logged as one, of which the first is uniform; verl's batches come there without a data source."""
    matrix = pytest.importorskip(f"{__package__}.matrix")
    mixed = first_uniform(rows)
    config = config_of(shared, f"+verl_ext.metrics={setting}")

    def logs_of(rows):
        with matrix.fully_async.message_queue(config) as queue:
            trainer = matrix.FullyAsyncTrainer(config, queue)
            trainer._init_dump_executor()  # as its constructor does, which does not call RayPPOTrainer's
            trainer.logger = Logs()
            assert matrix.trained(trainer, rows, shared) is None
            return trainer.logger

    (found,) = logs_of(mixed)
    expected = next(series([samples(mixed)])) if setting == "sparse" else {}
    assert found == pytest.approx(expected)
    assert any(GSM8K in name for name in found) == (setting == "sparse")
    with stock():
        assert logs_of(of(rows, GSM8K)[:PROMPTS]) == [{}]


# --- tracking back-ends ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_console_tensorboard_and_wandb_show_the_same_names_and_numbers(rows, fit, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "tensorboard"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    for place in ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR", "ARTIFACT_DIR"):
        monkeypatch.setenv(f"WANDB_{place}", str(tmp_path))
    run = fit(first_uniform(rows), "trainer.logger=[file,console,tensorboard,wandb]")
    expected = {step: logged(metrics) for step, metrics in run.metrics.items()}
    assert [len(metrics) > 0 for metrics in expected.values()] == [False, True]
    shown = {
        "console": from_console(capfd.readouterr().out),
        "tensorboard": from_tensorboard(tmp_path / "tensorboard"),
        "wandb": from_wandb(next(tmp_path.rglob("*.wandb"))),
    }
    for backend, steps in shown.items():
        for step, metrics in expected.items():
            assert (backend, logged(steps[step])) == (backend, pytest.approx(metrics))


def from_console(printed):
    lines = re.findall(r"^step:(\d+) - (.*)$", printed, re.MULTILINE)
    return {
        int(step): {name: number(value) for name, _, value in (part.rpartition(":") for part in line.split(" - "))}
        for step, line in lines
    }


def number(printed):
    """As `pprint` writes it, by NumPy's version."""
    return float(re.sub(r"np\.\w+\((.*)\)", r"\1", printed))


def from_tensorboard(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory)).Reload()
    steps = {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            steps.setdefault(event.step, {})[name] = event.value
    return steps


def from_wandb(path):
    from wandb.proto.wandb_internal_pb2 import Record

    steps = {}
    for data in records(path.read_bytes()):
        items = Record.FromString(data).history.item
        values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
        if values:
            steps.setdefault(values["_step"], {}).update(values)
    return steps


def records(log):
    """The records of an offline run's file, which is a LevelDB log behind seven bytes: wandb reads it in Go."""
    at, parts = 7, []
    while at + 7 <= len(log):
        length, kind = struct.unpack_from("<HB", log, at + 4)  # behind a checksum
        parts.append(log[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # whole, or the last of several parts
            yield b"".join(parts)
            parts = []
        if (left := -at % 32_768) < 7:  # no header fits into the rest of the block
            at += left
