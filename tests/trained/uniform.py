"""A reward function of one schema: every row gets the same keys, of the same kinds. verl loads it from this path."""


def compute_score(data_source, solution_str, ground_truth, extra_info, **_):
    """The share of letters, and beside it what stock verl, too, carries to the end."""
    letters = sum(character.isalpha() for character in solution_str) / 4
    return {
        "score": letters,
        "acc": letters,
        "format": sum(character.isprintable() for character in solution_str) / 4,
        "passed": letters > 0.5,
        "tokens": len(solution_str),
        "pred": solution_str[:1],
    }
