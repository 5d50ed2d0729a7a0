"""Rows whose recorded answers earn what a test plans for them, and what tests ask of the batches that come of them.

verl loads the reward function from this file's path.
"""

from pathlib import Path

import numpy as np
from verl.utils.reward_score import default_compute_score

REWARDS = [
    f"reward.custom_reward_function.path='{Path(__file__)}'",
    "reward.custom_reward_function.name=planned_or_verls_own",
    "reward.num_workers=1",
]
QUESTIONS = 256


def planned_or_verls_own(data_source, solution_str, ground_truth, extra_info, **kwargs):
    """What is planned for this answer, which is a number; verl's own scorers for verl's own data sources."""
    if data_source == "planned":
        return extra_info["rewards"][int(solution_str)]
    return default_compute_score(data_source, solution_str, ground_truth, extra_info)


def rows_of(rows, plans):
    """One row for each plan, a pair of data source and rewards: a question, or a row of verl's own with that source."""
    real = _real_rows(rows)
    return [
        question(number, rewards) if source == "planned" else real[source]
        for number, (source, rewards) in enumerate(plans)
    ]


def question(number, rewards=()):
    """A row whose answers are "0", "1", ..., and earn `rewards[0]`, `rewards[1]`, ..."""
    return {
        "data_source": "planned",
        "prompt": [{"role": "user", "content": f"question {number}"}],
        "ability": "none",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": number, "rewards": list(rewards)},
    }


def answered(rows, count):
    """Every question and row of verl's own with `count` answers, for the client to record; the first one is right."""
    answers = [question(number) | {"response": str(answer)} for number in range(QUESTIONS) for answer in range(count)]
    for row in _real_rows(rows).values():
        answers += [row, *({**row, "response": "No idea."} for _ in range(count - 1))]
    return answers


def _real_rows(rows):
    right = [row for row in rows if row["extra_info"]["recorded"] == "right"]
    return {
        source: next(row for row in right if row["data_source"] == source) for source in ("openai/gsm8k", "math_dapo")
    }


def score(info):
    """The score that goes with an emitted dict."""
    return info["score"] if "score" in info else info["acc"]


def reward_columns(batch):
    """The reward columns in order: dtype and values."""
    return {key: described(batch.non_tensor_batch[key]) for key in batch.meta_info["reward_extra_keys"]}


def described(column):
    return str(column.dtype), column.tolist()


def lost_keys(batch, emitted):
    """The keys of which a value is not at its row, equal and of its kind."""

    def there(row, key, value):
        found = batch.non_tensor_batch[key][row] if key in batch.non_tensor_batch else None
        found = found.tolist() if isinstance(found, np.ndarray | np.generic) else found
        return found == value and isinstance(found, str) == isinstance(value, str)

    return sorted({key for row, info in enumerate(emitted) for key in info if not there(row, key, info[key])})


def lost_or_raised(job, emitted):
    """What `job`, which returns a batch, loses: the keys, or the name of the exception that it raises."""
    kinds = (AssertionError, KeyError, ValueError)
    try:
        return lost_keys(job(), emitted)
    except kinds as error:  # Ray raises a worker's error as a subclass of it
        return next(kind.__name__ for kind in kinds if isinstance(error, kind))


def assert_rows_hold(batch, emitted):
    """Each row has its own values, `None` for the keys of others, and its own score."""
    keys = batch.meta_info["reward_extra_keys"]
    assert set(keys) == {key for info in emitted for key in info}
    columns = [batch.non_tensor_batch[key].tolist() for key in keys]
    assert list(zip(*columns, strict=True)) == [tuple(info.get(key) for key in keys) for info in emitted]
    assert batch.batch["rm_scores"].sum(dim=1).tolist() == [score(info) for info in emitted]


def assert_bit_for_bit(ours, theirs, measured=()):
    """Both batches are the same; of columns and entries whose names start with one of `measured`, only the kind is."""
    # verl collects the agent loop's extra fields in a set, so the order of those columns changes by process
    assert sorted(ours.non_tensor_batch) == sorted(theirs.non_tensor_batch)
    for name, column in theirs.non_tensor_batch.items():
        same = ours.non_tensor_batch[name]
        assert (type(same), same.dtype, same.shape) == (type(column), column.dtype, column.shape)
        assert name.startswith(measured) or repr(same.tolist()) == repr(column.tolist())
    assert list(ours.batch.keys()) == list(theirs.batch.keys())
    assert all(
        tensor.dtype == ours.batch[name].dtype and tensor.equal(ours.batch[name])
        for name, tensor in theirs.batch.items()
    )
    assert ours.meta_info.keys() == theirs.meta_info.keys()
    for key, value in theirs.meta_info.items():
        assert type(ours.meta_info[key]) is type(value)
        assert key.startswith(measured) or repr(ours.meta_info[key]) == repr(value)
