"""Teaches the fully-async rollouter to finalize each sample's output, which travels to the trainer alone.

The trainer then concatenates samples that were finalized by themselves: `protocol` makes of them what finalizing the
whole batch would have made.
"""

from __future__ import annotations

import sys
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


def _aligns_keys(module: Any) -> bool:
    return aligns_keys(sys.modules[agent_loop.module])


@site.wraps("FullyAsyncAgentLoopManager.generate_sequences_single", "self", "prompts", needed=unless(_aligns_keys))
def _generate_sequences_single(stock: Function) -> Function:
    return finalizing(stock, skip_role="async_rollout")
