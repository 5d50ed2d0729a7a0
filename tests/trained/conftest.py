"""Runs of verl's own command line, each made once for the session: a run takes a minute on an idle machine."""

from dataclasses import replace

import pytest

from verl_ext.cpu import task
from verl_ext.cpu.model import build_model
from verl_ext.cpu.outcome import outcome_of
from verl_ext.cpu.run import Run
from verl_ext.cpu.train import check_verl


@pytest.fixture(scope="session")
def train(tmp_path_factory):
    """`train(trainer, algorithm, side, ...)`: the outcome of a run, which is made once for the same arguments."""
    check_verl()
    root = tmp_path_factory.mktemp("trained")
    model = build_model(root / "model")
    rows = task.write_rows(root / "rows.parquet", task.rows(task.BATCH * 8))
    made = {}

    def run(trainer, algorithm, side, *, steps=30, reward=task.__file__, ranks=1, overrides=(), number=0, into=None):
        key = trainer, algorithm, side, steps, reward, ranks, tuple(overrides), number, into
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
                overrides=tuple(overrides),
            )
            if into is not None:  # a run that goes on from the checkpoints of another
                checkpoints = f"trainer.default_local_dir='{into.run.directory / 'checkpoints'}'"
                planned = replace(planned, overrides=(*planned.overrides, checkpoints))
            made[key] = outcome_of(planned, _to_its_end(planned))
        return made[key]

    return run


def _to_its_end(run):
    going = run.to_its_end()
    while True:
        try:
            next(going)
        except StopIteration as end:
            return end.value
