"""The report on what verl's own trainer writes: stock, and with the plugin."""

import numpy as np
import pytest

from report.dumps import batch, columns
from verl_ext.report import summarize


def dumped(directory, stock, steps=6):
    """Dumps by the `_write_generations` of verl's trainer; on stock, of such columns as its managers make."""
    trainer = pytest.importorskip("verl.trainer.ppo.ray_trainer").RayPPOTrainer
    if not hasattr(trainer, "_write_generations"):
        pytest.skip("this verl writes its dumps in _dump_generations, with a trainer around it")
    for step in range(1, steps + 1):
        named, infos = batch(step, sources=["math_dapo"] if stock and step % 3 == 0 else ["openai/gsm8k", "math_dapo"])
        texts = [str(row) for row in range(len(named))]
        infos = {key: np.array(values, dtype=object) for key, values in columns(infos, stock).items()}
        scores = [float(value) for value in infos["acc"]]
        extras = {"data_source": named, **{key: values.tolist() for key, values in infos.items()}}
        trainer._write_generations(texts, texts, texts, scores, extras, str(directory), step)
    return summarize(directory)


def test_an_extended_run_has_every_key_in_every_step_on_the_rows_of_its_data_source(tmp_path):
    report = dumped(tmp_path / "rollout", stock=False)
    (dump,) = report.dumps
    assert dump.places["math_dapo"].cell("pred").present == dump.places["math_dapo"].rows
    assert dump.places["openai/gsm8k"].cell("pred").present == 0
    assert report.findings == [[]]
    assert report.faults.count == 0


def test_a_stock_run_shows_in_which_steps_the_rows_lost_their_keys(tmp_path, stock):
    with stock():
        report = dumped(tmp_path / "rollout", stock=True)
    lost = "rows there whose data_source has it in other steps: 48 of math_dapo"
    assert [(finding.key, finding.text) for finding in report.findings[0]] == [
        (key, f"in steps 3, 6; absent from steps 1-2, 4-5; {lost}") for key in ("pred", "length_penalty")
    ]


def test_a_run_whose_scores_differ_is_told_how_often_by_the_name_of_the_other_one(tmp_path):
    trainer = pytest.importorskip("verl.trainer.ppo.ray_trainer").RayPPOTrainer
    if not hasattr(trainer, "_write_generations"):
        pytest.skip("this verl writes its dumps in _dump_generations, with a trainer around it")
    for step, earned in enumerate(([1.0, 1.0], [1.0, 0.35], [1.0, 1.0]), start=1):
        texts, infos = ["a", "b"], {"score": [1.0, 1.0], "acc": [1, 1]}
        trainer._write_generations(texts, texts, texts, earned, infos, str(tmp_path / "rollout"), step)
    ((finding,),) = summarize(tmp_path).findings
    meaning = "what the trainer summed up; `score` is what the reward function returned"
    assert (finding.kind, finding.key) == ("scores differ", "reward_sum")
    assert finding.text == f"another number in 1 of 6 rows: {meaning}"
    assert [span.name for span in finding.spans] == ["2"]
