"""What a run begins with: the trainers' constructors, the loop around their steps, and their workers' environment.

No value of a scorer reaches these; an example of each is compared with what stock makes of the same.
"""

import os
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from on_stock import on_stock
from outcomes import outcome, raised, spelled
from sites import covers

import verl_ext
from verl_ext import plugin
from verl_ext.demo import rig
from verl_ext.plugin import _run, main_ppo, main_ppo_sync, runtime_env, trainer, trainer_v1
from verl_ext.plugin._workers import DRIVER


@pytest.fixture(scope="module", autouse=True)
def plugin_is_on():
    plugin.activate()


@pytest.fixture
def config():
    """verl's own, of a run that stops before its first step."""
    return rig.compose_config(
        Path("model"),
        [
            "data.train_batch_size=2",
            "data.dataloader_num_workers=0",
            "trainer.resume_mode=disable",
            "trainer.total_epochs=0",
            "trainer.val_before_train=true",
        ],
    )


ADDED = {_run._RUN}
"""The attributes that a trainer has beside those that verl gives it."""


def attributes(made):
    """A trainer's attributes: numbers, text and configurations as they are, objects by their class."""
    plain = (bool, int, float, str, type(None), dict)
    found = {}
    for name, value in vars(made).items():
        if OmegaConf.is_config(value):
            value = OmegaConf.to_container(value)
        found[name] = spelled(value) if isinstance(value, plain) else type(value).__qualname__
    return found


def assert_made_as_on_stock(make):
    ours = attributes(make())
    with on_stock():
        theirs = attributes(make())
    assert {name: ours[name] for name in ours if name not in ADDED} == theirs
    assert ours.keys() - theirs.keys() == ADDED


# --- the legacy trainer ----------------------------------------------------------------------------------------------


def legacy_trainer(config):
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer, Role

    rows = [{"prompt": torch.ones(2)}] * 4
    return RayPPOTrainer(config.copy(), None, {Role.ActorRolloutRef: None}, None, train_dataset=rows, val_dataset=rows)


@covers("trainer", "RayPPOTrainer.__init__", "RayPPOTrainer._init_dump_executor")
def test_the_legacy_trainer_is_made_as_stock_makes_it_and_refuses_what_stock_refuses(config):
    assert_made_as_on_stock(lambda: legacy_trainer(config))
    config.actor_rollout_ref.hybrid_engine = False
    ours = outcome(lambda: legacy_trainer(config))
    with on_stock():
        assert raised(ours) and ours == outcome(lambda: legacy_trainer(config))


def test_a_trainer_without_a_configuration_of_algorithms_makes_its_dump_executor():
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    if not hasattr(RayPPOTrainer, "_init_dump_executor"):
        pytest.skip("verl 0.7 dumps in the trainer's own thread")
    made = object.__new__(RayPPOTrainer)
    made.config = OmegaConf.create({})
    made._init_dump_executor()
    assert made._dump_futures == []


class Checkpoints:
    """A stand-in for the checkpoint manager, which sends weights to servers."""

    def update_weights(self, global_steps=None):
        pass


@covers("trainer", "RayPPOTrainer.fit")
@pytest.mark.parametrize("val_only", [False, True])
def test_the_legacy_trainers_loop_says_what_stock_says(val_only, config, capsys):
    config.trainer.val_only = val_only

    def fit():
        made = legacy_trainer(config)
        made.checkpoint_manager = Checkpoints()
        made._validate = lambda: {"val-core/a/acc/mean@1": np.float64(0.5)}
        capsys.readouterr()
        return [made.fit(), made.global_steps, made._dump_executor._shutdown, capsys.readouterr().out]

    ours = spelled(fit())
    with on_stock():
        assert ours == spelled(fit())
    assert "val-core/a/acc/mean@1" in ours[-1]


# --- the v1 trainer --------------------------------------------------------------------------------------------------


@covers("trainer_v1", "PPOTrainer.__init__")
def test_the_v1_trainer_is_made_as_stock_makes_it(config):
    trainer_sync = pytest.importorskip("verl.trainer.ppo.v1.trainer_sync")
    assert_made_as_on_stock(lambda: trainer_sync.PPOTrainerSync(config.copy()))


