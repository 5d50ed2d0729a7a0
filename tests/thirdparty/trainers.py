"""Trainers that build on verl's, or on nothing: with a validation and a group filter of their own."""

import copy
from collections import defaultdict

import numpy as np
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo.metric_utils import process_validation_metrics
from verl.trainer.ppo.ray_trainer import RayPPOTrainer, ResourcePoolManager
from verl.trainer.ppo.reward import extract_reward
from verl.trainer.ppo.utils import Role

from . import recipes
from .surroundings import prompts, rows_of


class OwnBatches(RayPPOTrainer):
    """verl's trainer, which it constructs itself, on batches that its maker gives it instead of files."""

    def _create_dataloader(self, *args, **kwargs):
        self.train_dataloader = self.val_dataloader = None
        self.total_training_steps = 1


class OwnValidation(OwnBatches):
    """A trainer whose `_validate` replaces verl's, and keeps one list for each key as verl's does."""

    def _validate(self):
        return validated(self.val_dataloader, self.async_rollout_manager)


class OwnFilter(OwnValidation):
    """A trainer whose `fit` filters groups by a metric, as DAPO does."""

    def fit(self):
        """The numbers of the groups, of two questions each, that the filter keeps."""
        self.seen = []
        for batch_dict in self.train_dataloader:
            batch = recipes.scored(united(batch_dict, self.async_rollout_manager))
            numbers = [info["index"] // 2 for info in batch.non_tensor_batch["extra_info"]]
            batch.non_tensor_batch["uid"] = np.array(numbers, dtype=object)
            self.seen.append(batch)
            yield from recipes.kept_by(batch, self.config.algorithm.filter_groups.metric)


def united(batch_dict, manager):
    """A batch of the data loader, united with what is generated for it."""
    batch = DataProto.from_single_dict(dict(batch_dict))
    batch.non_tensor_batch["uid"] = np.arange(len(batch)).astype(object)
    columns = dict(batch.non_tensor_batch)
    output = manager.generate_sequences(DataProto.from_dict(non_tensors=columns, meta_info={"global_steps": 1}))
    batch.pop(non_tensor_batch_keys=[name for name in columns if name in output.non_tensor_batch])
    return batch.union(output)


def validated(batches, manager):
    """A validation as projects write it: lists that grow batch by batch, and must be as long as there are samples."""
    infos, scores, sources, uids = defaultdict(list), [], [], []
    for number, batch_dict in enumerate(batches):
        batch = united(batch_dict, manager)
        tensor, columns = extract_reward(batch)
        scores.extend(tensor.sum(-1).tolist())
        infos["reward"].extend(tensor.sum(-1).tolist())
        for key, column in columns.items():
            infos[key].extend(column.tolist())
        sources.append(batch.non_tensor_batch["data_source"])
        uids.extend(f"{number}_{row}" for row in range(len(batch)))
    for key, values in infos.items():
        assert len(values) in (0, len(scores)), f"{key}: {len(values)} values for {len(scores)} samples"
    metrics = process_validation_metrics(np.concatenate(sources), uids, infos)
    return {
        f"{source}/{key}/{name}": value
        for source, keys in metrics.items()
        for key, of_key in keys.items()
        for name, value in of_key.items()
    }


def trainer(verl, trainer_class, *batches_of_infos, settings=None):
    """A trainer, made by verl's constructor, on the managers of these tests; a batch for each list of dicts."""
    config = copy.deepcopy(verl.config)
    OmegaConf.set_struct(config, False)
    config.merge_with(settings or {})
    made = trainer_class(
        config=config,
        tokenizer=None,
        role_worker_mapping={Role.ActorRolloutRef: None},
        resource_pool_manager=ResourcePoolManager(
            resource_pool_spec={"global_pool": [1]}, mapping={Role.ActorRolloutRef: "global_pool"}
        ),
    )
    made.async_rollout_manager = verl.manager()
    made.train_dataloader = made.val_dataloader = batches_of(*batches_of_infos)
    return made


def batches_of(*batches_of_infos):
    """Batches as a data loader gives them, one for each list of dicts."""
    batches, start = [], 0
    for infos in batches_of_infos:
        columns = prompts(rows_of(infos, start)).non_tensor_batch
        batches.append({**columns, "dummy_tensor": torch.zeros(len(infos), 1, dtype=torch.uint8)})
        start += len(infos)
    return batches
