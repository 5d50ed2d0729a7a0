"""A reward manager as a colocated reward model needs it: all that it sees of a sample are prompt and response."""

from __future__ import annotations

from typing import Any

from answers import ANSWERS
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase


class ByResponse(RewardManagerBase):  # type: ignore[misc]
    """Answers as a test tells it, by the number that the response ends in."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any, **kwargs: Any) -> None:
        super().__init__(config, tokenizer, compute_score)

    async def run_single(self, data: Any) -> dict[str, Any]:
        item = data[0]
        response = item.batch["responses"]
        length = item.batch["attention_mask"][-len(response) :].sum()
        text = self.tokenizer.decode(response[:length], skip_special_tokens=True)
        answer = ANSWERS[int(text.split()[-1])]()
        return {"reward_score": answer["score"], "reward_extra_info": answer}
