"""What is shown of runs, without runs: the picture, the table, the verdict on GDPO, and what is refused."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from rich.console import Console
from typer.testing import CliRunner

from verl_ext.cli import app
from verl_ext.cpu import curves, dry_run, task
from verl_ext.cpu.outcome import Outcome, outcome_of
from verl_ext.cpu.run import Run, RunError
from verl_ext.cpu.train import STEPS, WIDTH, prepare, sound, table


def test_the_picture_is_xml_and_names_both_axes():
    picture = curves.draw({"a <b>": {"stock verl": [], "verl-ext": [0.1, 0.5, 0.9]}}, 3)
    root = ElementTree.fromstring(picture)  # noqa: S314  our own
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"training step", "mean reward", "a <b>", "stock verl", "verl-ext", "stock verl: no step"} <= set(texts)


def test_the_picture_shows_a_line_for_each_side_that_was_trained():
    picture = curves.draw({"one": {"stock verl": [0.1, 0.1], "verl-ext": [0.1, 0.9]}}, 2)
    assert picture.count("<polyline") == 2


def test_rows_are_taken_of_each_data_source_in_turn():
    assert dry_run.in_turn(["a", "a", "a", "b", "b"], 4) == [0, 3, 1, 4]


def test_the_task_has_the_data_sources_in_turn_and_scores_from_0_to_1():
    rows = task.rows(task.BATCH)
    assert [row["data_source"] for row in rows[:3]] == list(task.KINDS)
    for source, wanted in task.KINDS.items():
        assert task.compute_score(source, wanted[: task.LENGTH], "", {})["score"] == 1
        assert task.compute_score(source, "", "", {})["score"] == 0


@pytest.fixture
def keys():
    found = dry_run.Keys()
    for _ in range(2):
        found.count("gsm8k", {"score": "number", "acc": "number", "format": "none", "pred": "other"})
    found.count("math", {"score": "number", "acc": "number", "format": "number"})
    return found


def test_gdpo_would_train_on_a_component_that_all_have(keys):
    assert dry_run.gdpo_verdict(keys, ["acc"]) == (["GDPO: acc would train: every sample has it."], {})


def test_gdpo_would_stop_where_some_lack_a_component_and_the_fill_is_named(keys):
    [line], fills = dry_run.gdpo_verdict(keys, ["format"])
    assert "it is missing in 2 of 2 of gsm8k" in line
    assert "+verl_ext.fill.format=0.0" in line
    assert fills == {"format": 0.0}


def test_a_key_that_nobody_has_is_said(keys):
    [line], fills = dry_run.gdpo_verdict(keys, ["brevity"])
    assert "no sample has brevity" in line
    assert not fills


def test_a_key_that_is_not_a_number_everywhere_is_no_component(keys):
    assert keys.numbers == {"score", "acc", "format"}
    keys.count("math", {"acc": "other"})
    assert keys.numbers == {"score", "format"}


def test_a_run_that_never_started_a_step_has_lost_what_was_emitted(tmp_path):
    run = Run("legacy", "GRPO", "stock verl", tmp_path, tmp_path, tmp_path, "f.py:f", steps=3)
    run.emitted.write_text('{"data_source": "d", "keys": {"score": "number", "acc": "number", "format": "none"}}\n')
    run.log.write_text("(TaskRunner pid=1) ValueError: a worker's\nTraceback\nKeyError: 'pred'\nsomething else\n")
    outcome = outcome_of(run, 1)
    assert outcome.lost == {"acc": 1}
    assert outcome.error == "KeyError: 'pred'"
    assert outcome.moved is None


@pytest.fixture
def outcome(tmp_path):
    run = Run("legacy", "GRPO", "verl-ext", tmp_path, tmp_path, tmp_path, "f.py:f", steps=STEPS)
    rewards = tuple(step / STEPS for step in range(STEPS))
    return Outcome(run, rewards, moved=0.1, finite=True, lost={}, emitted=6, error="")


def test_a_run_that_learned_and_lost_nothing_is_sound(outcome):
    assert sound(outcome)


@pytest.mark.parametrize(
    "changes",
    [
        {"rewards": (0.1,) * STEPS},
        {"rewards": (0.1,) * (STEPS - 1)},
        {"moved": 0.0},
        {"moved": None},
        {"finite": False},
        {"lost": {"acc": 2}},
        {"error": "KeyError: 'score'"},
    ],
)
def test_a_run_that_did_not_is_not(outcome, changes):
    assert not sound(replace(outcome, **changes))


def test_a_short_run_need_not_have_learned(outcome):
    assert sound(replace(outcome, run=replace(outcome.run, steps=2), rewards=(0.1, 0.1)))


def test_the_table_says_what_came_of_each_run(outcome):
    console = Console(record=True, width=WIDTH, file=StringIO())
    stopped = replace(outcome, rewards=(), moved=None, error="KeyError: 'score'")
    console.print(table([outcome, replace(outcome, moved=0.0, lost={"pred": 2}), stopped]))
    learned, unmoved, failed = (line for line in console.export_text().splitlines() if "GRPO" in line)
    assert all(cell in learned for cell in ("30 of 30", "0.03 -> 0.93", "moved by up to 0.1", "0 of 6"))
    assert all(cell in unmoved for cell in ("unchanged", "2 of 6 (pred 2)"))
    assert all(cell in failed for cell in ("0 of 30", "never trained", "KeyError: 'score'"))


def test_a_directory_that_is_not_ours_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunError, match="holds something else"):
        prepare(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_an_earlier_training_is_replaced(tmp_path):
    prepare(tmp_path / "to")
    (tmp_path / "to" / "old").touch()
    prepare(tmp_path / "to")
    assert not (tmp_path / "to" / "old").exists()


def test_a_directory_that_is_named_from_here_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert prepare(Path("build/train")) == tmp_path.resolve() / "build" / "train"


ROW = {
    "data_source": "mine",
    "prompt": [{"role": "user", "content": "1 + 1?"}],
    "reward_model": {"style": "rule", "ground_truth": "2"},
}

SCORER = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return {"score": float(solution_str == ground_truth)}

def raises(data_source, solution_str, ground_truth, extra_info):
    raise LookupError(solution_str)

def nothing(data_source, solution_str, ground_truth, extra_info):
    return {"acc": 1.0}
"""


