"""`_validate` of both trainers on whatever a scorer returns, and what surrounds it: verl's own beside ours.

The trainers, their loops and metrics are verl's own. Stand-ins, by their names below, are the model with its tokenizer,
the data loader, and the queue.
"""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from on_stock import on_stock
from outcomes import outcome, raised
from sites import covers
from values import FAMILIES, each_family

from verl_ext import plugin
from verl_ext.plugin import _run, _site
from verl_ext.schema import dense_column, object_column

pytestmark = pytest.mark.filterwarnings("ignore")  # NumPy's and torch's, of what they make of such values

SETTINGS = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much]
)


@pytest.fixture(autouse=True)
def a_new_run(monkeypatch):
    """As if nothing had been validated or warned of before; and verl's bootstrap, but it draws ten times, not 1,000."""
    plugin.activate()
    from verl.trainer.ppo import metric_utils

    bootstrap = metric_utils.bootstrap_metric
    monkeypatch.setattr(metric_utils, "bootstrap_metric", lambda **given: bootstrap(**{**given, "n_bootstrap": 10}))
    monkeypatch.setattr(_site, "_warned", set())
    _run.of(SimpleNamespace(config=None))


def rows_of(family, count):
    """The dicts that a scorer of one schema returns, and the scores of `count` samples."""
    keys = st.sampled_from([("acc",), ("acc", "pred"), ("score", "pred"), ("pred",), ("acc", 3), (None, "acc")])
    values = st.lists(
        FAMILIES[family].map(lambda value: "none" if value is None else value), min_size=count, max_size=count
    )
    others = st.lists(FAMILIES["text"] | FAMILIES["integers"], min_size=count, max_size=count) | st.lists(
        FAMILIES["text"], min_size=count, max_size=count
    )

    def rows(first, one, other):
        columns = [one, other][: len(first)]
        return [dict(zip(first, row, strict=True)) for row in zip(*columns, strict=True)]

    return st.builds(rows, keys, values, others)


@st.composite
def validations(draw, family):
    """Batches of a validation, of one schema: by batch, its data sources, reward dicts and scores."""
    sizes = draw(st.lists(st.integers(1, 2), min_size=1, max_size=2))
    responses = draw(st.integers(1, 3))
    rows = draw(rows_of(family, sum(sizes) * responses))
    sources = draw(st.lists(st.sampled_from(["a", "b"]), min_size=sum(sizes), max_size=sum(sizes)))
    batches = []
    for size in sizes:
        batches.append((sources[:size], rows[: size * responses]))
        sources, rows = sources[size:], rows[size * responses :]
    return responses, batches


def score_of(row):
    return float(row % 3) / 2


# --- the legacy trainer ----------------------------------------------------------------------------------------------


def stock_column(values):
    """What verl makes of the values of a key that every row has, where it can."""
    try:
        return np.array(values)
    except Exception:
        return object_column(values)


class Tokenizer:
    """A stand-in: every text is its tokens' numbers."""

    eos_token_id, pad_token_id = 1, 0

    def decode(self, ids, skip_special_tokens):
        return " ".join(map(str, ids.tolist()))


class AnswersAndScores:
    """A stand-in for the agent loop with its workers: each batch has its columns ready."""

    def __init__(self, columns):
        self.columns = iter(columns)

    def generate_sequences(self, batch):
        from verl import DataProto

        columns, rows = next(self.columns), len(batch)
        tokens = torch.ones(rows, 2, dtype=torch.long)
        scores = torch.tensor([[0.0, score_of(row)] for row in range(rows)])
        return DataProto.from_dict(
            tensors={"prompts": tokens, "responses": tokens, "rm_scores": scores},
            non_tensors={**columns, "__num_turns__": np.full(rows, 2, dtype=np.int32)},
            meta_info={"reward_extra_keys": list(columns)},
        )


