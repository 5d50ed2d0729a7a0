"""The rig: verl's real v1 trainer on a CPU, on worker processes and a TransferQueue that trainers share."""

import copy
import json
import logging
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import datasets
import pyarrow
import pyarrow.parquet
import ray
import transfer_queue as tq
from actors import renewed
from verl.experimental.reward_loop import reward_loop
from verl.experimental.reward_loop.reward_loop import RewardLoopManager, RewardLoopWorker
from verl.utils.debug import marked_timer

from verl_ext import plugin
from verl_ext.demo import rig

from . import doubles
from .stock import form

USERS_FILE = Path(doubles.__file__)


def planned(question, *responses, source="planned", **columns):
    """A row of which each session's answer is one of `responses`: what it earns, written in Python."""
    return {
        "data_source": source,
        "prompt": [{"role": "user", "content": question}],
        "ability": "none",
        "reward_model": {"style": "rule", "ground_truth": "none"},
        "extra_info": {"index": 0, "split": "made"},
        "responses": [response if isinstance(response, str) else repr(response) for response in responses],
        **columns,
    }


def recorded(row, **columns):
    """A row of the demo: its one recorded answer is every session's."""
    return {
        **{key: value for key, value in row.items() if key != "response"},
        "responses": [row["response"]],
        **columns,
    }


# --- what trainers share -----------------------------------------------------------------------------------------


class Workers:
    """Worker processes with the plugin or, where `VERL_EXT_DISABLE=1`, without: agent loop workers and a reward worker.

    A process that imports verl takes seconds to start. So verl's managers get these instead of starting their own, and
    verl's own constructors are run in them again for each trainer.
    """

    def __init__(self, config, *, plugin, agent_loop_workers):
        env = {
            "PYTHONPATH": str(USERS_FILE.parent.parent),
            # Where verl finds plugins by entry point, this comes to the same.
            **({"VERL_USE_EXTERNAL_MODULES": "verl_ext.autoload"} if plugin else {"VERL_EXT_DISABLE": "1"}),
        }
        options = {"runtime_env": {"env_vars": env}}
        self.plugin = plugin
        with self.on():
            loop_worker = _made_anew(form.AgentLoopWorker)
            self.rewards = [ray.remote(RewardLoopWorker).options(**options).remote(config, None)]
            self.loops = [
                loop_worker.options(**options).remote(config, None, None, None) for _ in range(agent_loop_workers)
            ]

    def wait(self):
        """Wait for the processes, and make sure that the plugin is where it should be and nowhere else."""

        def taught(worker):
            names = []
            for name in dir(type(worker)):
                function = getattr(type(worker), name)
                while function is not None:
                    if getattr(function, "__globals__", {}).get("__name__", "").startswith("verl_ext."):
                        names.append(name)
                    function = getattr(function, "__wrapped__", None)
            return names

        for worker in [*self.loops, *self.rewards]:
            found = ray.get(worker.__ray_call__.remote(taught))
            if bool(found) != self.plugin:
                raise RuntimeError(f"a worker {'with' if self.plugin else 'without'} the plugin has taught {found}")
        return self

    def errors(self):
        """What the agent loop workers have logged as errors since this was asked last.

        verl trains without a sample whose session has failed, and says so in the worker's log alone.
        """

        def taken(worker):
            errors, worker.errors[:] = [*worker.errors], []
            return errors

        return [error for kept in ray.get([w.__ray_call__.remote(taken) for w in self.loops]) for error in kept]

    def renew_like(self, manager):
        """Make the agent loop workers those of `manager`, which keep what they log as errors."""
        renewed(
            self.loops, manager.config, manager.llm_client, manager.teacher_client, manager.reward_loop_worker_handles
        )

        def keep_errors(worker):
            class Kept(logging.Handler):
                def emit(self, record):
                    worker.errors.append(self.format(record))

            if not hasattr(worker, "errors"):
                worker.errors = []
                logging.getLogger().addHandler(Kept(logging.ERROR))

        ray.get([worker.__ray_call__.remote(keep_errors) for worker in self.loops])

    def close(self):
        for worker in [*self.loops, *self.rewards]:
            ray.kill(worker)

    def with_loops_of(self, other):
        """These workers, but for the agent loop workers, which are those of `other`."""
        mixed = copy.copy(self)
        mixed.loops = other.loops
        return mixed

    @contextmanager
    def on(self):
        """This process with or without the plugin, as the workers are."""
        before = plugin.site_is_active("protocol")
        _switch(self.plugin)
        try:
            yield
        finally:
            _switch(before)

    def reward_loop_manager(self):
        """verl's `RewardLoopManager`, but for who starts the workers."""
        workers = self

        class OnShared(RewardLoopManager):
            def _init_reward_loop_workers(self):
                self.reward_loop_workers = renewed(workers.rewards, self.config, self.reward_router_address)

        return OnShared

    def agent_loop_manager(self):
        """verl's `AgentLoopManagerTQ`, but for who starts the workers."""
        workers = self

        class OnShared(form.AgentLoopManager):
            async def _init_agent_loop_workers(self):
                workers.renew_like(self)
                self.agent_loop_workers = workers.loops

        return OnShared


