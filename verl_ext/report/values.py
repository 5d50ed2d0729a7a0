"""The commonest texts of a key, in bounded memory."""

from __future__ import annotations

MOST_VALUES = 64
"""Values of a text key that are counted at a time."""


class Values:
    """The commonest texts of one key, by the frequent-items sketch of Misra and Gries, thinned by the median.

    Any value that more than one row in 32 has is among them; counts are exact until there are more than `MOST_VALUES`
    different ones, and after that too low by at most `missed`.
    """

    __slots__ = ("_counts", "missed")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self.missed = 0

    def add(self, text: str) -> None:
        """One more row that has it."""
        if text in self._counts:
            self._counts[text] += 1
            return
        if len(self._counts) == MOST_VALUES:
            median = sorted(self._counts.values())[MOST_VALUES // 2]
            self._counts = {value: count - median for value, count in self._counts.items() if count > median}
            self.missed += median
        self._counts[text] = 1

    def commonest(self, most: int) -> list[tuple[str, int]]:
        """The values that more than one row has for certain or, while all are known, any; the commonest first."""
        least = 1 if not self.missed else 2
        ranked = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        return [(value, count) for value, count in ranked[:most] if count >= least]

    def __len__(self) -> int:
        return len(self._counts)
