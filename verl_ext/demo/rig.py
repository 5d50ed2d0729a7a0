"""Real verl managers on a CPU: a tiny tokenizer, verl's own config, a local Ray and batches as the trainer makes them.

For the demo and the integration tests. The only double is `RecordedClient`, which stands in for the model server;
nothing here knows of, imports or activates the rest of verl_ext.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import logging
import signal
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from torch import Tensor
    from verl import DataProto
    from verl.workers.rollout.replica import TokenOutput

Row = Mapping[str, Any]
"""A row of verl's parquet format (`data_source`, `prompt`, `ability`, `reward_model`, `extra_info`), with the recorded
answer of the model beside it as `response`."""

# ChatML; a message that ends in EOS, as a response does.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_model_dir(path: Path) -> Path:
    """Write a byte-level tokenizer and the `config.json` of a tiny Llama into `path`, and return `path`.

    One token is one byte of UTF-8, so every text that was encoded with `split_special_tokens=True` comes back from
    `decode(ids, skip_special_tokens=True)` as it was. There are no weights. Make it anew for each transformers: a
    tokenizer written by version 5 does not load in 4.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    pad, start, end = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: token for token, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        eos_token=end,
        additional_special_tokens=[start],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(path)
    # Llama, because AutoTokenizer takes its tokenizer as it is: for model type qwen2, transformers 5 loads a
    # Qwen2Tokenizer instead, whose NFC normalization changes what the scorer reads.
    LlamaConfig(
        vocab_size=len(fast),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        architectures=["LlamaForCausalLM"],
        pad_token_id=fast.pad_token_id,
        eos_token_id=fast.eos_token_id,
    ).save_pretrained(path)
    return path


def compose_config(model_dir: Path, overrides: Sequence[str] = ()) -> DictConfig:
    """verl's own `ppo_trainer` config as its `main_ppo` hands it to the trainer, made small enough for this machine.

    `overrides` (Hydra's syntax) come last and win. A Hydra that is already initialized stays as it is.
    """
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from verl.experimental.reward_loop import migrate_legacy_reward_impl

    small = [
        f"actor_rollout_ref.model.path='{model_dir.resolve()}'",
        "actor_rollout_ref.rollout.name=vllm",  # must be named; it is never started
        "actor_rollout_ref.rollout.agent.num_workers=2",
        "reward.num_workers=2",
        "data.max_prompt_length=512",
        "data.max_response_length=512",
        "trainer.device=cpu",
        "trainer.logger=[console]",
    ]
    # Hydra refuses to be initialized twice, as under @hydra.main.
    found = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer", overrides=[*small, *overrides])
    finally:
        GlobalHydra.instance().hydra = found
    return migrate_legacy_reward_impl(config)


@contextmanager
def local_ray() -> Iterator[None]:
    """A local Ray, shut down at the end; one that is already running is used and left alone."""
    import ray

    if ray.is_initialized():
        yield
        return
    try:
        with _uninterrupted():  # else Ray leaves the processes behind that it has started so far
            ray.init(
                address="local",  # never a cluster that RAY_ADDRESS happens to name
                num_cpus=8,  # logical ones
                object_store_memory=256 * 1024**2,
                include_dashboard=False,
                logging_level=logging.ERROR,
                log_to_driver=False,
            )
        yield
    finally:
        ray.shutdown()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C, which comes to the main thread, takes effect at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if interrupts:
        raise KeyboardInterrupt


def prompt_batch(rows: Sequence[Row], *, global_steps: int = 1) -> DataProto:
    """The batch as the trainer hands it to `AgentLoopManager.generate_sequences`: columns of `(batch,)`, no tensors.

    Object columns, as `RLHFDataset.__getitem__`, its `collate_fn` and `RayPPOTrainer._get_gen_batch` make them of the
    rows; the recorded `response` is left out.
    """
    from verl import DataProto

    return DataProto.from_dict(non_tensors=_dataset_columns(rows), meta_info={"global_steps": global_steps})


