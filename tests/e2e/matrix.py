"""Every trainer of verl's, each run to its end over rows of different reward schemas, and counted.

A case is a trainer, an algorithm and an order of rows. Whether it runs on stock verl is decided by the process that it
runs in, as for any user. The trainers are verl's own; what stands in for models and servers is in `doubles`,
`integration.separation`, `integration.fully_async` and `e2e_v1.doubles`.
"""

import asyncio
import contextlib
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from e2e_v1 import v1
from integration import fully_async, separation
from verl import DataProto
from verl.experimental.fully_async_policy.detach_utils import MetricsAggregator
from verl.experimental.fully_async_policy.fully_async_rollouter import FullyAsyncAgentLoopManager
from verl.utils.tokenizer import hf_tokenizer

from verl_ext import plugin
from verl_ext.demo import rig

from . import legacy, scorers
from .legacy import (
    GSM8K,
    MATH_DAPO,
    PROMPTS,
    STEPS,
    Answer,
    Returned,
    Row,
    answers,
    asked,
    dumped,
    emitted,
    lost_values,
    of,
    question,
    returned,
    returned_in_validation,
)
from .table import Outcome

PATIENCE = 180
"""Seconds after which a run is given up. A run takes one or two; the first one waits for what workers import."""

NONE_IN_A_COMPONENT, SOME_WITHOUT_ACC = "None for a component", "some samples without acc"
ASKED = {NONE_IN_A_COMPONENT: "format_is_none", SOME_WITHOUT_ACC: "acc_where_sure"}
"""No orders: here the reward function itself returns a None; or no `acc` for some answers to a question."""


def _questions(scorer: str, _: Sequence[Row]) -> list[Row]:
    return [question(scorer, number) for number in range(STEPS * PROMPTS)]


ORDERS = {**legacy.ORDERS, **{order: partial(_questions, scorer) for order, scorer in ASKED.items()}}
"""The rows to train on."""

ALGORITHMS = {
    "GRPO": legacy.ALGORITHMS["grpo"],
    "REMAX": legacy.ALGORITHMS["remax"],
    "GDPO": legacy.ALGORITHMS["gdpo"],
}
OVER_FORMAT = ["algorithm.adv_estimator=gdpo", "+algorithm.gdpo_reward_keys=[acc,format]", "+verl_ext.fill.format=0.0"]

DUMPS_OWN = ("input", "output", "gts", "score", "step")
"""The fields that a line of verl's dump has anyway."""


@dataclass(frozen=True)
class Case:
    """A trainer, an algorithm and an order of rows: names of `TRAINERS`, `ALGORITHMS` and `ORDERS`."""

    trainer: str
    algorithm: str
    order: str

    def rows(self, rows: Sequence[Row]) -> list[Row]:
        """Those to train on."""
        return ORDERS[self.order](rows)

    def validation_rows(self, rows: Sequence[Row]) -> list[Row]:
        """Those to validate on, in batches of four: of one data source, then of the other; or mixed."""
        if self.order in ASKED:
            return self.rows(rows)[:4]
        sources = {"gsm8k first": (GSM8K, MATH_DAPO), "math_dapo first": (MATH_DAPO, GSM8K)}.get(self.order)
        return [row for source in sources for row in of(rows, source)[-4:]] if sources else list(rows[20:28])

    @property
    def overrides(self) -> list[str]:
        """Of verl's configuration."""
        return OVER_FORMAT if self.order == NONE_IN_A_COMPONENT else ALGORITHMS[self.algorithm]

    def due(self, rows: Sequence[Row]) -> tuple[Returned, Returned]:
        """What the reward functions return in training, and in validation if the trainer's steps hold one."""
        train, val = self.rows(rows), self.validation_rows(rows)
        if self.trainer in V1_MODES:
            return _with_scores(train), _with_scores(val)
        validated = returned_in_validation(val) if self.trainer == "legacy" else {}
        return returned(train), {answer: _beside_own(info) for answer, info in validated.items()}


def _beside_own(info: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key not in DUMPS_OWN}


def _with_scores(rows: Sequence[Row]) -> Returned:
    """What the v1 trainer has nowhere but in its dumps: the rows' own scores too, whatever their scorer returned."""
    outcomes = {(asked(row), answer): emitted(row, answer) for row in rows for answer in answers(row)}
    return {answer: {**_beside_own(info), "score": score} for answer, (score, info) in outcomes.items()}