def legacy_trainer(validation, column=stock_column):
    """verl's RayPPOTrainer before a `_validate` over these batches; `column` makes one of the values of a key."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    responses, batches = validation
    rollout = {"val_kwargs": {"n": responses, "do_sample": True}, "agent": {"num_workers": 1}}
    trainer = object.__new__(RayPPOTrainer)
    trainer.config = OmegaConf.create(
        {"actor_rollout_ref": {"rollout": rollout}, "trainer": {"log_val_generations": 0}}
    )
    trainer.tokenizer, trainer.use_rm, trainer.global_steps = Tokenizer(), False, 0
    uids = iter(f"p{number}" for number in range(100))
    trainer.val_dataloader = [
        {
            "data_source": np.array(sources, dtype=object),
            "uid": np.array([next(uids) for _ in sources], dtype=object),
            "reward_model": np.array([{"ground_truth": "4"} for _ in sources], dtype=object),
            "dummy": torch.zeros(len(sources), 1),
        }
        for sources, _ in batches
    ]
    trainer.async_rollout_manager = AnswersAndScores(
        [{key: column([row[key] for row in rows]) for key in rows[0]} for _, rows in batches]
    )
    return trainer


@covers("trainer", "RayPPOTrainer._validate", "extract_reward", "RayPPOTrainer._merge_validation_results")
@each_family()
@given(data=st.data())
@settings(SETTINGS, max_examples=3)
def test_the_legacy_trainer_validates_batches_of_one_schema_as_stock_does(family, data):
    one, other = data.draw(validations(family)), data.draw(validations(family))

    def lists(validation):
        return legacy_trainer(validation)._validate(merged=True)

    def metrics(validation):
        return legacy_trainer(validation)._validate()

    def merged(one, other):
        results = [None if validation is None else lists(validation) for validation in (one, other)]
        return legacy_trainer(([], []))._merge_validation_results(*results)

    for call in (
        lambda: lists(one),
        lambda: metrics(one),
        lambda: merged(one, one),
        lambda: merged(None, one),
        lambda: merged(one, None),
        lambda: merged(None, None),
        lambda: legacy_trainer(([], []))._merge_validation_results({}, {}),
    ):
        assert_as_stock(call)
    assert isinstance(merged(one, other), dict)


DATES = {"datetime64", "timedelta64"}
"""They stay dates, on purpose; stock makes integers of nanoseconds, and averages those."""


@each_family(but=DATES)
@given(data=st.data())
@settings(SETTINGS, max_examples=3)
def test_the_columns_that_rewards_become_are_validated_to_the_numbers_of_stock(family, data):
    validation = data.draw(validations(family))
    rows = [row for _, rows in validation[1] for row in rows]
    # Text beside numbers stays as it is, on purpose; stock has made text of the numbers, and averages none of them.
    assume(all(len({isinstance(row[key], str) for row in rows}) == 1 for key in rows[0]))
    with on_stock():
        theirs = outcome(lambda: legacy_trainer(validation)._validate())
    ours = outcome(lambda: legacy_trainer(validation, dense_column)._validate())
    assert not raised(ours)
    assert raised(theirs) or ours.items() >= theirs.items()


def assert_as_stock(call):
    """What stock returns comes out, and where it raises, something that is no error."""
    with on_stock():
        theirs = outcome(call)
    ours = outcome(call)
    assert ours == theirs or (raised(theirs) and not raised(ours))


# --- the v1 trainer --------------------------------------------------------------------------------------------------


class Sessions:
    """A stand-in for the agent loop and the replay buffer: a prompt's sessions are put into the queue at once.

    Args:
        queue: where they go.
        rows: the reward dicts of all sessions, in order.
        responses: how many sessions each prompt starts.
        failing: whether the last of several leaves no sample.
    """

    def __init__(self, queue, rows, responses, failing):
        self.queue, self.rows, self.responses, self.failing = queue, iter(rows), responses, failing
        self.keys = []

    def generate_sequences(self, batch):
        self.keys = []
        for uid, source in zip(batch["uid"], batch["data_source"], strict=True):
            for session in range(self.responses):
                row = next(self.rows)
                if self.failing and session == self.responses - 1 > 0:
                    continue
                sample = {
                    "uid": uid,
                    "prompts": torch.ones(2 + session, dtype=torch.long),
                    "responses": torch.ones(2, dtype=torch.long),
                    "rm_scores": torch.tensor([0.0, score_of(session)]),
                    "num_turns": 2,
                    "reward_model": {"ground_truth": "4"},
                    "data_source": source,
                    "extra_fields": {"reward_extra_info": row},
                }
                self.keys.append(f"{uid}_{session}_0")
                self.queue.partitions["val"][self.keys[-1]] = sample

    def sample(self, global_steps, partition_id, batch_size):
        from transfer_queue import KVBatchMeta

        return KVBatchMeta(keys=self.keys, tags=[{} for _ in self.keys], partition_id=partition_id), {}


def v1_validation(validation, failing=False):
    """A function that runs verl's v1 `_validate` over these batches."""
    from queue_in_memory import QueueInMemory
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    responses, batches = validation

    def validate():
        trainer, queue = object.__new__(PPOTrainerSync), QueueInMemory()
        rollout = {"val_kwargs": {"n": responses}}
        trainer.config = OmegaConf.create(
            {"actor_rollout_ref": {"rollout": rollout}, "trainer": {"log_val_generations": 0}}
        )
        trainer.tokenizer, trainer.global_steps = Tokenizer(), 0
        trainer.val_dataloader = [
            {"data_source": np.array(sources, dtype=object), "raw_prompt": np.array(sources, dtype=object)}
            for sources, _ in batches
        ]
        sessions = Sessions(queue, [row for _, rows in batches for row in rows], responses, failing)
        trainer.agent_loop_manager = trainer.replay_buffer = sessions
        trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
        with queue.in_place():
            return trainer._validate()

    return validate


