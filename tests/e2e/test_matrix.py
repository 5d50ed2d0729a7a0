"""`make e2e`: what its runs come to, and that a run with a fault is seen in its exit code."""

import json
import time
from dataclasses import asdict, replace

import pytest
from e2e_v1.stock import STOCK
from rich.console import Console

from . import __main__ as command
from . import legacy
from .table import Outcome, report

pytest.importorskip("transfer_queue", reason="verl's v1 trainer needs TransferQueue")
matrix = pytest.importorskip(f"{__package__}.matrix")  # not every verl has all of the trainers

# How stock verl fares in the short form's cases.
MIXED_V1 = "40 of 96 values lost (acc 24, pred 8, score 8)"
WITHOUT_ACC = "21 of 60 values lost (acc 21); val-core/acc_where_sure/acc/mean@2 is 0.5, not 0.625"
if not STOCK.drops_none:
    MIXED_V1 = WITHOUT_ACC = "TypeError: unsupported operand"
ON_STOCK = {
    "legacy, GRPO": "AssertionError: score: len(lst)=4, len(sample_scores)=8; 1 of 2 steps; 20 of 52 values lost",
    "legacy, REMAX": "KeyError: 'score'; 0 of 2 steps",
    "legacy, GDPO": "48 of 48 advantages NaN",
    "separation, GRPO": "AssertionError: Key 'score' is not present",
    "separation, REMAX": "KeyError: 'score'; 0 of 2 steps",
    "separation, scores itself, GRPO": "16 of 40 values lost (score 8, pred 8)",
    "one-step-off, GRPO": "AssertionError: Conflicting values for meta_info key 'reward_extra_keys'",
    "fully async, GRPO": "AssertionError: Conflicting values for meta_info key 'reward_extra_keys'",
    "fully async, GDPO": "AssertionError: Key 'score' is not present",
    "v1, sync, GDPO": 'KeyError: \'key "prompts" not found',
    "v1, sync, GRPO": MIXED_V1,
    "v1, sync, GRPO, some samples without acc": WITHOUT_ACC,
    "v1, colocate async, GRPO": MIXED_V1,
    "v1, separate async, GRPO": MIXED_V1,
}


@pytest.fixture(scope="module")
def around(shared, rows):
    with matrix.surroundings(rows, shared) as surroundings:
        yield surroundings


@pytest.fixture
def console():
    return Console(width=command.WIDTH, record=True)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("case", matrix.SHORT, ids=lambda case: f"{case.trainer}, {case.algorithm}, {case.order}")
def test_each_trainer_trains_to_its_end_on_every_value_where_stock_verl_does_not(case, around, stock, console):
    ours = matrix.outcome_of(case, around)
    with stock():
        theirs = matrix.outcome_of(case, around)

    assert ours.faults == []
    assert (ours.steps, ours.arrived, ours.nans) == (legacy.STEPS, ours.values, 0)
    name = f"{case.trainer}, {case.algorithm}"
    expected = ON_STOCK.get(f"{name}, {case.order}", ON_STOCK[name])
    assert "; ".join(theirs.faults).startswith(expected)
    assert theirs.values == ours.values
    assert report(console, [theirs], [ours]) == 0
    assert report(console, [ours], [theirs]) == 1


@pytest.mark.ray
@pytest.mark.slow
def test_a_value_that_a_trainer_loses_is_counted_under_its_key_and_ends_the_command_with_exit_code_1(
    around, monkeypatch, console
):
    def one_less(run, trainer, arrived=legacy.Run.arrived):
        rows = arrived(run, trainer)
        (values,) = [values for (_, text), values in rows if values.get("pred") == "22" and text != legacy.NO_ANSWER]
        del values["pred"]
        return rows

    monkeypatch.setattr(legacy.Run, "arrived", one_less)
    outcome = matrix.outcome_of(matrix.SHORT[0], around)
    assert outcome.lost == {"pred": 1}
    assert report(console, [outcome], [outcome]) == 1
    assert "with verl-ext, legacy, GRPO, gsm8k first: 1 of 52 values lost (pred 1)" in console.export_text()


FINE = Outcome("legacy", "GRPO", "gsm8k first", due=2, steps=2, values=10, advantages=100)