def scored_batch(rows: Sequence[Row], config: DictConfig) -> DataProto:
    """The batch as the trainer hands it to `RewardLoopManager.compute_rm_score`: the rows with recorded responses.

    Tensors, int64: `prompts` `(batch, prompt_length)` padded on the left, `responses` and `response_mask`
    `(batch, response_length)` padded on the right, `input_ids`, `attention_mask` and `position_ids`
    `(batch, prompt_length + response_length)`. Columns: those of `prompt_batch`, and the agent loop's
    `__num_turns__`, int32. ValueError if a row does not fit the lengths in `config`.
    """
    import numpy as np
    import torch
    from verl import DataProto

    tokenizer = _tokenizer(config)
    rollout = config.actor_rollout_ref.rollout
    encoded = [_encode(index, row, tokenizer, config) for index, row in enumerate(rows)]
    prompts, prompt_mask = _pad([p for p, _ in encoded], rollout.prompt_length, tokenizer.pad_token_id, left=True)
    responses, response_mask = _pad([r for _, r in encoded], rollout.response_length, tokenizer.pad_token_id)
    attention_mask = torch.cat([prompt_mask, response_mask], dim=1)
    return DataProto.from_dict(
        tensors={
            "prompts": prompts,
            "responses": responses,
            "response_mask": response_mask,
            "input_ids": torch.cat([prompts, responses], dim=1),
            "attention_mask": attention_mask,
            "position_ids": (attention_mask.cumsum(dim=1) - 1).clamp(min=0),
        },
        non_tensors={**_dataset_columns(rows), "__num_turns__": np.full(len(rows), 2, dtype=np.int32)},
    )


class RecordedClient:
    """A double for the model server, and for nothing else: it answers a prompt with the response recorded for it.

    It takes the place of verl's `LLMServerClient` in an agent loop, and travels to the workers by pickle. A prompt that
    was recorded several times is answered by the row's number in the batch (verl >= 0.9 passes it as `priority`, for
    older verl `older` does), so that n rollouts of one prompt get its n responses in order, however the batch is cut
    between workers.
    """

    def __init__(self, rows: Sequence[Row], config: DictConfig, *, global_steps: int = 1) -> None:
        """Record `rows`; `global_steps` is the version of the weights that every answer says it was made with.

        ValueError if a row does not fit the lengths in `config`.
        """
        tokenizer = _tokenizer(config)
        self._global_steps = global_steps
        self._responses: dict[tuple[int, ...], list[list[int]]] = {}
        for index, row in enumerate(rows):
            prompt_ids, response_ids = _encode(index, row, tokenizer, config)
            self._responses.setdefault(tuple(prompt_ids), []).append(response_ids)

    async def generate(
        self,
        request_id: str,
        *,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        priority: int = 0,
        **_: Any,
    ) -> TokenOutput:
        """The recorded response as verl's `TokenOutput`; LookupError if there is none for `prompt_ids`."""
        from verl.workers.rollout.replica import TokenOutput

        recorded = self._responses.get(tuple(prompt_ids))
        if recorded is None:
            raise LookupError(
                f"no response is recorded for a prompt of {len(prompt_ids)} tokens; "
                f"{len(self._responses)} prompts are on record"
            )
        token_ids = recorded[priority % len(recorded)]
        return TokenOutput(
            token_ids=list(token_ids),
            # A replay is certain of every token.
            log_probs=[0.0] * len(token_ids) if sampling_params.get("logprobs") else None,
            stop_reason="completed",
            extra_fields={
                "global_steps": self._global_steps,
                "min_global_steps": self._global_steps,
                "max_global_steps": self._global_steps,
            },
        )


def reward_loop_manager(config: DictConfig) -> Any:
    """verl's `RewardLoopManager` with `config.reward.num_workers` workers on the running Ray."""
    from verl.experimental.reward_loop import RewardLoopManager

    return RewardLoopManager(config)


def agent_loop_manager(config: DictConfig, client: RecordedClient, reward_handles: Sequence[Any] | None = None) -> Any:
    """verl's `AgentLoopManager`, whose workers ask `client`, and score if they get `reward_handles`.

    The handles are a reward loop manager's `reward_loop_workers`. Call it from plain code or inside a loop.
    """
    from verl.experimental.agent_loop import AgentLoopManager

    return _created(AgentLoopManager, config, client, reward_handles)


