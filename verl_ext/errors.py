"""The named errors: one base class, and how text that a model wrote is quoted, cut and told apart."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from itertools import islice
from typing import Any

_LONGEST_QUOTE = 80
_LONGEST_LIST = 8


def shown(value: Any) -> str:
    """`value` as it may stand in a message: one line, control characters escaped, at most 80 characters.

    Reward text is data that a model wrote: it must neither flood a log nor drive a terminal.
    """
    try:
        text = ascii(value[: _LONGEST_QUOTE + 1] if isinstance(value, str | bytes | bytearray) else value)
    except (Exception, SystemExit) as error:
        # A user's own __repr__ may raise; the message about its row must still come out.
        text = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    if not text.isprintable():  # a repr with line breaks, as an array's, or with whatever else
        text = text[: _LONGEST_QUOTE + 1].encode("unicode_escape").decode()
    return text if len(text) <= _LONGEST_QUOTE else text[: _LONGEST_QUOTE - 3] + "..."


def bare(name: Any) -> str:
    """`name` where it must stand as it is spelt, in a name or a command: as `shown`, if it would do harm there."""
    if not isinstance(name, str):
        return shown(name)
    return name if name.isprintable() and len(name) <= _LONGEST_QUOTE else shown(str(name))[1:-1]


def encodable(text: str) -> bool:
    r"""Whether UTF-8 has it: JSON's `\ud800` is half a character, which a file, a page or an Arrow column refuses."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def digest(text: str) -> str:
    """Eight characters, by which two texts stay two where they are cut or escaped."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


class VerlExtError(Exception):
    """Base class of every error that verl-ext raises on its own account."""


class RowError(VerlExtError, TypeError):
    """A row of a raw column is no dict, or one of its keys is no `str` where verl needs one."""


class FieldCollisionError(VerlExtError, ValueError):
    """Reward keys that name something the batch already holds.

    Attributes:
        collisions: every colliding key, with the place where its name is taken.
        origin: where the key comes from, such as a row and its data source; not for every key.
    """

    def __init__(self, collisions: Mapping[Any, str], origin: Mapping[Any, str] | None = None) -> None:
        self.collisions = dict(collisions)
        self.origin = dict(origin or {})
        clashes = [
            f"{shown(key)}{f' ({self.origin[key]})' if key in self.origin else ''} is already {where}"
            for key, where in islice(self.collisions.items(), _LONGEST_LIST)
        ]
        if len(self.collisions) > _LONGEST_LIST:
            clashes.append(f"and {len(self.collisions) - _LONGEST_LIST} more")
        one = next(iter(self.collisions), "key")
        super().__init__(
            f"{len(self.collisions)} reward key(s) would overwrite what the batch already holds: {'; '.join(clashes)}. "
            f"Rename them in the dict that your reward function returns, for example {shown(one)} to "
            f"{shown(f'reward_{one if isinstance(one, str) else bare(one)}')}."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.collisions, self.origin)


class BatchMismatchError(VerlExtError, ValueError):
    """Batches that cannot become one: they hold different tensors, or contradict each other in `meta_info`."""


class UnfinalizedError(VerlExtError, ValueError):
    """A raw column stands where aligned columns are needed, and cannot be finalized there."""


class SettingsError(VerlExtError, ValueError):
    """An option under `verl_ext` in verl's configuration is unknown, or of the wrong kind."""


class MissingRewardError(VerlExtError, ValueError):
    """A reward, or a component of it, that training needs is missing for some samples, or is no finite number."""


class NotSendableError(VerlExtError, TypeError):
    """A reward function returned a value that cannot travel between Ray's processes."""


class NotNumericError(VerlExtError, TypeError):
    """A column was taken for numbers, and holds something else."""


class PluginMissingError(VerlExtError, RuntimeError):
    """A Ray worker took part in a batch without verl-ext, or with another version of it."""


class UnsupportedVerlError(VerlExtError, RuntimeError):
    """verl's code is not what a patch site knows, and a batch came by that stock verl would lose values of."""


class VerlNotFoundError(VerlExtError, ImportError):
    """verl is needed for what was asked, and is not installed."""
