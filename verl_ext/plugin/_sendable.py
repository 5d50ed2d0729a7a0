"""What a reward function returned, on its way to another process: made such that it arrives, or refused by name.

Ray packs the lists and dicts of an async actor's reply recursively on a small stack, so that a list that holds itself,
or is nested some hundred levels deep, ends the process. And of what does not pickle its error names no sample.
"""

from __future__ import annotations

import pickle
from types import NoneType
from typing import Any

from verl_ext.errors import NotSendableError, shown

_SIMPLE = frozenset((NoneType, bool, int, float, str, bytes))


class _Pickled(dict[Any, Any]):
    """A reward dict that Ray pickles as a whole, and that arrives as the plain dict that it was made of."""

    def __init__(self, row: dict[Any, Any], content: bytes) -> None:
        super().__init__(row)
        self._content = content

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._content,)  # in Ray's own unpickling


def sendable(row: Any, sample: str) -> Any:
    """A reward dict such that Ray can send it; anything else as it is.

    Args:
        row: what the reward function returned.
        sample: which one it is, for the message.

    Raises:
        NotSendableError: a value does not pickle; names the key, the sample and the reason.
    """
    if not isinstance(row, dict) or _SIMPLE.issuperset(map(type, row.values())):
        return row
    from ray import cloudpickle

    try:
        return _Pickled(row, cloudpickle.dumps(row))
    except Exception:  # whatever a user's own __reduce__ raises
        refuse_unsendable(row, sample)
        raise


def refuse_unsendable(row: Any, sample: str) -> None:
    """Raise for the first value of a reward dict that does not pickle: the arguments and the error are `sendable`'s."""
    from ray import cloudpickle

    for key, value in row.items() if isinstance(row, dict) else ():
        if type(value) in _SIMPLE:
            continue
        try:
            cloudpickle.dumps(value)
        except Exception as error:
            raise NotSendableError(
                f"the reward key {shown(key)} of {sample} holds a {type(value).__name__} ({shown(value)}) that Ray "
                f"cannot send to another process: {type(error).__name__}: {shown(str(error))}. Return numbers, text, "
                "or lists and dicts of them"
            ) from error
