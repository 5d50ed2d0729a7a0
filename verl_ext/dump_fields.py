"""The names of the fields in a line of verl's dumps, which the plugin writes and the report reads."""

from __future__ import annotations

SCORE = "score"

FIELDS = ("input", "output", "gts", SCORE, "step")
"""What verl itself writes of every row."""

UID = "uid"
"""What the v1 trainer writes beside them: the key of the sample in its queue."""

REWARD_SUM = "reward_sum"
"""What the trainer summed up, in rows whose `score` is another number, which the reward function returned."""


ABSTAINED = "unscored"
"""The reserved reward key that says why a sample has no score, with `+verl_ext.unscored=abstain`: text, or `True`."""


def beside(field: str) -> str:
    """The field for what the reward function returned under the name of a field, in rows where that holds another."""
    return f"reward_extra/{field}"


WHERE_DIFFERENT = frozenset((REWARD_SUM, *map(beside, (*FIELDS, UID))))
"""Fields that a row has only where two values of one name differ."""