@covers("trainer_v1", "PPOTrainer._validate", "tq.kv_batch_get")
@each_family()
@given(data=st.data(), failing=st.booleans())
@settings(SETTINGS, max_examples=3)
def test_the_v1_trainer_validates_samples_of_one_schema_as_stock_does(family, data, failing):
    pytest.importorskip("verl.trainer.ppo.v1.trainer_sync")
    assert_as_stock(v1_validation(data.draw(validations(family)), failing))


@covers("trainer_v1", "tq.kv_batch_get")
@given(values=st.lists(st.sampled_from(sorted(FAMILIES)).flatmap(FAMILIES.get), min_size=2, max_size=2))
@pytest.mark.parametrize("fields", [None, "extra_fields", "rm_scores", ["rm_scores", "extra_fields"], "nothing"])
@settings(SETTINGS, max_examples=20)
def test_what_is_asked_of_the_queue_comes_as_on_stock(fields, values):
    pytest.importorskip("verl.trainer.ppo.v1.trainer_sync")
    import transfer_queue
    from queue_in_memory import QueueInMemory

    queue = QueueInMemory()
    queue.partitions["train"] = {
        f"u_{row}_0": {"extra_fields": {"reward_extra_info": {"acc": value}}, "num_turns": torch.tensor(row)}
        for row, value in enumerate(values)
    }

    def asked():
        with queue.in_place():
            data = transfer_queue.kv_batch_get(list(queue.partitions["train"]), "train", fields)
        return {name: values.tolist() for name, values in data.items()}

    assert_as_stock(asked)
    assert not raised(outcome(asked))


# --- both ------------------------------------------------------------------------------------------------------------


def validate_legacy(validation):
    return legacy_trainer(validation)._validate()


def validate_v1(validation):
    pytest.importorskip("verl.trainer.ppo.v1.trainer_sync")
    return v1_validation(validation)()


@pytest.mark.parametrize("validate", [validate_legacy, validate_v1])
def test_a_key_named_reward_and_one_named_as_that_is_kept_apart_are_both_logged(validate):
    metrics = validate((1, [(["a"], [{"reward": 1.0, "reward_extra/reward": 0.25}])]))
    assert metrics["val-aux/a/reward_extra/reward/mean@1"] == 0.25, "which stock logs, too"
    (own,) = [name for name in metrics if re.fullmatch(r"val-aux/a/reward_extra/reward #.{8}/mean@1", name)]
    assert metrics[own] == 1.0
    assert metrics["val-core/a/reward/mean@1"] == score_of(0) == 0.0
    alone = validate((1, [(["a"], [{"reward": 1.0}]), (["a"], [{"reward": 0.0}])]))
    assert alone["val-aux/a/reward_extra/reward/mean@1"] == 0.5


@pytest.mark.parametrize("validate", [validate_legacy, validate_v1])
def test_batches_of_different_schemas_are_averaged_over_the_samples_that_have_a_key(validate):
    first = (["a", "a"], [{"acc": torch.tensor(1.0)}, {"acc": torch.tensor(0.0)}])
    second = (["a", "b"], [{"score": [1.0, 2.0]}, {"score": [3.0, 4.0]}])
    metrics = validate((1, [first, second]))
    assert (metrics["val-core/a/acc/mean@1"], metrics["val-aux/a/acc/coverage@1"]) == (0.5, 2 / 3)
    assert (metrics["val-aux/a/score/mean@1"], metrics["val-aux/a/score/coverage@1"]) == (1.5, 1 / 3)
    assert (metrics["val-aux/b/score/mean@1"], "val-aux/b/score/coverage@1" in metrics) == (3.5, False)