DOCTORED = {
    "a value lost": ({"lost": {"score": 1}}, "1 of 10 values lost (score 1)"),
    "a NaN": ({"nans": 1}, "1 of 100 advantages NaN"),
    "a wrong metric": ({"wrong": {"val-core/a/acc/mean@2": "0.5, not 1.0"}}, "val-core/a/acc/mean@2 is 0.5, not 1.0"),
    "a step not done": ({"steps": 1}, "1 of 2 steps"),
    "an error after the last step": ({"error": "KeyError: 'score'"}, "KeyError: 'score'"),
    "no value": ({"values": 0}, "nothing to count"),
    "no advantage": ({"advantages": 0}, "nothing to count"),
}


@pytest.mark.parametrize("what", DOCTORED)
def test_the_exit_code_is_1_if_with_verl_ext_one_run_of_several_has_a_fault(what, monkeypatch, capsys):
    changes, told = DOCTORED[what]
    outcomes = {"stock verl": [FINE, FINE], "verl-ext": [FINE, replace(FINE, **changes)]}

    def events(leg, short):
        return [json.loads(json.dumps({"outcome": asdict(outcome)})) for outcome in outcomes[leg]]

    monkeypatch.setattr(command, "events", events)
    assert command.main([]) == 1
    assert f"with verl-ext, legacy, GRPO, gsm8k first: {told}\n" in capsys.readouterr().out

    outcomes["stock verl"], outcomes["verl-ext"] = outcomes["verl-ext"], outcomes["stock verl"]
    assert command.main([]) == 0
    assert "2 of 2 runs finished, 0 of 20 values lost, 0 of 200 advantages NaN" in capsys.readouterr().out


def test_without_any_run_with_verl_ext_the_exit_code_is_1(console):
    assert report(console, [], []) == 1


def test_a_leg_that_dies_ends_the_command_with_exit_code_2_and_the_last_of_what_it_said(monkeypatch, capsys):
    monkeypatch.setattr(command, "__package__", "no_such_package")
    assert command.main(["--short"]) == 2
    said = capsys.readouterr().out
    assert "No module named no_such_package" in said
    assert "the leg on stock verl ended with exit code 1" in said


def test_a_run_that_does_not_come_to_its_end_is_given_up(rows, monkeypatch):
    monkeypatch.setattr(matrix, "PATIENCE", 1)
    monkeypatch.setitem(matrix.TRAINERS, "legacy", lambda case, around: time.sleep(60))
    around = matrix.Surroundings(rows, managers=None, queue=None, directory=None)
    outcome = matrix.outcome_of(matrix.SHORT[0], around)
    assert outcome.faults[:2] == ["TimeoutError: not at its end after 1 s", "0 of 2 steps"]
    assert outcome.arrived == 0


RETURNED = {("q", "a"): {"acc": 1.0, "pred": "2"}, ("q", "b"): {"acc": 0.0}}

ARRIVED = {
    "all": ({"acc": 1, "pred": "2"}, {"acc": 0.0, "pred": None}, set()),
    "all, without a column for what nobody there returned": ({"acc": 1, "pred": "2"}, {"acc": 0.0}, set()),
    "a key is gone": ({"acc": 1.0}, {"acc": 0.0}, {"pred"}),
    "a value is another": ({"acc": 1.0, "pred": "3"}, {"acc": 0.0}, {"pred"}),
    "text is a number": ({"acc": 1.0, "pred": 2}, {"acc": 0.0}, {"pred"}),
    "a number is text": ({"acc": "1.0", "pred": "2"}, {"acc": 0.0}, {"acc"}),
    "rows are exchanged": ({"acc": 0.0, "pred": None}, {"acc": 1.0, "pred": "2"}, {"acc", "pred"}),
    "a missing value is filled": ({"acc": 1.0, "pred": "2"}, {"acc": 0.0, "pred": ""}, {"pred"}),
    "an answer is gone": ({"acc": 1.0, "pred": "2"}, None, {"acc"}),
}


@pytest.mark.parametrize("what", ARRIVED)
def test_a_value_has_arrived_if_it_is_with_its_answer_equal_and_of_its_kind(what):
    *rows, lost = ARRIVED[what]
    arrived = [(answer, row) for answer, row in zip(RETURNED, rows, strict=True) if row is not None]
    assert {key for _, key, _, _ in legacy.lost_values(RETURNED, arrived)} == lost