# --- what the cases share ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Surroundings:
    """Worker processes and a queue, in which any number of cases run one after another."""

    rows: Sequence[Row]
    managers: legacy.Managers
    queue: Any
    directory: Path
    _v1_workers: dict[bool, v1.Workers] = field(default_factory=dict)

    def v1_workers(self) -> v1.Workers:
        """Worker processes of the v1 trainer, with the plugin if this process has it now."""
        on = plugin.site_is_active("protocol")
        if on not in self._v1_workers:
            config = v1.v1_config(self.managers.model_dir)
            self._v1_workers[on] = v1.Workers(config, plugin=on, agent_loop_workers=2)
        return self._v1_workers[on]

    def config(self, *overrides: str) -> Any:
        """verl's configuration for a trainer that has neither data files nor checkpoints."""
        settings = ["trainer.test_freq=-1", "trainer.save_freq=-1"]
        return rig.compose_config(self.managers.model_dir, [*legacy.SETTINGS, *settings, *overrides])

    @contextlib.contextmanager
    def nothing_scored_in_the_loop(self) -> Iterator[None]:
        """As where the reward model shares the trainer's GPUs."""
        handles = self.managers.reward_loop.reward_loop_worker_handles

        def be_scored_by(worker: Any, handles: Any) -> None:
            worker.reward_loop_worker_handles = handles

        def tell(handles: Any) -> None:
            workers = self.managers.agent_loop.agent_loop_workers
            ray.get([worker.__ray_call__.remote(be_scored_by, handles) for worker in workers])

        tell(None)
        try:
            yield
        finally:
            tell(handles)


@contextlib.contextmanager
def surroundings(rows: Sequence[Row], managers: legacy.Managers) -> Iterator[Surroundings]:
    """Start what else the cases share, on the running Ray."""
    with (
        tempfile.TemporaryDirectory() as directory,
        fully_async.message_queue(rig.compose_config(managers.model_dir)) as queue,
    ):
        v1.open_queue(v1.v1_config(managers.model_dir))
        try:
            around = Surroundings(rows, managers, queue, Path(directory))
            around.v1_workers()  # which take a while to start
            yield around
        finally:
            tq.close()


# --- the trainers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What is left of a run: the steps that were done, the values that arrived in training, the actor's advantages.

    And the exception, the dump of validation, and the metrics of it that are wrong; a trainer's steps may hold none.
    """

    steps: int
    arrived: Sequence[tuple[Answer, Mapping[str, Any]]]
    advantages: Sequence[torch.Tensor]
    error: Exception | None
    validation: Sequence[tuple[Answer, Mapping[str, Any]]] = ()
    wrong: Mapping[str, str] = field(default_factory=dict)


def _legacy(case: Case, around: Surroundings) -> Run:
    workdir = Path(tempfile.mkdtemp(dir=around.directory))
    rows = case.rows(around.rows), case.validation_rows(around.rows)
    trainer = legacy.legacy_trainer(*rows, case.overrides, workdir, around.managers)
    run = legacy.fit(trainer)
    advantages = [batch["advantages"][batch["response_mask"].bool()] for batch in run.batches]
    validation = [dumped(line) for line in run.validations.get(STEPS, ())]
    return Run(run.steps_done, run.arrived(trainer), advantages, run.error, validation)


def _separation(trainer_class: type, case: Case, around: Surroundings, *, scores: bool = False) -> Run:
    """With `scores`, the trainer has the samples scored, not the agent loop."""
    rows, managers = case.rows(around.rows), around.managers
    scorers = [managers.reward_loop] if scores else []
    config = around.config(*case.overrides, f"trainer.balance_batch={not scores}")  # else it reorders what is scored
    trainer = trainer_class(config, managers.agent_loop, *scorers, steps=STEPS)
    batches = [separation.loaded(rows[start : start + PROMPTS]) for start in range(0, len(rows), PROMPTS)]
    with around.nothing_scored_in_the_loop() if scores else contextlib.nullcontext():
        error = _raised(lambda: trainer.train_on(batches))
    return _run(len(trainer.seen), trainer.seen, error, around)


class FullyAsyncTrainer(separation.WithoutModels, fully_async.Trainer):
    """verl's fully-async trainer, which takes its steps without models; the weights never come to be sent."""

    def __init__(self, config: Any, queue: Any):
        separation.WithoutModels.__init__(self, config, None, steps=STEPS)
        fully_async.Trainer.__init__(self, config, queue, PROMPTS)
        self.metrics_aggregator = MetricsAggregator(total_gpus=1)
        self.dynamic_resource_controller = self.rollouter = None
        self.local_trigger_step, self.trigger_parameter_sync_step = 1, STEPS + 1
        self.last_ckpt_version = self.current_param_version
        self.steps_done = 0

    def _update_actor(self, batch: DataProto) -> DataProto:
        self.seen.append(batch)
        return super()._update_actor(batch)

    async def train_on(self, rollouter: fully_async.Rollouter, batches: Iterable[Any]) -> None:
        """Take a step for each batch of rollout samples, which the rollouter sends through the queue."""
        for samples in batches:
            await rollouter.send(samples)
            await self.fit_step()
            self.steps_done += 1
        if hasattr(self, "_fit_log_aggregated_training_metrics"):
            self._fit_log_aggregated_training_metrics({})
        else:  # verl 0.8 does it where it sends the weights
            self.logger.log(data=self.metrics_aggregator.get_aggregated_metrics(), step=self.current_param_version)