def _said(tmp_path: Path, *arguments: str):
    result = CliRunner().invoke(app, ["train", "--to", str(tmp_path / "to"), *arguments])
    return result.exit_code, result.stderr


@pytest.fixture
def mine(tmp_path):
    scorer, rows = tmp_path / "my.py", tmp_path / "my.parquet"
    scorer.write_text(SCORER)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([ROW, ROW]), rows)
    return scorer, rows


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raises", "raises on row 0 (data source 'mine', answer '2'): LookupError"),
        ("nothing", "returns no score for row 0 (data source 'mine')"),
        ("missing", "has no function 'missing'"),
    ],
)
def test_a_reward_function_that_cannot_be_used_is_one_line_and_exit_code_2(mine, tmp_path, function, said):
    scorer, rows = mine
    code, line = _said(tmp_path, "--reward", f"{scorer}:{function}", "--rows", str(rows))
    assert code == 2
    assert said in line
    assert line.count("\n") == 1


def test_a_file_without_the_columns_is_one_line_and_exit_code_2(mine, tmp_path):
    scorer, rows = mine
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"question": "1 + 1?"}]), rows)
    code, line = _said(tmp_path, "--reward", f"{scorer}:compute_score", "--rows", str(rows))
    assert code == 2
    assert "lacks the column 'data_source'" in line
    assert line.count("\n") == 1


def test_reward_and_rows_go_together(mine, tmp_path):
    assert _said(tmp_path, "--rows", str(mine[1])) == (2, "verl-ext: --reward and --rows go together\n")


@pytest.mark.parametrize("wanted", ["my.py", ":f", "my.py:"])
def test_a_reward_function_is_named_by_file_and_function(mine, tmp_path, wanted):
    code, line = _said(tmp_path, "--reward", wanted, "--rows", str(mine[1]))
    assert code == 2
    assert "FILE:FUNCTION" in line
