"""A reward function with keys that come and go: a float for gsm8k, a dict for the rest, a judge's word on some.

    python3 -m verl.trainer.main_ppo reward.custom_reward_function.path=reward_function.py \
        reward.custom_reward_function.name=compute_score ...
"""

from typing import Any


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> float | dict[str, Any]:
    """What an answer earns, and what else is worth logging about it."""
    answer = solution_str.rpartition("####")[2].strip()
    right = answer == ground_truth
    if data_source == "openai/gsm8k":
        return float(right)
    earned: dict[str, Any] = {"score": 1.0 if right else -1.0, "acc": right, "pred": answer}
    if not right:
        earned["judge"] = "close" if answer[:1] == ground_truth[:1] else "far off"
    return earned


if __name__ == "__main__":
    from verl_ext import assemble_reward_extra_info

    answers = [("openai/gsm8k", "#### 4"), ("math_dapo", "#### 4"), ("math_dapo", "#### 5")]
    earned = [compute_score(source, answer, "4") for source, answer in answers]
    rows = [one if isinstance(one, dict) else {"acc": one} for one in earned]  # as verl's reward managers do
    for key, column in assemble_reward_extra_info(rows).items():
        print(f"{key:6} {column.dtype!s:8} {column.tolist()}")