def _fully_async(case: Case, around: Surroundings) -> Run:
    trainer = FullyAsyncTrainer(around.config(*case.overrides), around.queue)
    error = trained(trainer, case.rows(around.rows), around.managers)
    return _run(trainer.steps_done, trainer.seen, error, around)


def trained(trainer: FullyAsyncTrainer, rows: Sequence[Row], managers: legacy.Managers) -> Exception | None:
    """Let verl's rollouter feed the trainer the rows, in batches; the exception that ends it."""
    queue = trainer.message_queue_client
    manager = FullyAsyncAgentLoopManager(trainer.config, managers.agent_loop.llm_client)
    manager.agent_loop_workers = managers.agent_loop.agent_loop_workers
    samples = fully_async.rollout_samples(rows, trainer.config)
    batches = [samples[start : start + PROMPTS] for start in range(0, len(samples), PROMPTS)]

    async def fit() -> None:
        try:
            await trainer.train_on(fully_async.Rollouter(manager, queue), batches)
        finally:
            await queue.clear_queue()

    return _raised(lambda: asyncio.run(fit()))


def _raised(job: Callable[[], Any]) -> Exception | None:
    try:
        job()
    except Exception as error:  # on stock verl, the exception is the outcome
        return error
    return None


def _run(steps: int, batches: Sequence[DataProto], error: Exception | None, around: Surroundings) -> Run:
    tokenizer = hf_tokenizer(str(around.managers.model_dir))
    arrived = []
    for batch in batches:
        columns = {key: column.tolist() for key, column in batch.non_tensor_batch.items()}
        texts = tokenizer.batch_decode(batch.batch["responses"], skip_special_tokens=True)
        for number, (prompt, text) in enumerate(zip(columns["raw_prompt"], texts, strict=True)):
            arrived.append(((prompt[0]["content"], text), {key: column[number] for key, column in columns.items()}))
    advantages = [batch.batch["advantages"][batch.batch["response_mask"].bool()] for batch in batches]
    return Run(steps, arrived, advantages, error)


V1_SETTINGS = [
    f"reward.custom_reward_function.path='{scorers.__file__}'",
    "reward.custom_reward_function.name=compute_score",
    f"data.train_batch_size={PROMPTS}",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS}",
    f"trainer.test_freq={STEPS}",
    "trainer.val_before_train=false",
]


def _v1(mode: str, case: Case, around: Surroundings) -> Run:
    """verl's default trainer, whose batches stay in its queue: what arrives is what its dumps show."""
    train, val = (
        [{**row, "responses": answers(row)} for row in rows]
        for rows in (case.rows(around.rows), case.validation_rows(around.rows))
    )
    run = v1.run(
        train=train,
        val=val,
        overrides=[*V1_SETTINGS, *v1.form.MODES[mode], *case.overrides],
        root=around.directory,
        workers=around.v1_workers(),
        model_dir=around.managers.model_dir,
    )
    logged: list[dict[str, float]] = []
    error = _raised(lambda: logged.extend(run.fit()))
    arrived = [dumped(line) for step in range(1, STEPS + 1) for line in _lines(run.workdir / "rollout", step)]
    validation = [dumped(line) for line in _lines(run.workdir / "validation", STEPS)]
    wrong = _wrong_accuracies(val, logged[-1]) if logged else {}
    return Run(run.updates, arrived, run.advantages, error, validation, wrong)


def _lines(directory: Path, step: int) -> list[bytes]:
    path = directory / f"{step}.jsonl"
    return path.read_bytes().splitlines() if path.exists() else []


