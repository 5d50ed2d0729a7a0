"""One run of `python -m verl.trainer.main_ppo` on this machine: its settings, its process, and what it leaves behind.

Of verl: the command line, its configuration, and the files that it writes: the metrics of its file logger and the dumps
of `trainer.rollout_data_dir`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_ext.child import ended
from verl_ext.cpu import task
from verl_ext.errors import VerlExtError

PROCESS = {
    "VERL_PLATFORM": "cpu",
    "VERL_ENGINE_DEVICE": "cuda",  # verl registers its FSDP engine for cuda and npu
    "VERL_USE_EXTERNAL_MODULES": "verl_ext.cpu.platform,verl_ext.cpu.patches",
    "VERL_USE_EXTERNAL_PLUGINS": "auto",
    "HYDRA_FULL_ERROR": "1",
    "RAY_DEDUP_LOGS": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TQ_NUM_THREADS": "1",  # TransferQueue's 8 are a warning for each call on a machine of fewer cores
}
"""Variables of the driver, which the local Ray's workers inherit."""

DISABLED = {"stock verl": "1", "verl-ext": "0"}
"""What VERL_EXT_DISABLE is, by what is shown as the side's name."""

_FP32 = "{param_dtype: fp32, reduce_dtype: fp32, buffer_dtype: fp32}"

MACHINE = (
    "trainer.device=cpu",
    "trainer.nnodes=1",
    "actor_rollout_ref.model.external_lib=verl_ext.cpu.server",
    "+actor_rollout_ref.model.override_config.attn_implementation=eager",
    "actor_rollout_ref.model.use_remove_padding=false",
    "actor_rollout_ref.model.enable_gradient_checkpointing=false",
    "actor_rollout_ref.actor.strategy=fsdp2",  # FSDP1 does not run without a GPU
    "critic.strategy=fsdp2",
    f"+critic.fsdp.mixed_precision={_FP32}",
    "critic.fsdp.use_torch_compile=false",
    "critic.model.enable_gradient_checkpointing=false",
    "critic.model.use_remove_padding=false",
    f"+actor_rollout_ref.actor.fsdp_config.mixed_precision={_FP32}",
    f"+actor_rollout_ref.ref.fsdp_config.mixed_precision={_FP32}",
    "actor_rollout_ref.ref.fsdp_config.model_dtype=fp32",
    "actor_rollout_ref.actor.use_torch_compile=false",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
    "actor_rollout_ref.ref.fsdp_config.use_torch_compile=false",
    "actor_rollout_ref.rollout.name=transformers",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.free_cache_engine=false",
    "actor_rollout_ref.rollout.full_determinism=true",
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "reward.num_workers=1",
    "data.dataloader_num_workers=0",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "+ray_kwargs.ray_init.address=local",  # never a cluster that RAY_ADDRESS happens to name
    "+ray_kwargs.ray_init.include_dashboard=false",
    "+ray_kwargs.ray_init.object_store_memory=268435456",
)
"""What verl's configuration needs where there is no GPU, whatever is trained."""

ROLLOUTS = 8
"""Of each row."""

TRAINING = (
    "data.shuffle=false",
    "data.validation_shuffle=false",
    f"actor_rollout_ref.rollout.n={ROLLOUTS}",
    "actor_rollout_ref.actor.optim.lr=0.01",
    "actor_rollout_ref.actor.optim.weight_decay=0",
    "trainer.logger=[file]",
    "trainer.total_epochs=1000",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.save_freq=-1",
    "trainer.resume_mode=disable",
)
"""The recipe that a tiny model learns by, as far as the algorithm does not say it."""

TRAINERS = {"legacy": "false", "v1": "true"}
"""What `trainer.use_v1` is."""

STALLED = 600.0
"""Seconds without a sign of life after which a run is given up."""

ATTEMPTS, NO_RAY = 4, "timed out during startup"
"""How often Ray is started: it gives up after 30 seconds, which a busy machine needs and no setting changes."""

PAUSE = 0.2
"""Seconds between two looks at a run."""

_ENDED = 20.0
"""Seconds that verl has to end its Ray when a run is broken off."""

