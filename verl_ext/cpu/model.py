"""A tiny Llama with a byte-level tokenizer and weights of a fixed seed, as transformers reads it. Of verl: nothing."""

from __future__ import annotations

from pathlib import Path

from verl_ext.demo import rig

SEED = 1


def build_model(path: Path) -> Path:
    """Write tokenizer, configuration and weights into `path`, and return `path`: some 27,000 parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # beside the runs' own
    rig.build_model_dir(path)
    config = LlamaConfig.from_pretrained(path)
    config.update({"hidden_size": 32, "intermediate_size": 64, "head_dim": 16, "initializer_range": 0.1})
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        LlamaForCausalLM(config).save_pretrained(path)
    return path
