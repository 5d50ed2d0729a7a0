"""Runs of verl's own command line, each made once for the session: a run takes a minute on an idle machine."""

import pytest

from verl_ext.cpu import task
from verl_ext.cpu.model import build_model
from verl_ext.cpu.outcome import outcome_of
from verl_ext.cpu.run import Run
from verl_ext.cpu.train import STEPS, check_verl


@pytest.fixture(scope="session")
def train(tmp_path_factory):
    """`train(trainer, algorithm, side, ...)`: the outcome of a run, which is made once for the same arguments."""
    check_verl()
    root = tmp_path_factory.mktemp("trained")
    model = build_model(root / "model")
    rows = task.write_rows(root / "rows.parquet", task.rows(task.BATCH * 8))
    made = {}

    def run(trainer, algorithm, side, *, steps=STEPS, reward=task.__file__, ranks=1, overrides=()):
        key = trainer, algorithm, side, steps, reward, ranks, overrides
        if key not in made:
            planned = Run(
                trainer=trainer,
                algorithm=algorithm,
                side=side,
                directory=root / f"run-{len(made)}",
                model=model,
                rows=rows,
                reward=f"{reward}:compute_score",
                steps=steps,
                ranks=ranks,
                overrides=overrides,
            )
            made[key] = outcome_of(planned, _to_its_end(planned))
        return made[key]

    return run


@pytest.fixture(scope="session")
def mixed_grpo(train):
    """`mixed_grpo(trainer)`: the run that most tests are about; it leaves a checkpoint in the middle."""
    return lambda trainer: train(trainer, "GRPO", "verl-ext", overrides=(f"trainer.save_freq={STEPS // 2}",))


def _to_its_end(run):
    going = run.to_its_end()
    while True:
        try:
            next(going)
        except StopIteration as end:
            return end.value