_ERROR = re.compile(r"(?:\w+\.)*(?:\w+(?:Error|Interrupt|Exit)|\w*Exception)(?::.*)?$")


class RunError(VerlExtError, RuntimeError):
    """A run could not be set up on this machine."""


@dataclass(frozen=True)
class Run:
    """A run: which trainer and algorithm, with the plugin or without, on which rows, in which directory."""

    trainer: str
    algorithm: str
    side: str
    directory: Path
    model: Path
    rows: Path
    reward: str
    """`path:name` of the reward function."""

    steps: int
    components: Sequence[str] = task.COMPONENTS
    """What GDPO trains on."""

    fills: Mapping[str, float] = field(default_factory=lambda: task.FILLS)
    """What GDPO trains with where a component is missing; stock verl does not read it."""

    batch: int = task.BATCH
    prompt_length: int = 128
    response_length: int = task.LENGTH
    ranks: int = 1
    overrides: Sequence[str] = ()
    coroutine: bool = False
    """Whether the reward function is one."""

    @property
    def emitted(self) -> Path:
        """A line of each call of the reward function."""
        return self.directory / "emitted.jsonl"

    @property
    def metrics(self) -> Path:
        """What verl's file logger writes: a line of each step."""
        return self.directory / "metrics.jsonl"

    @property
    def log(self) -> Path:
        """What the driver and its workers print."""
        return self.directory / "log.txt"

    @property
    def rollouts(self) -> Path:
        """verl's dumps of the training batches, one file for each step."""
        return self.directory / "rollouts"

    @property
    def validations(self) -> Path:
        """verl's dumps of validation."""
        return self.directory / "validations"

    @property
    def weights(self) -> Path:
        """Each version of the weights, as it was synced to the server of replica 0."""
        return self.directory / "weights"

    def settings(self) -> list[str]:
        """Hydra's overrides; those of the run come last and win."""
        from verl_ext.cpu import recorded

        here = Path(__file__).parent
        samples = self.batch * ROLLOUTS // self.ranks  # of a rank
        settings = [
            *MACHINE,
            *TRAINING,
            *(self._gdpo() if self.algorithm == "GDPO" else ()),
            f"algorithm.adv_estimator={self.algorithm.lower()}",
            f"trainer.use_v1={TRAINERS[self.trainer]}",
            f"trainer.n_gpus_per_node={self.ranks}",
            f"+ray_kwargs.ray_init.num_gpus={self.ranks}",
            f"ray_kwargs.ray_init.num_cpus={8 + 12 * self.ranks}",  # logical: verl reserves ten for each rank
            f"trainer.total_training_steps={self.steps}",
            f"actor_rollout_ref.model.path={quoted(self.model)}",
            f"critic.model.path={quoted(self.model)}",
            f"data.train_files={quoted(self.rows)}",
            f"data.val_files={quoted(self.rows)}",
            f"data.train_batch_size={self.batch}",
            f"data.max_prompt_length={self.prompt_length}",
            f"data.max_response_length={self.response_length}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={self.batch}",
            f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={samples}",
            f"critic.ppo_micro_batch_size_per_gpu={samples}",
            f"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu={samples}",
            f"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu={samples}",
            f"+actor_rollout_ref.rollout.custom.weights_dir={quoted(self.weights)}",
            f"actor_rollout_ref.rollout.agent.agent_loop_config_path={quoted(self.directory / 'loops.yaml')}",
            f"trainer.v1.sampler.custom_sampler.path={quoted(here / 'order.py')}",
            "trainer.v1.sampler.custom_sampler.name=OrderedReplayBuffer",
            f"reward.custom_reward_function.path={quoted(Path(recorded.__file__))}",
            f"reward.custom_reward_function.name=compute_score{'_async' if self.coroutine else ''}",
            f"+reward.custom_reward_function.reward_kwargs.function={quoted(self.reward)}",
            f"+reward.custom_reward_function.reward_kwargs.log={quoted(self.emitted)}",
            f"trainer.rollout_data_dir={quoted(self.rollouts)}",
            f"trainer.validation_data_dir={quoted(self.validations)}",
            f"trainer.default_local_dir={quoted(self.directory / 'checkpoints')}",
        ]
        return [*settings, *self.overrides]

    def _gdpo(self) -> list[str]:
        filled = ", ".join(f"{key}: {value}" for key, value in self.fills.items())  # Hydra's keys have no quotes
        return [
            f"+algorithm.gdpo_reward_keys=[{', '.join(map(quoted, self.components))}]",
            f"+verl_ext.fill={{{filled}}}",
        ]

    @contextmanager
    def started(self) -> Iterator[subprocess.Popen[bytes]]:
        """The driver's process, which is ended with the block, and its Ray with it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        loop = {"name": "single_turn_agent", "_target_": "verl_ext.cpu.order.NumberedAgentLoop"}
        (self.directory / "loops.yaml").write_text(json.dumps([loop]))  # which is YAML
        ray_directory = tempfile.mkdtemp(prefix="verl-ext-", dir="/tmp")  # sockets want a short path
        environment = {
            **{name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
            **PROCESS,
            "VERL_EXT_DISABLE": DISABLED[self.side],
            "VERL_FILE_LOGGER_PATH": str(self.metrics),
        }
        settings = [*self.settings(), f"+ray_kwargs.ray_init._temp_dir={ray_directory}"]
        command = [sys.executable, "-m", "verl.trainer.main_ppo", f"hydra.run.dir={quoted(self.directory)}", *settings]
        try:
            with (
                self.log.open("wb") as log,
                subprocess.Popen(  # noqa: S603  verl's command line, by this interpreter
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.directory,
                    env=environment,
                    start_new_session=True,  # Ctrl-C comes to it by us, once
                ) as process,
                ended(process, signal.SIGTERM, _ENDED),
            ):
                yield process
        finally:
            shutil.rmtree(ray_directory, ignore_errors=True)

    def logged(self) -> list[dict[str, Any]]:
        """The metrics of each step so far."""
        return [line["data"] for line in _lines(self.metrics)]

    def emitted_lines(self) -> list[dict[str, Any]]:
        """The calls of the reward function so far."""
        return list(_lines(self.emitted))

    def dumped(self) -> list[dict[str, Any]]:
        """The samples of every training batch, as verl's dumps have them, step after step."""
        return _dumps(self.rollouts)

    def validated(self) -> list[dict[str, Any]]:
        """The samples of every validation, likewise."""
        return _dumps(self.validations)

    def error(self) -> str:
        """The exception that the run ended with, in a line; what the log ends with, where there is none."""
        lines = self.log.read_text(errors="replace").splitlines()
        own = [line for line in lines if not line.startswith(("\x1b[36m(", "("))]  # not those of workers
        errors = [line for line in own if _ERROR.match(line) and not line.startswith("ray.exceptions.RayTaskError")]
        return errors[-1] if errors else (own or lines or ["it printed nothing"])[-1]

    def alive(self) -> float:
        """When the run last wrote something, in seconds since the epoch."""
        files = [self.log, self.metrics, self.emitted]
        return max(path.stat().st_mtime for path in files if path.exists())

    def to_its_end(self) -> Generator[int, None, int]:
        """Start the run, and say now and then how many steps are done; then it has ended.

        Returns:
            The exit code. A run that shows no sign of life for STALLED seconds is ended: -1.
        """
        code: int | None = None
        for _ in range(ATTEMPTS):
            with self.started() as process:
                while (code := process.poll()) is None:
                    yield len(self.logged())
                    if time.time() - self.alive() > STALLED:
                        with self.log.open("a") as log:
                            log.write(f"\nTimeoutError: given up after {STALLED:.0f} s without a sign of life\n")
                        return -1
                    time.sleep(PAUSE)
            if code == 0 or NO_RAY not in self.error():
                break
        yield len(self.logged())
        return -1 if code is None else code


def quoted(value: Path | str) -> str:
    """The text as Hydra's grammar wants it, whatever it holds."""
    return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'") + "'"


def _dumps(directory: Path) -> list[dict[str, Any]]:
    files = sorted(directory.glob("*.jsonl"), key=lambda path: int(path.stem)) if directory.exists() else []
    return [line for path in files for line in _lines(path)]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file that may still be written: the last one counts once it has its end."""
    if path.exists():
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)
