"""`python -m e2e.views DIRECTORY`, from `tests/`: event files of one mixed run on stock verl and one with verl-ext.

`tensorboard --logdir DIRECTORY` shows them: the pictures in `docs/metrics.md`.
"""

import os
import sys
from pathlib import Path

from verl_ext import plugin
from verl_ext.demo import rig
from verl_ext.demo.data import read_rows

from . import legacy

STEPS = 10


def main(directory: Path) -> None:
    """Ten steps of the legacy trainer over the demo's rows, of which each batch holds all three data sources."""
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
            trained = rows[: STEPS * legacy.PROMPTS]
            run = legacy.fit(legacy.legacy_trainer(trained, rows[:4], overrides, directory / name, shared))
            if run.error is not None:
                raise run.error


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
