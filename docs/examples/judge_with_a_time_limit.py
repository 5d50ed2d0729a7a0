"""A reward function that asks a judge, and abstains where the judge does not answer in time.

    python3 -m verl.trainer.main_ppo reward.custom_reward_function.path=judge_with_a_time_limit.py \
        reward.custom_reward_function.name=compute_score +verl_ext.unscored=abstain ...
"""

import asyncio
from typing import Any

SECONDS = 0.1


async def ask_judge(question: str, answer: str) -> float:
    """Stands for a request to a server: here the judge takes longer for longer answers."""
    await asyncio.sleep(len(answer) / 200)
    return float(answer.endswith("42"))


async def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, Any] | None = None, **kwargs: Any
) -> dict[str, Any]:
    """The judge's mark; `None`, and why, where there is none. Such a sample trains nothing."""
    try:
        mark = await asyncio.wait_for(ask_judge(ground_truth, solution_str), SECONDS)
    except asyncio.TimeoutError:
        return {"score": None, "unscored": f"the judge did not answer within {SECONDS} s"}
    except OSError as error:
        return {"score": None, "unscored": f"the judge cannot be reached: {error}"}
    return {"score": mark, "acc": mark > 0.5}


if __name__ == "__main__":
    for answer in ("it is 42", "it is 41", "it may be " * 10 + "42"):
        print(asyncio.run(compute_score("mine", answer, "42")))