def _switch(on):
    (plugin.activate if on else plugin.deactivate)()


def _made_anew(actor_class):
    """The actor class as Ray makes it now.

    verl has Ray make it when the module is imported, and then Ray puts a closure around every method. What stood there
    at that time stays in there, whatever is taught or undone later; and Ray can no longer send it to a worker by name.
    """
    original = actor_class.__ray_metadata__.modified_class.__ray_actor_class__
    return ray.remote(type(original.__name__, (original,), {}))


def open_queue(config):
    """Start TransferQueue with its in-memory storage, as verl's `TaskRunnerV1` does."""
    tq.init(config.transfer_queue)


def empty_queue():
    """Drop what a run that was given up has left in the queue."""
    for partition, keys in (tq.kv_list() or {}).items():
        if keys:
            tq.kv_clear(keys=list(keys), partition_id=partition)


# --- one trainer -------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """A trainer, what it was given, and where its dumps go."""

    trainer: object
    workers: Workers
    workdir: Path

    def validate(self):
        """verl's `_validate`: its metrics. The dump is in `validation_dump()`."""
        with self._running(), self._dumps_written():
            return self.trainer._validate()

    def step(self):
        """One turn of verl's training loop: `step`, metrics and rollout dump; the metrics."""
        trainer, metrics, timing = self.trainer, {}, {}
        with self._running(), self._dumps_written():
            trainer.global_steps += 1
            with marked_timer("step", timing):
                batch = form.step(trainer, metrics, timing)
            trainer._compute_metrics(batch, metrics, timing, global_steps=trainer.global_steps, epoch=0)
            trainer._log_rollout_data(batch, timing, trainer.config.trainer.rollout_data_dir)
            form.clear(trainer, batch)
        return metrics

    def rollout(self, *fields, score=False):
        """One rollout, without training on it: these fields of the queue, sample by sample.

        `score` lets a colocated reward model score it.
        """
        trainer = self.trainer
        with self._running():
            batch = form.rollout(trainer)
            if score:
                batch = trainer._compute_reward_colocate(batch, metrics={})
            data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields))
            form.clear(trainer, batch)
        return list(zip(*(data.pop(name).tolist() for name in fields), strict=True))

    def fit(self):
        """verl's `fit`; what it logged, step by step."""
        log = self.workdir / "log.jsonl"
        with self._running(), self._dumps_written(), mock.patch.dict("os.environ", VERL_FILE_LOGGER_PATH=str(log)):
            try:
                form.fit(self.trainer)
            finally:
                tracking = getattr(self.trainer, "logger", None)
                if tracking is not None:
                    tracking.logger["file"].finish()
        return [json.loads(line)["data"] for line in log.read_text().splitlines()]

    @property
    def manager(self):
        """The trainer's agent loop manager."""
        return getattr(self.trainer, form.MANAGER)

    @manager.setter
    def manager(self, manager):
        setattr(self.trainer, form.MANAGER, manager)

    def validation_dump(self, step=0):
        return self._lines("validation", step)

    def rollout_dump(self, step=1):
        return self._lines("rollout", step)

    @property
    def updates(self):
        """How often the actor was updated."""
        return self.trainer.actor_rollout_wg.updates

    @property
    def advantages(self):
        """The advantages of every update, one tensor per sample."""
        return [row for data in self.trainer.actor_rollout_wg.trained_on for row in data["advantages"].unbind()]

    def _lines(self, kind, step):
        return [json.loads(line) for line in (self.workdir / kind / f"{step}.jsonl").read_text().splitlines()]

    @contextmanager
    def _running(self):
        """The block runs as the workers do. A test that fails shows what has gone wrong in them: pytest prints it."""
        with self.workers.on():
            try:
                yield
            finally:
                print(*self.workers.errors(), sep="\n")

    @contextmanager
    def _dumps_written(self):
        """What the block dumps is in the files after it."""
        try:
            yield
        finally:
            futures, self.trainer._dump_futures = self.trainer._dump_futures, []
            for future in futures:
                future.result()


