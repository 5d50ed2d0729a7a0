"""verl's legacy trainer, `RayPPOTrainer`, on a CPU: built of verl's own parts and three doubles, run, and read back.

The reward loop and the agent loop take seconds to start and do not depend on the algorithm, so that one pair of them
serves any number of trainers.
"""

import contextlib
import inspect
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from actors import release
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.trainer.ppo.ray_trainer import RayPPOTrainer, ResourcePoolManager, Role
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils import tensordict_utils as tu
from verl.utils.config import validate_config
from verl.utils.tokenizer import hf_tokenizer

from verl_ext.demo import rig

from . import doubles, scorers
from .doubles import ActorGroup, CheckpointManager, Client

Row = Mapping[str, Any]

Answer = tuple[str, str]
"""A question and an answer to it, which together tell the samples of a run apart."""

Returned = Mapping[Answer, Mapping[str, Any]]
"""The dict that the reward function returned for each answer."""

N = 2
"""Rollouts of each prompt, and answers on record for it."""

RANKS = 2
"""Data-parallel ranks of the actor."""

PROMPTS = 6
"""Prompts of a training batch: two of each of the demo's data sources, which come in turn."""

STEPS = 2

GSM8K, MATH_DAPO, MATH = "openai/gsm8k", "math_dapo", "lighteval/MATH"

NO_ANSWER = "I do not know."
QUESTIONS = 16

DUMPS_NUMPY = hasattr(RayPPOTrainer, "_write_generations")
"""Whether stock verl's dumps take NumPy's booleans and integers, as text; in verl 0.7, they are a TypeError."""

REMAX_TAKES_REWARDS_APART = "__do_sample__" in inspect.unwrap(RayPPOTrainer.fit).__code__.co_consts
"""Whether the greedy answers' reward columns stay out of the batch of the sampled ones.

verl 0.7 unites both: an error wherever a key has another value for the greedy answer, on stock verl as with us.
"""

SETTINGS = [
    "++trainer.use_v1=false",  # verl 0.8 has no such setting
    "++trainer.use_legacy_worker_impl=disable",  # verl 0.7 has two forms of workers; the other takes no TensorDict
    "trainer.nnodes=1",
    f"trainer.n_gpus_per_node={RANKS}",
    "trainer.logger=[file]",
    "trainer.resume_mode=disable",
    "trainer.total_epochs=1",
    f"trainer.total_training_steps={STEPS}",
    f"trainer.test_freq={STEPS}",
    "trainer.val_before_train=false",
    "algorithm.adv_estimator=grpo",
    f"data.train_batch_size={PROMPTS}",
    "data.val_batch_size=4",
    "data.shuffle=false",
    "data.dataloader_num_workers=0",
    "data.max_response_length=256",
    f"actor_rollout_ref.rollout.n={N}",
    "actor_rollout_ref.rollout.val_kwargs.temperature=1.0",
    "actor_rollout_ref.actor.use_dynamic_bsz=true",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS // 2}",
    f"reward.custom_reward_function.path='{scorers.__file__}'",
    "reward.custom_reward_function.name=compute_score",
]


# --- the rows ----------------------------------------------------------------------------------------------------


def question(scorer: str, number: int) -> dict[str, Any]:
    """A row for a function of `scorers.py`, number `number` of QUESTIONS. Its answers are "0" and "1"."""
    return {
        "data_source": scorer,
        "prompt": [{"role": "user", "content": f"question {number}"}],
        "ability": "none",
        "reward_model": {"style": "rule", "ground_truth": ""},
        "extra_info": {"index": number},
    }


def answers(row: Row) -> list[str]:
    """The N answers on record for a row, which its rollouts get in turn; a greedy one gets the first."""
    return [row["response"], NO_ANSWER] if "response" in row else [str(answer) for answer in range(N)]


def asked(row: Row) -> str:
    """The question of a row."""
    return row["prompt"][0]["content"]


