"""`python -m e2e.views DIRECTORY`, from `tests/`: event files of one mixed run on stock verl and one with verl-ext.

`tensorboard --logdir DIRECTORY` shows them: the pictures in `docs/metrics.md`.
"""

import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from verl_ext import plugin
from verl_ext.demo import rig
from verl_ext.demo.data import read_rows

from . import legacy

STEPS = 10


def ordered(rows: Sequence[legacy.Row]) -> list[legacy.Row]:
    """The rows, wrong answers before right ones; each worker's share of a batch begins with gsm8k, or stock verl stops.

    What follows in a share is drawn at random, so that coverage changes from step to step.
    """
    chance = random.Random(0)  # noqa: S311
    first, others = legacy.of(rows, legacy.GSM8K), legacy.of(rows, legacy.MATH_DAPO, legacy.MATH)
    for part in (first, others):
        part.sort(key=lambda row: (row["extra_info"]["recorded"] == "right") + chance.random())
    rest = legacy.PROMPTS // 2 - 1
    return [row for share in range(2 * STEPS) for row in (first[share], *others[rest * share : rest * (share + 1)])]


def main(directory: Path) -> None:
    """Ten steps of the legacy trainer over the demo's rows, of which each batch holds several data sources."""
    rows = read_rows()
    overrides = [
        "trainer.logger=[tensorboard]",
        "trainer.test_freq=-1",
        f"trainer.total_training_steps={STEPS}",
    ]
    with rig.local_ray(), legacy.managers(rig.build_model_dir(directory / "model"), rows) as shared:
        for name, switch in (("stock verl", plugin.deactivate), ("verl-ext", plugin.activate)):
            switch()
            os.environ["TENSORBOARD_DIR"] = str(directory / "runs" / name)
            run = legacy.fit(legacy.legacy_trainer(ordered(rows), rows[:4], overrides, directory / name, shared))
            if run.error is not None:
                raise run.error


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
