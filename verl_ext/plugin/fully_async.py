"""Teaches the fully-async rollouter to finalize each sample's output, which travels to the trainer alone.

The trainer then concatenates samples that were finalized by themselves: `protocol` makes of them what finalizing the
whole batch would have made.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

from verl_ext.plugin._guard import refusing_mixed_rows
from verl_ext.plugin._site import Function, PatchSite
from verl_ext.plugin._trial import unless
from verl_ext.plugin.agent_loop import aligns_keys, finalizing
from verl_ext.plugin.agent_loop import site as agent_loop

site = PatchSite(
    name="fully_async",
    module="verl.experimental.fully_async_policy.fully_async_rollouter",
    purpose="samples of different reward schemas cannot be concatenated by the fully-async trainer",
    requires=("protocol", "agent_loop"),
    guard=refusing_mixed_rows,
)


EARLIER_HOME = "verl.experimental.fully_async_policy.agent_loop"
"""The package of the rollouter's manager in clones of verl from before it moved into the rollouter's own module."""


def aligns_single_samples(module: Any) -> bool:
    """Whether what the manager asks for one by one is aligned by verl itself."""
    return aligns_keys(sys.modules[agent_loop.module])


def _needs_nothing_here(module: Any) -> bool:
    elsewhere = EARLIER_HOME in sys.modules or find_spec(EARLIER_HOME) is not None
    return (elsewhere and not hasattr(module, "FullyAsyncAgentLoopManager")) or aligns_single_samples(module)


@site.wraps(
    "FullyAsyncAgentLoopManager.generate_sequences_single", "self", "prompts", needed=unless(_needs_nothing_here)
)
def _generate_sequences_single(stock: Function) -> Function:
    return finalizing(stock, skip_role="async_rollout")