@covers("trainer_v1", "PPOTrainer.step")
@pytest.mark.parametrize("size", [4, 3])
def test_a_step_of_the_v1_trainer_joins_its_parts_as_stock_does(size):
    trainer_sync = pytest.importorskip("verl.trainer.ppo.v1.trainer_sync")
    from transfer_queue import KVBatchMeta

    made = object.__new__(trainer_sync.PPOTrainerSync)
    made.config = OmegaConf.create({"data": {"train_batch_size": size}})
    made.parameter_sync_step = 2
    made.agent_loop_manager = SimpleNamespace(agent_loop_workers=[])
    made.prepare_step = lambda: {"training/prepared": 1}

    def part(metrics, timing_raw, sample_batch_size):
        """A stand-in for a step on one mini-batch, which needs a model."""
        number = made.local_trigger_step
        metrics.update({"actor/loss": float(number), "reward_extra/acc/mean": torch.tensor(0.5)})
        keys = [f"u{number}_{session}_0" for session in range(sample_batch_size)]
        return KVBatchMeta(keys=keys, tags=[{"is_padding": not session} for session in range(len(keys))])

    made._step_once = part

    def step():
        metrics = {}
        batch = made.step(metrics, {})
        return [metrics, batch.keys, batch.tags, batch.partition_id]

    with on_stock():
        theirs = outcome(step)
    with mock.patch("ray.get", side_effect=AssertionError("there are no workers to be asked, and maybe no Ray")):
        assert outcome(step) == theirs
    assert raised(theirs) == (size == 3)


# --- the v1 trainer's earlier form ---------------------------------------------------------------------------------


@covers("main_ppo_sync", *[patch.target for patch in main_ppo_sync.site._patches])
def test_the_earlier_form_of_the_v1_trainer_has_the_very_patches_that_are_compared_with_stock_there():
    v1 = {patch.target: patch for patch in trainer_v1.site._patches}
    for patch in main_ppo_sync.site._patches:
        assert (patch.teach, patch.needed) == (v1[patch.target].teach, v1[patch.target].needed)
    assert v1["PPOTrainer.__init__"].teach is trainer.beginning_run


@covers("main_ppo", "run_ppo")
def test_a_run_starts_the_task_that_stock_starts():
    from verl.trainer import main_ppo as verls

    config = OmegaConf.create(
        {
            "actor_rollout_ref": {"rollout": {"full_determinism": False}},
            "reward": {"reward_model": {"enable": False, "rollout": {"full_determinism": False}}},
            "trainer": {"logger": ["console"]},
            "global_profiler": {"tool": None},
            "ray_kwargs": {},
        }
    )
    started = []
    task = SimpleNamespace(run=SimpleNamespace(remote=lambda config: started.append(("ran", config))))
    runner = SimpleNamespace(remote=lambda: started.append("made") or task)
    ray = SimpleNamespace(is_initialized=lambda: True, get=lambda ref: ref)  # a stand-in, which has been started
    stock = getattr(verls.run_ppo, "__wrapped__", verls.run_ppo)
    (patch,) = main_ppo.site._patches
    with mock.patch.object(verls, "ray", ray):
        assert patch.teach(stock)(config, runner) == stock(config, runner)
    assert started[:2] == started[2:] == ["made", ("ran", config)]


# --- the workers' environment ----------------------------------------------------------------------------------------

VARIABLES = ["NCCL_DEBUG", "VLLM_LOGGING_LEVEL", "PYTHONHASHSEED", "VERL_FULL_DETERMINISM", "TOKENIZERS_PARALLELISM"]
FORWARDED = ["VERL_EXT_DISABLE", runtime_env.MODULES, runtime_env.PLUGINS]


@covers("runtime_env", "get_ppo_ray_runtime_env")
@given(environment=st.dictionaries(st.sampled_from([*VARIABLES, *FORWARDED]), st.sampled_from(["", "1", "x,y"])))
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_workers_get_the_environment_that_stock_gives_them_and_the_variables_of_plugins(environment):
    from verl.trainer import constants_ppo

    kept = {name: value for name, value in os.environ.items() if name not in [*VARIABLES, *FORWARDED]}
    with mock.patch.dict(os.environ, {**kept, **environment}, clear=True):
        ours = constants_ppo.get_ppo_ray_runtime_env()
        with on_stock():
            theirs = constants_ppo.get_ppo_ray_runtime_env()
    assert {**ours, "env_vars": None} == {**theirs, "env_vars": None}
    assert ours["env_vars"].items() >= theirs["env_vars"].items()
    assert ours["env_vars"][DRIVER] == verl_ext.__version__
    added = ours["env_vars"].keys() - theirs["env_vars"].keys()
    assert all(name in FORWARDED or name.startswith("VERL_EXT_") for name in added)