def question_of(entry: Mapping[str, Any]) -> str:
    """The question that a line of a dump is about, out of the prompt as the chat template writes it."""
    return entry["input"].removeprefix("user\n").removesuffix("\nassistant\n")


def emitted(row: Row, answer: str) -> tuple[float, dict[str, Any]]:
    """The score and the dict that the reward function makes of an answer, as verl's naive reward manager reads them."""
    result = scorers.compute_score(
        row["data_source"], answer, row["reward_model"]["ground_truth"], dict(row["extra_info"])
    )
    return (result["score"], result) if isinstance(result, dict) else (result, {"acc": result})


def of(rows: Sequence[Row], *sources: str) -> list[Row]:
    """The rows of each data source, one data source after the other."""
    return [row for source in sources for row in rows if row["data_source"] == source]


def halves(rows: Sequence[Row], *sources: str) -> list[Row]:
    """Batches of which the first half is of the first data source, and the second of the second."""
    first, second = (of(rows, source) for source in sources)
    half = PROMPTS // 2
    return [
        row for start in range(0, STEPS * half, half) for part in (first, second) for row in part[start : start + half]
    ]


ORDERS: dict[str, Callable[[Sequence[Row]], list[Row]]] = {
    "gsm8k first": lambda rows: list(rows[: STEPS * PROMPTS]),
    "math_dapo first": lambda rows: list(rows[1 : STEPS * PROMPTS + 1]),
    "by worker: gsm8k, math_dapo": lambda rows: halves(rows, GSM8K, MATH_DAPO),
    "by worker: math_dapo, gsm8k": lambda rows: halves(rows, MATH_DAPO, GSM8K),
}
"""The demo's rows in STEPS batches, of which each half goes to one of two agent-loop workers: the data sources in turn
in both halves, or one in each."""

ALGORITHMS = {
    "grpo": ["algorithm.adv_estimator=grpo"],
    "grpo with a reference policy": ["algorithm.adv_estimator=grpo", "algorithm.use_kl_in_reward=true"],
    "remax": ["algorithm.adv_estimator=remax"],
    "gdpo": [
        "algorithm.adv_estimator=gdpo",
        "+algorithm.gdpo_reward_keys=[acc,score]",
        "+verl_ext.fill.score=0.0",
    ],
}


# --- the parts that trainers share -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Managers:
    """verl's reward loop and agent loop, started, and the model directory that they read."""

    model_dir: Path
    reward_loop: Any
    agent_loop: Any


@contextlib.contextmanager
def managers(model_dir: Path, rows: Sequence[Row], overrides: Sequence[str] = ()) -> Iterator[Managers]:
    """Start two workers of each on the running Ray; the answers to `rows` and to the questions are on record."""
    config = rig.compose_config(model_dir, [*SETTINGS, *overrides])
    asked = [*rows, *(question("", number) for number in range(QUESTIONS))]
    recorded = [{**row, "response": answer} for row in asked for answer in answers(row)]
    ray.cloudpickle.register_pickle_by_value(doubles)  # the client's class goes to workers that cannot import it
    reward_loop = rig.reward_loop_manager(config)
    try:
        agent_loop = rig.agent_loop_manager(config, Client(recorded, config), reward_loop.reward_loop_workers)
        try:
            yield Managers(model_dir, reward_loop, agent_loop)
        finally:
            release(agent_loop)
    finally:
        release(reward_loop)


# --- one trainer -------------------------------------------------------------------------------------------------


