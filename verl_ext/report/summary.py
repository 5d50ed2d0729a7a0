"""What is kept of a dump while its rows stream by: counts and moments by key, step and place, in bounded memory.

A *place* is a value of the column that splits the report, as a data source. The bound, whatever the size of a dump: the
constants here, in `text` and in `values`. 5.3 GB of dumps with 8 keys took 54 MB, Python and its libraries included; a
dump that fills every one of the constants with four-byte characters took 271 MB. A line of 16 MiB can take 0.4 GB.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from verl_ext.dump_fields import FIELDS, SCORE
from verl_ext.report.kinds import FAMILIES, NAN, NUMBERS, TEXTS, kind_of, named
from verl_ext.report.read import Row
from verl_ext.report.text import LONGEST_KEPT, kept
from verl_ext.report.values import Values
from verl_ext.reward_metrics import Summary, numeric

MOST_KEYS = 1_000
"""Reward keys that are described; further ones are counted."""

MOST_PLACES = 32
"""Values of the splitting column that are kept apart; further ones are one place, `OTHER`."""

MOST_CELLS = 100_000
"""Pairs of key and step, in all dumps: beyond it neighbouring steps are put together, two by two and again."""

_MOST_FURTHER = 2**16
_ROWS_AT_A_TIME = 1_024
_VALUES_AT_A_TIME = 2**16

UNSPLIT = tuple(name for name in FIELDS if name != SCORE)
"""Fields that verl writes itself, of which only the type is of interest. Its `score` is described as the keys are."""

OTHER = "(other)"
NO_STEP = -1
"""The step of rows that do not say theirs."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One key in some rows; adding two gives that of both.

    Attributes:
        numbers: `rows` is how many rows have a value, `count` how many a number.
        kinds: what the values are, as bits.
    """

    numbers: Summary
    kinds: int = 0

    @property
    def present(self) -> int:
        """How many rows have a value."""
        return self.numbers.rows

    def __add__(self, other: Cell) -> Cell:
        return Cell(self.numbers + other.numbers, self.kinds | other.kinds)


_EMPTY = Cell(Summary(0))


@dataclass(slots=True)
class Group:
    """Some rows of a dump, and what each key is in them; a key that none of them has may have no cell."""

    rows: int = 0
    cells: dict[str, Cell] = field(default_factory=dict)

    def cell(self, key: str) -> Cell:
        """Of a key, which may be missing here."""
        return self.cells.get(key, _EMPTY)

    def add(self, rows: int, cells: Iterable[tuple[str, Cell]]) -> None:
        """Further rows."""
        self.rows += rows
        for key, cell in cells:
            mine = self.cells.get(key)
            self.cells[key] = cell if mine is None else mine + cell


@dataclass(slots=True)
class Span(Group):
    """One step, or several that follow each other; `places` is how many of its rows are of each place."""

    first: int = NO_STEP
    last: int = NO_STEP
    steps: int = 1
    places: dict[str, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """What it holds, in cells."""
        return 1 + len(self.cells) + len(self.places)

    def join(self, following: Span) -> None:
        """Add the steps after it."""
        self.add(following.rows, following.cells.items())
        for place, rows in following.places.items():
            self.places[place] = self.places.get(place, 0) + rows
        self.last, self.steps = following.last, self.steps + following.steps

    @property
    def label(self) -> tuple[str, str]:
        """Its first and its last step, as they are shown."""
        return _label(self.first), _label(self.last)

    @property
    def name(self) -> str:
        """As `7`, or `7-8`."""
        return "-".join(dict.fromkeys(self.label))


def _label(step: int) -> str:
    return "no step" if step == NO_STEP else str(step)


@dataclass(slots=True)
class _Column:
    """The values of one key in a block of rows, until they are summed up."""

    present: int = 0
    kinds: int = 0
    numbers: list[float] = field(default_factory=list)

    def cell(self) -> Cell:
        if not self.numbers:
            return Cell(Summary(self.present), self.kinds)
        values, _ = numeric(self.numbers)
        return Cell(Summary.of(values, self.present), self.kinds)


class Dump:
    """One dump, as the `rollout` or the `validation` of a run, summed up.

    Attributes:
        name: of its directory, or its file.
        by: the column that splits it.
        nan_is_missing: whether NaN counts as a missing value.
        rows: how many it has.
        keys: its reward keys in order of their first row, and `score`; with what is known of their text values.
        kinds: by field, verl's own fields too, what its values are over all rows, as bits.
        spans: its steps, ascending.
        places: by value of the splitting column.
        unplaced: the rows that lack the splitting column.
        further: the values of keys beyond `MOST_KEYS`.
    """

    def __init__(self, name: str, by: str | None, nan_is_missing: bool = False, most_cells: int = MOST_CELLS) -> None:
        self.name, self.by, self.nan_is_missing = name, by, nan_is_missing
        self.rows = self.unplaced = self.further = 0
        self.keys: dict[str, Values] = {}
        self.kinds: dict[str, int] = {}
        self.spans: list[Span] = []
        self.places: dict[str, Group] = {}
        self._most_cells = most_cells
        self._steps_per_span = 1
        self._cells = 0
        self._further: set[int] = set()
        self._block: dict[tuple[int, str | None], tuple[list[int], dict[str, _Column]]] = {}
        self._pending = self._pending_values = 0

    @property
    def further_keys(self) -> tuple[int, bool]:
        """How many keys there are beyond `MOST_KEYS`, and whether they were too many to count on."""
        return len(self._further), len(self._further) >= _MOST_FURTHER

    def add(self, row: Row, step: int | None = None) -> None:
        """One row.

        Args:
            row: as verl wrote it.
            step: of its file; `None` where the file does not say it, and the row's own field does.
        """
        where = (step_of(row) if step is None else step, self._place_of(row))
        found = self._block.get(where)
        if found is None:
            found = self._block[where] = ([0], {})
        found[0][0] += 1
        columns = found[1]
        for field_name, value in row.items():
            name = field_name if len(field_name) <= LONGEST_KEPT and field_name.isascii() else kept(field_name)
            if name in UNSPLIT:
                self.kinds[name] = self.kinds.get(name, 0) | (0 if value is None else kind_of(value))
                continue
            values = self.keys.get(name)
            if values is None:
                if len(self.keys) >= MOST_KEYS:
                    self.further += value is not None
                    if len(self._further) < _MOST_FURTHER:
                        self._further.add(hash(name))
                    continue
                values = self.keys[name] = Values()
                self.kinds[name] = 0
            if value is None:
                continue
            kind = kind_of(value)
            self.kinds[name] |= kind
            if kind == NAN and self.nan_is_missing:
                continue
            column = columns.get(name)
            if column is None:
                column = columns[name] = _Column()
            column.present += 1
            column.kinds |= kind
            self._pending_values += 1
            if kind & NUMBERS:
                column.numbers.append(value)
            elif kind & TEXTS:
                values.add(kept(value))
        self._pending += 1
        if self._pending >= _ROWS_AT_A_TIME or self._pending_values >= _VALUES_AT_A_TIME:
            self.settle()

    def settle(self) -> None:
        """Sum up the rows that have come since the last time; to be called after the last one."""
        for (step, place), ((rows,), columns) in self._block.items():
            cells = [(key, column.cell()) for key, column in columns.items()]
            self.rows += rows
            span = self._span(step)
            before = span.size
            span.add(rows, cells)
            if place is None:
                self.unplaced += rows
            else:
                self.places.setdefault(place, Group()).add(rows, cells)
                span.places[place] = span.places.get(place, 0) + rows
            self._cells += span.size - before
            self._thin()
        self._block.clear()
        self._pending = self._pending_values = 0

    def total(self, key: str) -> Cell:
        """A key in all rows."""
        return sum((span.cells[key] for span in self.spans if key in span.cells), start=_EMPTY)

    def present(self, key: str) -> list[int]:
        """The steps that have a key, as indices into `spans`."""
        return [index for index, span in enumerate(self.spans) if span.cell(key).present]

    @property
    def split(self) -> bool:
        """Whether its rows say their place."""
        return bool(self.places)

    @property
    def step_numbers(self) -> int:
        """How many steps it has, not counting rows that say none."""
        return sum(span.steps for span in self.spans if span.last != NO_STEP)

    def _place_of(self, row: Row) -> str | None:
        if self.by is None or (value := row.get(self.by)) is None:
            return None
        place = kept(value if isinstance(value, str) else json.dumps(value))
        if place in self.places:
            return place
        if len(self.places) >= MOST_PLACES:
            return OTHER
        self.places[place] = Group()
        return place

    def _span(self, step: int) -> Span:
        at = bisect_right(self.spans, step, key=lambda span: span.first)
        if at:
            span = self.spans[at - 1]
            if step <= span.last:
                return span
            if span.steps < self._steps_per_span and at == len(self.spans):
                span.last, span.steps = step, span.steps + 1
                return span
        self.spans.insert(at, Span(first=step, last=step))
        self._cells += 1
        return self.spans[at]

    def _thin(self) -> None:
        while self._cells > self._most_cells and len(self.spans) > 1:
            for span, following in zip(self.spans[::2], self.spans[1::2], strict=False):
                span.join(following)
            self.spans = self.spans[::2]
            self._steps_per_span *= 2
            self._cells = sum(span.size for span in self.spans)


def step_of(row: Row) -> int:
    """The step that a row says, or `NO_STEP`."""
    step = row.get("step")
    return step if type(step) is int and 0 <= step < 2**63 else NO_STEP


def changes(dump: Dump, key: str) -> Iterator[tuple[Span, Span]]:
    """The neighbouring steps with the key between which the families of its values differ."""
    for before, after in pairwise(dump.spans[index] for index in dump.present(key)):
        if named(before.cells[key].kinds, FAMILIES) != named(after.cells[key].kinds, FAMILIES):
            yield before, after