def v1_trainer(rows_train, rows_val, overrides, workdir, *, workers, model_dir):
    """verl's real v1 trainer, set up by itself, and its agent loop manager.

    Args:
        rows_train, rows_val: rows of `planned` or `recorded`.
        overrides: Hydra's, after those that fit the run to this machine.
        workdir: an empty directory for the data files and dumps.
        workers: whose processes to use, and whether the plugin runs.
        model_dir: what `rig.build_model_dir` made.

    Returns:
        The `Run`; `.trainer` is verl's.
    """
    n, val_n = (max(len(row["responses"]) for row in rows) for rows in (rows_train, rows_val))
    config = v1_config(
        model_dir,
        [
            f"data.train_files='{_parquet(rows_train, workdir / 'train.parquet')}'",
            f"data.val_files='{_parquet(rows_val, workdir / 'val.parquet')}'",
            f"data.train_batch_size={len(rows_train)}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={len(rows_train)}",
            f"actor_rollout_ref.rollout.n={n}",
            f"actor_rollout_ref.rollout.val_kwargs.n={val_n}",
            f"actor_rollout_ref.rollout.agent.agent_loop_config_path='{_loops(workdir / 'loops.yaml')}'",
            f"trainer.validation_data_dir='{workdir / 'validation'}'",
            f"trainer.rollout_data_dir='{workdir / 'rollout'}'",
            f"trainer.default_local_dir='{workdir / 'checkpoints'}'",
            *overrides,
        ],
    )
    answers = [{**row, "response": response} for row in [*rows_train, *rows_val] for response in row["responses"]]
    server = doubles.Server(answers, config)
    stand_ins = {
        "RayWorkerGroup": doubles.WorkerGroups,
        "ResourcePoolManager": doubles.Pools,
        "LLMServerManager": doubles.Servers(server),
        "RewardLoopManager": workers.reward_loop_manager(),
    }
    with (
        workers.on(),
        mock.patch.object(reward_loop, "RewardModelManager", doubles.RewardModel),
        mock.patch.object(datasets.config, "HF_DATASETS_CACHE", workdir / "datasets"),
    ):
        empty_queue()
        trainer = form.made(config, stand_ins, workers.agent_loop_manager())
    return Run(trainer, workers, workdir)


def run(*, train=(), val=(), overrides=(), root, workers, model_dir):
    """`v1_trainer` in a new directory under `root`; without rows to train or validate on, the others are taken."""
    workdir = Path(tempfile.mkdtemp(dir=root))
    return v1_trainer(train or val, val or train, overrides, workdir, workers=workers, model_dir=model_dir)


def v1_config(model_dir, overrides=()):
    """verl's configuration of a GRPO run on this machine."""
    return rig.compose_config(
        model_dir,
        [
            "algorithm.adv_estimator=grpo",
            "actor_rollout_ref.actor.use_dynamic_bsz=true",  # no micro-batch size to be named
            "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=true",
            "data.dataloader_num_workers=0",
            "data.shuffle=false",
            "data.validation_shuffle=false",
            f"reward.custom_reward_function.path='{USERS_FILE}'",
            "reward.custom_reward_function.name=as_answered",
            "reward.num_workers=1",
            "transfer_queue.enable=true",
            "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
            "trainer.n_gpus_per_node=2",
            "trainer.nnodes=1",
            "trainer.resume_mode=disable",
            "trainer.save_freq=-1",
            "trainer.test_freq=1",
            "trainer.total_epochs=1",
            "trainer.logger=[file]",
            *overrides,
        ],
    )


def _parquet(rows, path):
    columns = [{key: value for key, value in row.items() if key != "responses"} for row in rows]
    for row in columns:
        row.setdefault("agent_name", "single_turn_agent")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(columns), path)
    return path


def _loops(path):
    named = {name: f"{loop.__module__}.{loop.__qualname__}" for name, loop in doubles.LOOPS.items()}
    path.write_text(json.dumps([{"name": name, "_target_": target} for name, target in named.items()]))  # YAML
    return path