def _wrong_accuracies(rows: Sequence[Row], metrics: Mapping[str, float]) -> dict[str, str]:
    """The mean accuracies that are not the mean over a prompt's answers that have one, and then over prompts."""
    prompts: dict[str, list[float]] = {}
    for row in rows:
        infos = [emitted(row, answer)[1] for answer in answers(row)]
        prompts.setdefault(row["data_source"], []).append(np.mean([info["acc"] for info in infos if "acc" in info]))
    right = {f"val-core/{source}/acc/mean@{legacy.N}": float(np.mean(means)) for source, means in prompts.items()}
    return {name: f"{metrics.get(name)}, not {mean}" for name, mean in right.items() if metrics.get(name) != mean}


V1_MODES = {f"v1, {mode.replace('_', ' ')}": mode for mode in v1.form.MODES}

TRAINERS: dict[str, Callable[[Case, Surroundings], Run]] = {
    "legacy": _legacy,
    "separation": partial(_separation, separation.SeparationTrainer),
    "separation, scores itself": partial(_separation, separation.SeparationTrainer, scores=True),
    "one-step-off": partial(_separation, separation.OneStepOffTrainer),
    "one-step-off, scores itself": partial(_separation, separation.OneStepOffTrainer, scores=True),
    "fully async": _fully_async,
    **{trainer: partial(_v1, mode) for trainer, mode in V1_MODES.items()},
}


# --- the cases ---------------------------------------------------------------------------------------------------


def _cases() -> Iterator[Case]:
    in_turn, by_worker = list(legacy.ORDERS)[:2], list(legacy.ORDERS)[2:]
    for trainer, algorithms, orders in (
        ("legacy", ALGORITHMS, [*in_turn, *by_worker]),
        ("separation", ALGORITHMS, [*in_turn, *by_worker]),
        ("separation, scores itself", ALGORITHMS, in_turn),
        ("one-step-off", ["GRPO", "GDPO"], [*in_turn, *by_worker]),  # it has no REMAX
        ("one-step-off, scores itself", ["GRPO"], in_turn),
        ("fully async", ["GRPO", "GDPO"], in_turn),  # each row is a sample of its own
        *((trainer, ["GRPO", "GDPO"] if mode == "sync" else ["GRPO"], in_turn) for trainer, mode in V1_MODES.items()),
    ):
        for algorithm in algorithms:
            yield from (Case(trainer, algorithm, order) for order in orders)
            if algorithm == "GDPO":
                yield Case(trainer, algorithm, NONE_IN_A_COMPONENT)
            elif trainer == "v1, sync":
                yield Case(trainer, algorithm, SOME_WITHOUT_ACC)


CASES = list(_cases())

SHORT = [
    Case("legacy", "GRPO", "gsm8k first"),
    Case("legacy", "REMAX", "math_dapo first"),
    Case("legacy", "GDPO", NONE_IN_A_COMPONENT),
    Case("separation", "GRPO", "by worker: gsm8k, math_dapo"),
    Case("separation", "REMAX", "gsm8k first"),
    Case("separation, scores itself", "GRPO", "gsm8k first"),
    Case("one-step-off", "GRPO", "by worker: math_dapo, gsm8k"),
    Case("fully async", "GRPO", "math_dapo first"),
    Case("fully async", "GDPO", "gsm8k first"),
    Case("v1, sync", "GRPO", SOME_WITHOUT_ACC),
    Case("v1, sync", "GDPO", NONE_IN_A_COMPONENT),
    *(Case(trainer, "GRPO", "gsm8k first") for trainer in V1_MODES),
]


def outcome_of(case: Case, around: Surroundings) -> Outcome:
    """Run a case in this process, to its end or its error."""
    trained, validated = case.due(around.rows)
    try:
        with _patience():
            run = TRAINERS[case.trainer](case, around)
    except Exception as error:  # out of the rig, or out of patience
        run = Run(0, [], [], error)
    lost = [*lost_values(trained, run.arrived), *lost_values(validated, run.validation)]
    return Outcome(
        **asdict(case),
        due=STEPS,
        steps=run.steps,
        values=sum(map(len, [*trained.values(), *validated.values()])),
        lost=dict(Counter(key for _, key, _, _ in lost)),
        advantages=sum(found.numel() for found in run.advantages),
        nans=sum(int(found.isnan().sum()) for found in run.advantages),
        wrong=run.wrong,
        error=_told(run.error),
    )


def _told(error: Exception | None) -> str:
    """An exception in one line: what Ray wraps around the one of a worker is left out."""
    if error is None:
        return ""
    error = getattr(error, "cause", None) or error
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


@contextlib.contextmanager
def _patience() -> Iterator[None]:
    def give_up(*_: Any) -> None:
        raise TimeoutError(f"not at its end after {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
