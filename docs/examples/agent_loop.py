"""A custom agent loop with extra fields of its own, which other loops in the same batch do not have.

Name it in the file of `actor_rollout_ref.rollout.agent.agent_loop_config_path`, and in the data's column `agent_name`:

    - name: two_looks
      _target_: agent_loop.TwoLooks

verl's workers import it by that name: put its directory into PYTHONPATH on every node.
"""

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


class TwoLooks(SingleTurnAgentLoop):
    """A single turn that reports what it looked at, and sometimes its own reward."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        """As the single turn, with two fields more."""
        output = await super().run(sampling_params, **kwargs)
        output.extra_fields["looked_at"] = ["question", "answer"]
        if len(output.response_ids) < 4:
            output.reward_score = 0.0
            output.extra_fields["reward_extra_info"] = {"acc": False, "too_short": True}
        return output


if __name__ == "__main__":
    from verl_ext import SparseDataProto, SparseNonTensor

    # What the manager makes of the samples of two loops: every key and field arrives, `None` where a sample has none.
    chunks = [
        SparseDataProto(non_tensor_batch={"reward_extra_info": SparseNonTensor([{"acc": True}])}),
        SparseDataProto(non_tensor_batch={"reward_extra_info": SparseNonTensor([{"acc": False, "too_short": True}])}),
    ]
    batch = SparseDataProto.concat(chunks).finalize()
    print({key: batch.non_tensor_batch[key].tolist() for key in ("acc", "too_short")})
