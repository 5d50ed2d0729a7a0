"""What a reward worker answers, on its way to another process: made such that it arrives, or refused by name.

Ray packs the lists and dicts of an async actor's reply recursively on a small stack, so that a list that holds itself,
or is nested some hundred levels deep, ends the process. And of what does not pickle, or pickles and does not come back,
its error names no sample.
"""

from __future__ import annotations

from types import NoneType
from typing import Any

from verl_ext.column import RAW_COLUMN
from verl_ext.errors import NotSendableError, shown

_SIMPLE = frozenset((NoneType, bool, int, float, str, bytes))


class _Pickled(dict[str, Any]):
    """An answer that Ray pickles as a whole, and that arrives as the plain dict that it is."""

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def sendable(answer: dict[str, Any], sample: str) -> dict[str, Any]:
    """What a reward worker answers for one sample, such that Ray can send it.

    Args:
        answer: verl's `reward_score`, `reward_extra_info` and whatever a reward manager adds.
        sample: which one it is, for the message.

    Raises:
        NotSendableError: a part of it does not pickle; names the key, the sample and the reason.
    """
    row = answer.get(RAW_COLUMN)
    fields = {name: value for name, value in answer.items() if name != RAW_COLUMN}
    if _is_simple(fields) and (row is None or _is_simple(row)):
        return answer
    reason = why_not(answer)
    if reason is None:
        return _Pickled(answer)
    refuse_unsendable(row, sample)
    for name, value in fields.items():
        _refuse(f"the field {shown(name)} of the answer for {sample}", value)
    raise NotSendableError(f"the answer for {sample} cannot be sent to another process: {reason}")


def changed(answer: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """An answer with other fields, sent as it was."""
    new = {**answer, **fields}
    return _Pickled(new) if isinstance(answer, _Pickled) else new


def refuse_unsendable(row: Any, sample: str) -> None:
    """Raise for the first part of a reward dict that does not pickle: the arguments and the error are `sendable`'s."""
    if _is_simple(row) or why_not(row) is None:
        return
    for key, value in row.items() if isinstance(row, dict) else ():
        _refuse(f"a reward key of {sample}", key)
        _refuse(f"the reward key {shown(key)} of {sample}", value)
    _refuse(f"the reward info of {sample}", row)


def _refuse(what: str, value: Any) -> None:
    reason = why_not(value)
    if reason is not None:
        raise NotSendableError(
            f"{what} holds a {type(value).__name__} ({shown(value)}) that Ray cannot send to another process: "
            f"{reason}. Return numbers, text, or lists and dicts of them"
        )


def _is_simple(row: Any) -> bool:
    return type(row) is dict and _SIMPLE.issuperset(map(type, row.values())) and _SIMPLE.issuperset(map(type, row))


def why_not(value: Any) -> str | None:
    """Why a value does not reach another process; `None` where it does."""
    if type(value) in _SIMPLE:
        return None
    from ray import cloudpickle

    try:
        cloudpickle.loads(cloudpickle.dumps(value))
    except BaseException as error:  # whatever a user's own __reduce__ raises
        return f"{type(error).__name__}: {said(error)}"
    return None


def said(error: BaseException) -> str:
    """The text of an exception, as it may stand in a message."""
    try:
        return shown(str(error))[1:-1]
    except BaseException as another:
        return f"its text cannot be had ({type(another).__name__})"