def legacy_trainer(
    rows_train: Sequence[Row], rows_val: Sequence[Row], overrides: Sequence[str], workdir: Path, shared: Managers
) -> RayPPOTrainer:
    """The trainer as verl's `main_ppo` and `TaskRunner.run` make it of the configuration, its workers included.

    Files of rows, metrics and dumps go to `workdir`, which belongs to this trainer alone.
    """
    files = {"train": rows_train, "val": rows_val}
    for name, rows in files.items():
        _write_rows(rows, workdir / f"{name}.parquet")
    config = rig.compose_config(
        shared.model_dir,
        [
            *SETTINGS,
            *(f"data.{name}_files='{workdir / name}.parquet'" for name in files),
            f"trainer.rollout_data_dir='{workdir / 'rollouts'}'",
            f"trainer.validation_data_dir='{workdir / 'validations'}'",
            f"trainer.default_local_dir='{workdir / 'checkpoints'}'",
            *overrides,
        ],
    )
    OmegaConf.resolve(config)
    validate_config(config, need_reference_policy(config), need_critic(config))
    with _cache_of_datasets(workdir):
        trainer = RayPPOTrainer(
            config=config,
            tokenizer=hf_tokenizer(config.actor_rollout_ref.model.path),
            role_worker_mapping={Role.ActorRolloutRef: None},
            resource_pool_manager=ResourcePoolManager(
                resource_pool_spec={"global_pool": [RANKS]}, mapping={Role.ActorRolloutRef: "global_pool"}
            ),
        )
    # what `init_workers` sets, which also starts the models
    trainer.actor_rollout_wg = trainer.ref_policy_wg = ActorGroup(RANKS)
    trainer.checkpoint_manager = CheckpointManager()
    trainer.reward_loop_manager = shared.reward_loop
    trainer.async_rollout_manager = shared.agent_loop
    trainer.teacher_model_manager = trainer.distillation_config = None
    return trainer


@dataclass
class Run:
    """What is left of a run: how it ended, what was logged and dumped, and what the actor was given to learn from.

    Attributes:
        error: what `fit` raised.
        metrics: by step, as verl's own file logger wrote them; a NaN is a `None` there.
        rollouts, validations: by step, the lines of verl's dumps, as bytes.
        batches: by step, what reached the actor's workers.
        versions: of the weights that were sent to the model server.
    """

    error: Exception | None = None
    metrics: dict[int, dict[str, Any]] = field(default_factory=dict, repr=False)
    rollouts: dict[int, list[bytes]] = field(default_factory=dict, repr=False)
    validations: dict[int, list[bytes]] = field(default_factory=dict, repr=False)
    batches: list[TensorDict] = field(default_factory=list, repr=False)
    versions: list[int] = field(default_factory=list)

    @property
    def steps_done(self) -> int:
        """Steps that ran to their end: verl logs a step last."""
        return sum("training/global_step" in metrics for metrics in self.metrics.values())

    def nans(self) -> tuple[int, int]:
        """How many of the advantages that the actor was given are NaN, and of how many, over the answers' tokens."""
        found = [batch["advantages"][batch["response_mask"].bool()] for batch in self.batches]
        return sum(int(values.isnan().sum()) for values in found), sum(values.numel() for values in found)

    def arrived(self, trainer: RayPPOTrainer) -> list[tuple[Answer, dict[str, Any]]]:
        """What the actor was given, row by row: the answer, and the row's value in every column."""
        rows = []
        for batch in self.batches:
            columns = {key: column for key in batch.keys() if isinstance(column := tu.get(batch, key), list)}
            texts = trainer.tokenizer.batch_decode(batch["responses"], skip_special_tokens=True)
            for number, (prompt, text) in enumerate(zip(columns["raw_prompt"], texts, strict=True)):
                values = {key: column[number] for key, column in columns.items() if len(column) == len(batch)}
                rows.append(((prompt[0]["content"], text), values))
        return rows

    def column(self, step: int, key: str) -> list[Any]:
        """A column of the batch that the actor was given at `step`, from 0 on; all `None` if there is no such key."""
        batch = self.batches[step]
        return tu.get(batch, key) if key in batch.keys() else [None] * len(batch)


