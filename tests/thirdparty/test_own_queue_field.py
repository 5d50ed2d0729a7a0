"""An agent framework that writes `reward_extra_info` into TransferQueue as a field of its own, beside `extra_fields`.

The queue is a dict here; verl's v1 trainer, which reads it, is verl's own.
"""

import json
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from omegaconf import OmegaConf

from verl_ext.errors import MissingRewardError

from .surroundings import DAPO, GSM8K, outcome

tq = pytest.importorskip("transfer_queue", reason="verl's v1 trainer needs TransferQueue")
trainer_base = pytest.importorskip("verl.trainer.ppo.v1.trainer_base", reason="this verl has no v1 trainer")
replay_buffer = pytest.importorskip("verl.trainer.ppo.v1.replay_buffer")
tensordict_utils = pytest.importorskip("verl.utils.tensordict_utils")

INFOS = [GSM8K, DAPO, {"acc": 0.0}, {**DAPO, "score": 1.0}]
KEYS = [f"u{number // 2}_{number % 2}_0" for number in range(len(INFOS))]


def sample(number, info, own_field):
    """What such a framework writes for a sample; `own_field`: the reward dict is a field, not in `extra_fields`."""
    tokens = torch.arange(number + 1)
    per_token = ("advantages", "returns", "rm_scores", "token_level_rewards")
    field = {
        **dict.fromkeys(("prompts", "responses"), tokens),
        "response_mask": torch.ones_like(tokens),
        **{name: torch.zeros(len(tokens)) for name in per_token},
        "num_turns": torch.tensor(1),
        "uid": KEYS[number].split("_")[0],
        "data_source": "planned",
        "reward_model": {"ground_truth": str(number)},
    }
    return field | ({"reward_extra_info": info} if own_field else {"extra_fields": {"reward_extra_info": info}})


class Queue:
    """A double for TransferQueue: what was put, by key."""

    def __init__(self, fields):
        self.fields = fields

    def kv_batch_get(self, keys, partition_id, select_fields=None):
        rows = [self.fields[key] for key in keys]
        names = [name for name in rows[0] if select_fields is None or name in select_fields]
        return tensordict_utils.list_of_dict_to_tensordict([{name: row[name] for name in names} for row in rows])


@pytest.fixture(params=[True, False], ids=["a field of its own", "in the extra fields"])
def queue(request):
    fields = {key: sample(number, INFOS[number], request.param) for number, key in enumerate(KEYS)}
    queue = Queue(fields)
    with mock.patch.object(tq, "kv_batch_get", tq_patched(queue)):
        yield queue


def tq_patched(queue):
    """The queue's reader as verl's trainer sees it: with what the plugin has laid around it."""
    from verl_ext.plugin import trainer_v1

    return trainer_v1._kv_batch_get.teach(queue.kv_batch_get)


class Trainer(trainer_base.PPOTrainer):
    """verl's trainer, without the parts that a kind of it adds, and with what its readers of the queue need."""

    def __init__(self, config):
        self.config, self.use_critic, self.global_steps = config, False, 1
        self.tokenizer = SimpleNamespace(pad_token_id=0, decode=lambda ids, **_: str(ids.tolist()))
        self._rollout_moe_lb_metrics_accumulator = defaultdict(list)
        self._dump_futures, self._dump_executor = [], ThreadPoolExecutor(1)

    def _get_n_gpus_for_throughput(self):
        return 1

    def on_sample_end(self, *args, **kwargs): ...

    def on_step_end(self, *args, **kwargs): ...


@pytest.fixture
def trainer(verl):
    return Trainer(verl.config)


def batch():
    tags = [{"min_global_steps": 1, "max_global_steps": 1} for _ in KEYS]
    return SimpleNamespace(keys=KEYS, partition_id="train", tags=tags)


def test_its_keys_are_in_the_metrics_of_the_v1_trainer(queue, trainer):
    metrics = {}
    timing = Counter({"step": 1.0, "gen": 1.0})
    trainer._compute_metrics(batch(), metrics, timing, global_steps=1, epoch=0)
    assert metrics["reward_extra/score/mean"] == 0.0
    assert metrics["reward_extra/score/coverage"] == 0.5


def test_its_keys_are_in_the_rollout_dump(queue, trainer, tmp_path):
    trainer._log_rollout_data(batch(), Counter(), str(tmp_path))
    trainer._dump_executor.shutdown()
    lines = [json.loads(line) for line in (tmp_path / "1.jsonl").read_text().splitlines()]
    assert [line["acc"] for line in lines] == [info["acc"] for info in INFOS]
    assert [line["pred"] for line in lines] == [info.get("pred") for info in INFOS]


def test_the_group_filter_reads_it_or_names_what_is_missing(queue, verl):
    made = object.__new__(replay_buffer.ReplayBuffer)
    vars(made).update(
        filter_groups_metric="score",
        trainer_config=OmegaConf.merge(verl.config, {}),
        finished_keys={"train": {"u0", "u1"}},
        partitions={"train": dict.fromkeys(KEYS)},
        _dapo_classification_cache=defaultdict(dict),
    )
    error = outcome(lambda: made._dapo_filtered_keys("train"))
    assert isinstance(error, MissingRewardError)
    assert "2 of 4 samples lack" in str(error)
