"""Teaches the fully-async rollouter to finalize each sample's output, which travels to the trainer alone.

The trainer then concatenates samples that were finalized by themselves: `protocol` makes of them what finalizing the
whole batch would have made.
"""

from __future__ import annotations

from typing import Any

from verl_ext.plugin._site import Function, PatchSite
from verl_ext.plugin._workers import marked, refuse_untaught
from verl_ext.plugin.agent_loop import finalized
from verl_ext.plugin.agent_loop import site as agent_loop

site = PatchSite(
    name="fully_async",
    module="verl.experimental.fully_async_policy.fully_async_rollouter",
    purpose="samples of different reward schemas cannot be concatenated by the fully-async trainer",
)


@site.wraps("FullyAsyncAgentLoopManager.generate_sequences_single", "self", "prompts")
def _generate_sequences_single(stock: Function) -> Function:
    # verl >= 0.9 dumps to disk, and replays, what the coroutine inside `SkipManager.annotate` returns. So we wrap that
    # one: a dump holds a finalized sample, which any verl can replay, and never one that was refused.
    coroutine = getattr(stock, "__wrapped__", stock)

    async def generate_sequences_single(self: Any, prompts: Any) -> Any:
        try:
            output = await coroutine(self, marked(prompts))
        except KeyError as error:  # what a stock worker leads to
            refuse_untaught(self.agent_loop_workers, agent_loop.name, error)
            raise
        return finalized(output, prompts, self.agent_loop_workers)

    if coroutine is stock:
        return generate_sequences_single
    from verl.utils.skip import SkipManager

    annotated: Function = SkipManager.annotate(role="async_rollout")(generate_sequences_single)
    return annotated
