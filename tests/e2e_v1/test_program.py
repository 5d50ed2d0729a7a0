"""The trainer of verl 0.8 is a program, `python -m verl.trainer.main_ppo_sync`: its module is `__main__` then."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from verl_ext.demo import rig

PROGRAM = "verl.trainer.main_ppo_sync"

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(find_spec(PROGRAM) is None, reason="only verl 0.8 has a trainer in the module that is run"),
]

SETTINGS = [
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.actor.use_dynamic_bsz=true",
    "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=true",
    "algorithm.adv_estimator=grpo",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "trainer.device=cpu",
    "trainer.n_gpus_per_node=2",
    "+ray_kwargs.ray_init.num_cpus=4",
    "+ray_kwargs.ray_init.include_dashboard=false",
    "data.train_files=/no/such/file.parquet",
    "+verl_ext.fill.acc=zero",  # the first thing that the trainer refuses, where it is taught
]


@pytest.fixture
def end_of(tmp_path):
    """A function from variables of the environment to the error by which the program ends."""
    model = f"actor_rollout_ref.model.path='{rig.build_model_dir(tmp_path)}'"

    def run(**environment):
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_", "RAY_"))}
        done = subprocess.run(
            [sys.executable, "-m", PROGRAM, model, *SETTINGS],
            env={**inherited, **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.stderr

    return run


def test_the_trainer_that_runs_as_a_program_is_taught_in_the_process_that_ray_starts_for_it(end_of):
    assert "FileNotFoundError: Unable to find '/no/such/file.parquet'" in end_of()
    assert "SettingsError: verl_ext.fill for 'acc' is 'zero'" in end_of(VERL_USE_EXTERNAL_MODULES="verl_ext.autoload")