def has_fully_async() -> bool:
    """Whether this verl has a fully-async trainer: 0.7 comes without its code."""
    return importlib.util.find_spec("verl.experimental.fully_async_policy.fully_async_rollouter") is not None


def fully_async_manager(config: DictConfig, client: RecordedClient, reward_handles: Sequence[Any] | None = None) -> Any:
    """verl's `FullyAsyncAgentLoopManager`: as `agent_loop_manager`, and it also takes samples one by one."""
    from verl.experimental.fully_async_policy.fully_async_rollouter import FullyAsyncAgentLoopManager

    return _created(FullyAsyncAgentLoopManager, config, client, reward_handles)


def _created(
    manager_class: Any, config: DictConfig, client: RecordedClient, reward_handles: Sequence[Any] | None
) -> Any:
    if not tells_rows_apart():
        from verl_ext.demo import older

        manager_class = older.with_older_workers(manager_class)
    return manager_class.create(
        config, llm_client=client, reward_loop_worker_handles=None if reward_handles is None else list(reward_handles)
    )


def tells_rows_apart() -> bool:
    """Whether verl tells the model server which row asks."""
    from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

    return "priority" in inspect.signature(SingleTurnAgentLoop.run).parameters


def _dataset_columns(rows: Sequence[Row]) -> dict[str, Any]:
    """The rows as object columns, `(batch,)`, in copies of their own: verl's managers write into `extra_info`."""
    from verl.utils.dataset.rl_dataset import collate_fn

    samples = []
    for row in rows:
        sample = {key: copy.deepcopy(value) for key, value in row.items() if key != "response"}
        sample["raw_prompt"] = sample["prompt"] = list(sample["prompt"])  # an array, if pandas read the row
        extra_info = sample["extra_info"] = sample.get("extra_info") or {}
        sample["index"] = extra_info.get("index", 0)
        sample["tools_kwargs"] = extra_info.get("tools_kwargs", {})
        sample["interaction_kwargs"] = extra_info.get("interaction_kwargs", {})
        sample["uid"] = str(uuid.uuid4())
        samples.append(sample)
    columns: dict[str, Any] = collate_fn(samples)
    return columns


def _tokenizer(config: DictConfig) -> Any:
    from verl.utils.tokenizer import hf_tokenizer

    return hf_tokenizer(config.actor_rollout_ref.model.path)


def _encode(index: int, row: Row, tokenizer: Any, config: DictConfig) -> tuple[list[int], list[int]]:
    """Token ids of the row's prompt and of its response, which ends in EOS as a server's does."""
    # return_dict: a list of ids in transformers 5 as in 4. split_special_tokens: a response that spells out <|im_end|>
    # keeps it, where the special token would be skipped when the response is decoded for the scorer.
    prompt_ids = tokenizer.apply_chat_template(list(row["prompt"]), add_generation_prompt=True, return_dict=False)
    response_ids = tokenizer.encode(row["response"], add_special_tokens=False, split_special_tokens=True)
    response_ids.append(tokenizer.eos_token_id)
    # verl cuts both to length, the response without a word, and the scorer would see another answer than the recorded.
    for part, ids in (("prompt", prompt_ids), ("response", response_ids)):
        limit = config.actor_rollout_ref.rollout[f"{part}_length"]
        if len(ids) > limit:
            raise ValueError(
                f"row {index} (data source {row['data_source']!r}): the {part} has {len(ids)} tokens, "
                f"and {part}_length is {limit}; override data.max_{part}_length"
            )
    return prompt_ids, response_ids


def _pad(sequences: Sequence[Sequence[int]], length: int, pad: int, *, left: bool = False) -> tuple[Tensor, Tensor]:
    """`(batch, length)` token ids and mask, int64, padded on the right or on the left."""
    import torch

    ids = torch.full((len(sequences), length), pad, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        place = slice(length - len(sequence), None) if left else slice(len(sequence))
        ids[row, place] = torch.tensor(sequence, dtype=torch.int64)
        mask[row, place] = 1
    return ids, mask
