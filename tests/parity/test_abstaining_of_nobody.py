"""What is patched for samples that abstain, in runs in which none does: verl's own, to the last bit."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from on_stock import on_stock
from queue_in_memory import QueueInMemory
from sites import covers
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.trainer.ppo import core_algos, ray_trainer
from verl.utils import tensordict_utils as tu

from verl_ext.plugin import _run
from verl_ext.settings import Settings

SETTINGS = pytest.mark.parametrize("settings", [{}, {"unscored": "abstain"}], ids=["error", "abstain"])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]])


@pytest.fixture
def run(settings, monkeypatch):
    monkeypatch.setattr(_run, "_run", _run.Run(Settings(**settings)))


@covers("trainer", "apply_kl_penalty")
@SETTINGS
def test_a_kl_penalty_is_verls_own(run):
    def penalized():
        scores = torch.tensor([[0.0, 0.0, 1.0], [0.5, 0.0, 0.0], [0.0, -1.0, 0.0]])
        names = ("old_log_probs", "ref_log_prob")
        tensors = {name: -(number + 1) * scores.cos() for number, name in enumerate(names)}
        data = DataProto(TensorDict({**tensors, "response_mask": MASK, "token_level_scores": scores}, 3))
        control = core_algos.AdaptiveKLController(init_kl_coef=0.1, target_kl=0.5, horizon=10)
        data, metrics = ray_trainer.apply_kl_penalty(data, control, kl_penalty="kl")
        return data.batch["token_level_rewards"].tolist(), metrics, control.value

    ours = penalized()
    with on_stock():
        assert ours == penalized()


@covers("reward_loop", "RewardLoopManager.__init__")
@SETTINGS
def test_a_reward_loop_manager_begins_as_verls_own(settings):
    from verl.experimental.reward_loop import reward_loop

    class WithoutWorkers(reward_loop.RewardLoopManager):
        def _init_reward_loop_workers(self):
            self.reward_loop_workers = []

    config = OmegaConf.create(
        {
            "reward": {
                "reward_model": {"enable": False},
                "reward_manager": {"source": "register", "name": "naive"},
            },
            "verl_ext": settings,
        }
    )

    def begun():
        manager = WithoutWorkers(config)
        return {name: value for name, value in vars(manager).items() if name != "reward_loop_workers_class"}

    ours = begun()
    with on_stock():
        assert ours == begun()


@covers("trainer_v1", "PPOTrainer._compute_old_log_prob")
@SETTINGS
def test_a_v1_step_takes_the_log_probs_that_verls_own_takes(settings):
    trainer_base = pytest.importorskip("verl.trainer.ppo.v1.trainer_base")
    config = OmegaConf.create({"algorithm": {"rollout_correction": {"bypass_mode": True}}, "verl_ext": settings})

    def stepped():
        queue = QueueInMemory()
        queue.partitions["train"] = {
            f"u_{row}_0": {
                "response_mask": MASK[row],
                "loss_mask": MASK[row],
                "rm_scores": torch.tensor([0.0, 0.0, float(row)]),
                "rollout_log_probs": torch.full((3,), -float(row)),
            }
            for row in range(3)
        }
        batch = SimpleNamespace(keys=[*queue.partitions["train"]], tags=[{}] * 3, partition_id="train")
        with queue.in_place():
            trainer_base.PPOTrainer._compute_old_log_prob(SimpleNamespace(config=config), batch, metrics={})
        return {
            key: {name: np.asarray(value).tolist() for name, value in sample.items()}
            for key, sample in queue.partitions["train"].items()
        }

    ours = stepped()
    with on_stock():
        assert ours == stepped()


@covers("losses", "ppo_loss", "value_loss")
@pytest.mark.parametrize("name", ["ppo_loss", "value_loss"])
@pytest.mark.parametrize(("score", "tokens"), [(1.0, 3), (1.0, 0), (torch.nan, 3)])
def test_a_loss_is_given_what_verls_own_is_given(name, score, tokens):
    from verl_ext.plugin.losses import site

    (patch,) = [patch for patch in site._patches if patch.target == name]
    data = TensorDict({"rm_scores": torch.tensor([[0.0, score]]), "response_mask": torch.ones(1, 2)}, 1)
    tu.assign_non_tensor(data, batch_num_tokens=tokens)
    given = ["config", {"log_probs": None}, data, "group"]
    taken = patch.teach(lambda config, model_output, data, dp_group=None: [config, model_output, data, dp_group])(
        *given
    )
    assert all(one is other for one, other in zip(taken, given, strict=True))
