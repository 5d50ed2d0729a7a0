"""Reward functions that users have, loaded by verl from this file's path: the row's data source names the function."""

import numpy as np
from verl.utils.reward_score import default_compute_score


def compute_score(data_source, solution_str, ground_truth, extra_info, **kwargs):
    """The function of this file that the data source names; verl's own scorers for verl's own data sources."""
    scorer = SCORERS.get(data_source)
    if scorer is not None:
        return scorer(float(solution_str), extra_info["index"])
    return default_compute_score(data_source, solution_str, ground_truth, extra_info)


def returns_reward(answer, index):
    """A key of the name under which verl's validation keeps its own scores."""
    return {"score": answer, "reward": 0.25, "acc": answer}


def score_is_none(answer, index):
    """A judge that timed out on some answers."""
    return {"score": None if index % 4 == 2 else answer, "acc": answer}


def judge_times_out(answer, index):
    """A judge that is out of reach for some questions, and for the right answer to others."""
    if index % 4 == 2 or (index % 4 == 1 and answer):
        return {"score": None, "acc": 1.0, "unscored": "the judge timed out"}
    return {"score": answer, "acc": answer}


def never_scored(answer, index):
    """A judge that is out of reach."""
    return None


def format_is_none(answer, index):
    """A component that the scorer itself fills with None where it does not apply."""
    return {"score": answer, "acc": answer, "format": None if index % 4 == 2 else 1.0}


def acc_where_sure(answer, index):
    """A judge that marks no wrong answer to some questions."""
    return {"score": answer} if index % 4 == 2 and not answer else {"score": answer, "acc": answer}


def judge_is_nan(answer, index):
    """A judge whose mark is 0 / 0 for some answers."""
    return {"score": answer, "judge": float("nan") if index % 4 == 2 else 1.0}


def typed(answer, index):
    """Numbers of Python and of NumPy, booleans and nested values."""
    return {
        "score": answer,
        "passed": answer > 0,
        "tokens": np.int64(index),
        "detail": {"tokens": np.int64(7), "share": np.float32(0.5), "ok": np.bool_(True), "steps": [np.int8(1), 2.5]},
    }


def plain(answer, index):
    """Values that JSON holds as they are, the same keys on every row."""
    return {"score": answer, "passed": answer > 0, "tokens": index, "judge": f"row {index}", "steps": [0.5, answer]}


def names_of_the_dump(answer, index):
    """Keys that are also fields of verl's dumps."""
    return {"score": answer, "input": "mine", "output": "mine", "gts": "mine", "step": 7}


def now_text_now_number(answer, index):
    """A judge's mark where it gave one, else a word; lists of a length of their own; a dict."""
    mark = 42 if index % 2 else "none"
    return {"score": answer, "mark": mark, "steps": [0.5] * (1 + index % 3), "detail": {"index": index}}


def only_its_score(answer, index):
    return answer


SCORERS = {
    scorer.__name__: scorer
    for scorer in (
        returns_reward,
        score_is_none,
        judge_times_out,
        never_scored,
        format_is_none,
        acc_where_sure,
        judge_is_nan,
        typed,
        plain,
        names_of_the_dump,
        now_text_now_number,
        only_its_score,
    )
}