def fit(trainer: RayPPOTrainer) -> Run:
    """Run `trainer.fit()` to its end or its error."""
    workdir = Path(trainer.config.trainer.rollout_data_dir).parent
    run = Run()
    with _environment(VERL_FILE_LOGGER_PATH=str(workdir / "metrics.jsonl")), doubles.flash_attn():
        try:
            trainer.fit()
        except Exception as error:  # on stock verl, the exception is the outcome
            run.error = error
        finally:
            _finish_dumps(trainer)
    for line in _lines(workdir / "metrics.jsonl"):
        event = json.loads(line)
        run.metrics.setdefault(event["step"], {}).update(event["data"])
    run.rollouts, run.validations = _dumps(workdir / "rollouts"), _dumps(workdir / "validations")
    run.batches = trainer.actor_rollout_wg.batches
    run.versions = trainer.checkpoint_manager.versions
    return run


def validate(trainer: RayPPOTrainer, *, merged: bool = False) -> tuple[dict[str, Any], list[bytes]]:
    """`trainer._validate()`, and the lines of its dump; with `merged`, the lists instead of the metrics."""
    trainer.global_steps = 0
    try:
        result = trainer._validate(merged=merged)
    finally:
        _finish_dumps(trainer)
    return result, _dumps(Path(trainer.config.trainer.validation_data_dir))[0]


def _finish_dumps(trainer: RayPPOTrainer) -> None:
    """Wait until what was dumped is on disk; verl 0.7 writes at once."""
    if hasattr(trainer, "_dump_executor"):
        trainer._shutdown_dump_executor()
        trainer._init_dump_executor()


# --- values in, values out ---------------------------------------------------------------------------------------


def returned(rows: Sequence[Row]) -> Returned:
    """What the reward functions return for every answer on record."""
    return {(asked(row), answer): emitted(row, answer)[1] for row in rows for answer in answers(row)}


def returned_in_validation(rows: Sequence[Row]) -> Returned:
    """What they return in validation, which asks for one answer to each row: the rows get theirs in turn."""
    turns = [(row, answers(row)[number % N]) for number, row in enumerate(rows)]
    return {(asked(row), answer): emitted(row, answer)[1] for row, answer in turns}


def dumped(line: bytes) -> tuple[Answer, dict[str, Any]]:
    """A line of verl's dump: the answer, and all that is written beside it."""
    entry = json.loads(line)
    return (question_of(entry), entry["output"]), entry


def lost_values(
    returned: Returned, arrived: Iterable[tuple[Answer, Mapping[str, Any]]]
) -> list[tuple[Answer, str, Any, Any]]:
    """Which of the values that were returned have not arrived with their answer: answer, key, value, and what has.

    A value has arrived if it is equal and of its kind (text is text, a number is a number). A key that was not returned
    has arrived as such if it is `None` or no column; else it is in the list too.
    """
    keys = dict.fromkeys(key for info in returned.values() for key in info)
    rows = dict(arrived)
    lost = []
    for answer, info in returned.items():
        row = rows.get(answer, {})
        for key in keys:
            value, found = info.get(key), row.get(key)
            absent = key in info and key not in row
            if absent or found != value or isinstance(found, str) != isinstance(value, str):
                lost.append((answer, key, value, found))
    return lost


# --- files -------------------------------------------------------------------------------------------------------


def _write_rows(rows: Sequence[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([{k: v for k, v in row.items() if k != "response"} for row in rows]), path)


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []


def _dumps(directory: Path) -> dict[int, list[bytes]]:
    return {int(path.stem): _lines(path) for path in sorted(directory.glob("*.jsonl"))}


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _cache_of_datasets(directory: Path) -> Iterator[None]:
    """`datasets` copies every file that it reads to a cache, which is the home directory's otherwise."""
    before = datasets.config.HF_DATASETS_CACHE
    datasets.config.HF_DATASETS_CACHE = directory / "datasets"
    try:
        yield
    finally:
        datasets.config.HF_DATASETS_CACHE = before
