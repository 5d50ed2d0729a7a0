"""A reward manager that a user might have: what a sample earns is written in its row. verl loads it from this file."""

from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase


class AsTheRowSays(RewardManagerBase):
    """The score and the dict that `extra_info` holds; a sample that says so fails."""

    def __init__(self, config, tokenizer, compute_score, **kwargs):
        super().__init__(config, tokenizer, compute_score)

    async def run_single(self, data):
        row = data.non_tensor_batch["extra_info"][0]
        if row.get("fails"):
            raise ConnectionError("the judge does not answer")
        return {"reward_score": row["reward"], "reward_extra_info": row["emit"]}
