"""Three places where verl takes a GPU for granted, each made to ask for what a CPU has. Of verl: `utils.distributed`
(process groups), `workers.engine.fsdp.transformer_impl` (offloaded parameters), `utils.model` (the critic's loader).

Each is applied when verl imports its module, before others take the name from there. verl imports this file in every
process, half imported itself; so it imports nothing of verl.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from wrapt import register_post_import_hook


def _one_process_group(module: Any) -> None:
    """verl asks for `cpu:gloo,<device>:<backend>`, and torch refuses the same device twice."""
    original = module.initialize_global_process_group_ray

    @wraps(original)
    def initialize(timeout_second: float | None = None, backend: str | None = None) -> None:
        original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    module.initialize_global_process_group_ray = initialize


def _no_pinned_memory(module: Any) -> None:
    """The reference model's parameters are offloaded to pinned memory, which torch has only beside an accelerator."""
    policy = module.CPUOffloadPolicy
    module.CPUOffloadPolicy = lambda pin_memory=True: policy(pin_memory=False)


def _no_flash_attention(module: Any) -> None:
    """The critic's loader names flash-attention, whatever the configuration says."""
    original = module.load_valuehead_model

    @wraps(original)
    def load(local_path: str, torch_dtype: Any, model_config: Any, trust_remote_code: bool) -> Any:
        from transformers import AutoModelForTokenClassification

        return AutoModelForTokenClassification.from_pretrained(
            local_path,
            torch_dtype=torch_dtype,
            config=model_config,
            attn_implementation="eager",
            trust_remote_code=trust_remote_code,
        )

    module.load_valuehead_model = load


for patch, module in (
    (_one_process_group, "verl.utils.distributed"),
    (_no_pinned_memory, "verl.workers.engine.fsdp.transformer_impl"),
    (_no_flash_attention, "verl.utils.model"),
):
    register_post_import_hook(patch, module)
