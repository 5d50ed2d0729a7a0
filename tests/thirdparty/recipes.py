"""What recipes do with the batches that they get: unite, filter, join, train. Written for these tests."""

from collections import defaultdict

import numpy as np
import torch
from verl import DataProto
from verl.trainer.ppo.reward import extract_reward

from .surroundings import loaded, prompts, rows_of


def united(verl, infos, **kwargs):
    """Generate for samples that earn `infos`, and unite the trainer's own batch with what comes back."""
    rows = rows_of(infos)
    output = verl.manager(**kwargs).generate_sequences(prompts(rows))
    output.meta_info.pop("timing", None)
    return loaded(rows).union(output)


def scored(batch):
    """The rewards out of a batch, and back into it as arrays: what trainers do before the advantages."""
    scores, infos = extract_reward(batch)
    batch.batch["token_level_scores"] = scores
    batch.non_tensor_batch.update({key: np.array(values) for key, values in infos.items()})
    return batch


def joined(verl, *batches_of_infos):
    """Dynamic sampling: batch after batch is generated, united and scored, and joined with those before."""
    batch = None
    for infos in batches_of_infos:
        new = scored(united(verl, infos))
        batch = new if batch is None else DataProto.concat([batch, new])
    return batch


def kept_by(batch, metric):
    """The ids of the groups whose samples differ in a metric: those that a group filter keeps."""
    values = defaultdict(list)
    for uid, value in zip(batch.non_tensor_batch["uid"], batch.non_tensor_batch[metric], strict=True):
        values[uid].append(value)
    return [uid for uid, group in values.items() if np.std(group) > 0 or len(group) == 1]


def with_greedy_baseline(verl, sampled, greedy, n):
    """REMAX as a recipe does it: the greedy answers are united with the batch, scored, and their tensors taken out
    again; then the batch is repeated, and united with the sampled answers."""
    rows = rows_of(greedy)
    batch = loaded(rows)
    sampled_rows = [{**rows[number // n], **row} for number, row in enumerate(_sampled_rows(rows, sampled, n))]
    output = verl.manager().generate_sequences(prompts(sampled_rows))
    baseline = verl.manager().generate_sequences(prompts(rows))
    for generated in (output, baseline):
        generated.meta_info.pop("timing", None)

    batch = batch.union(baseline)
    scores, _ = extract_reward(batch)
    batch.pop(batch_keys=list(baseline.batch.keys()))
    batch.batch["reward_baselines"] = scores.sum(dim=-1)
    return batch.repeat(repeat_times=n, interleave=True).union(output)


def _sampled_rows(rows, infos, n):
    """The rows for the sampled answers: each question n times, with what each of its answers earns."""
    for number, info in enumerate(infos):
        row = rows[number // n]
        yield {"extra_info": {**row["extra_info"], "emit": info, "reward": 1.0}}


def of_first_sample(outputs, answers):
    """A batch of single samples that a recipe had scored one by one: the keys are those of its first sample.

    Args:
        outputs: one batch of one sample each, without rewards.
        answers: what the reward worker answered for each; `None` where that failed.
    """
    batch = DataProto.concat(outputs)
    batch.batch["rm_scores"] = torch.tensor([[answer["reward_score"] if answer else -1.0] for answer in answers])
    infos = [answer["reward_extra_info"] if answer else {} for answer in answers]
    keys = list(infos[0])
    for key in keys:
        batch.non_tensor_batch[key] = np.array([info.get(key) for info in infos], dtype=object)
    if keys:
        batch.meta_info["reward_extra_keys"] = keys
    return batch


def means(infos):
    """Metrics of reward columns as a project takes them: those of a number dtype, and no others."""
    return {
        f"critic/{key}/mean": float(column.mean())
        for key, column in infos.items()
        if np.issubdtype(column.dtype, np.number)
    }
