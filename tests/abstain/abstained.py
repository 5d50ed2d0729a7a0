"""Made-up batches as trainers have them before advantages; and the obvious model: drop rows, compute, scatter."""

import numpy as np
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.trainer.ppo import core_algos, ray_trainer

LENGTH = 4

ESTIMATORS = sorted(core_algos.ADV_ESTIMATOR_REGISTRY)
"""Every estimator that this verl's registry holds."""

ALGORITHM = {"gdpo_reward_keys": ["acc", "form"], "norm_adv_by_std_in_grpo": True, "gamma": 0.9}


def algorithm(**settings):
    """verl's `config.algorithm`, in a configuration with these settings."""
    return OmegaConf.create({"algorithm": ALGORITHM, "verl_ext": settings}).algorithm


def batch(scores, groups, lengths=None, baselines=None, seed=0):
    """A batch of which each sample has a score, `None` for one that abstains.

    Args:
        scores: by sample.
        groups: by sample, its prompt.
        lengths: by sample, the tokens of its response; all of LENGTH by default.
        baselines: by sample, the score of REMAX's greedy answer.
        seed: of the numbers that a model would give.
    """
    count = len(scores)
    lengths = torch.tensor(lengths or [LENGTH] * count)
    mask = (torch.arange(LENGTH) < lengths.unsqueeze(1)).long()
    rewards = torch.zeros(count, LENGTH)
    rewards[torch.arange(count), lengths - 1] = torch.tensor([np.nan if s is None else s for s in scores])
    numbers = torch.Generator().manual_seed(seed)

    def per_token():
        return torch.rand(count, LENGTH, generator=numbers)

    tensors = {
        "prompts": torch.ones(count, 2, dtype=torch.long),
        "responses": torch.ones(count, LENGTH, dtype=torch.long),
        "attention_mask": torch.cat([torch.ones(count, 2, dtype=torch.long), mask], dim=1),
        "response_mask": mask,
        "rm_scores": rewards,
        "token_level_scores": rewards,
        "token_level_rewards": rewards,
        "values": per_token(),
        "old_log_probs": -per_token(),
        "ref_log_prob": -per_token(),
        "sum_pi_squared": per_token(),
    }
    if baselines is not None:
        tensors["reward_baselines"] = torch.tensor([np.nan if b is None else b for b in baselines])
    columns = {
        "uid": np.array([f"prompt {group}" for group in groups], dtype=object),
        "data_source": np.array([f"source {group % 2}" for group in groups], dtype=object),
        "acc": np.array([np.nan if s is None else s for s in scores], dtype=object),
        "form": np.array([0.5 * (row % 3) for row in range(count)], dtype=object),
    }
    return DataProto(TensorDict(tensors, count), columns, {})


def advantages(data, estimator, config):
    """verl's `compute_advantage`, as its trainers call it."""
    return ray_trainer.compute_advantage(
        data, adv_estimator=estimator, gamma=0.9, lam=0.8, norm_adv_by_std_in_grpo=True, config=config
    )


def dropped_and_scattered(data, rows, estimator, config):
    """What advantages and returns must be: those of a batch of the samples `rows` alone, and zeros for the others."""
    alone = advantages(data.select_idxs(np.array(rows)), estimator, config).batch
    whole = {name: torch.zeros(len(data), LENGTH, dtype=alone[name].dtype) for name in ("advantages", "returns")}
    for name, values in whole.items():
        for place, row in enumerate(np.flatnonzero(rows)):
            values[row] = alone[name][place]
    return whole
