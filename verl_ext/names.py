"""Names of metrics: one line, of some length, and never two things under one name."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from verl_ext.errors import digest, shown

Thing = TypeVar("Thing", bound=Hashable)


def fitting(text: str, longest: int, *, one_part: bool = False) -> str:
    """`text` as it may stand in a metric's name: what cannot is escaped and cut, and ends in a digest of all of it.

    Args:
        text: a key, a data source, or a value that a model wrote.
        longest: so many characters may it have.
        one_part: whether it may have no slashes, which divide a name.
    """
    if text.isprintable() and len(text) <= longest and not (one_part and "/" in text):
        return text
    cut = shown(text)[1:-1][: longest - 10]
    return f"{cut.replace('/', '_') if one_part else cut} #{digest(text)}"


class Names(Generic[Thing]):
    """The names of things: each has the name that was wanted for it, or where another has that, one with a digest.

    Attributes:
        given: by thing, its name, which it keeps.
    """

    def __init__(self, *reserved: str) -> None:
        """`reserved` are names that nothing gets as they are."""
        self.given: dict[Thing, str] = {}
        self._taken = set(reserved)

    def of(self, thing: Thing, wanted: str) -> str:
        """The name of a thing; `wanted` counts the first time.

        >>> names = Names()
        >>> names.of(("a", "b"), "a/b"), names.of("a/b", "a/b")
        ('a/b', 'a/b #5da7cb6d')
        """
        if thing not in self.given:
            name = wanted
            while name in self._taken:
                name = f"{wanted} #{digest(name + shown(thing))}"
            self.given[thing] = name
            self._taken.add(name)
        return self.given[thing]
