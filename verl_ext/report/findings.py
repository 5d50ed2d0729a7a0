"""What an engineer should look at in a dump: keys that come and go, change their type, or never hold a value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from verl_ext.report.summary import FAMILIES, INFINITE, NAN, SCORE, Dump, Span, changes, named
from verl_ext.report.text import counted, runs

COMES_AND_GOES = "comes and goes"
BEGINS_LATE = "begins late"
ENDS_EARLY = "ends early"
CHANGES_TYPE = "changes type"
ALL_MISSING = "all missing"
NOT_FINITE = "not finite"
SCORE_REPLACED = "score replaced"

EXPLAINED = {
    COMES_AND_GOES: "On stock verl the first sample of a batch decides which keys its step has: "
    "where it lacks a key, the other rows lose theirs. verl-ext keeps them.",
    SCORE_REPLACED: "On stock verl a reward key of that name replaces the field, also in rows that lack the key.",
}
"""Where a finding has one known cause."""

_MOST_CHANGES = 3


@dataclass(frozen=True)
class Finding:
    """One thing about one key: its kind, what it is in words, and the steps it is about."""

    kind: str
    key: str
    text: str
    spans: Sequence[Span] = ()


def findings(dump: Dump) -> Iterator[Finding]:
    """All of them, by key in the order of the table; at most one of each kind for a key."""
    for key in dump.keys:
        present = [index for index, span in enumerate(dump.spans) if span.cell(key).present]
        if not present:
            yield Finding(ALL_MISSING, key, f"null in all of {counted(dump.rows, 'row')}")
            continue
        yield from _presence(dump, key, present)
        yield from _types(dump, key)
        yield from _not_finite(dump, key)
        total = dump.total(key).present
        if key == SCORE and total < dump.rows:
            partial = [span for span in dump.spans if span.cell(key).present < span.rows]
            text = f"null or missing in {dump.rows - total:,} of {counted(dump.rows, 'row')}"
            yield Finding(SCORE_REPLACED, key, text, partial)


def steps_of(dump: Dump, chosen: Sequence[int]) -> str:
    """The chosen of its steps in words, by their indices."""
    if len(chosen) == len(dump.spans):
        return "all"
    return runs([span.label for span in dump.spans], chosen)


def _presence(dump: Dump, key: str, present: Sequence[int]) -> Iterator[Finding]:
    absent = sorted(set(range(len(dump.spans))) - set(present))
    if not absent:
        return
    spans = [dump.spans[index] for index in absent]
    if absent[-1] < present[0]:
        yield Finding(BEGINS_LATE, key, f"not before step {dump.spans[present[0]].name}", spans)
    elif absent[0] > present[-1]:
        yield Finding(ENDS_EARLY, key, f"not after step {dump.spans[present[-1]].name}", spans)
    else:
        text = f"in {_steps(dump, present)}; absent from {_steps(dump, absent)}"
        yield Finding(COMES_AND_GOES, key, text, spans)


def _types(dump: Dump, key: str) -> Iterator[Finding]:
    if len(named(dump.kinds[key], FAMILIES)) < 2:
        return
    parts, spans = [], []
    for before, after in islice(changes(dump, key), _MOST_CHANGES):
        parts.append(f"{_families(before, key)} in step {before.name}, {_families(after, key)} in step {after.name}")
        spans.append(after)
    mixed = [index for index, span in enumerate(dump.spans) if len(named(span.cell(key).kinds, FAMILIES)) > 1]
    if mixed:
        parts.append(f"{' and '.join(named(dump.kinds[key], FAMILIES))} within {_steps(dump, mixed)}")
    yield Finding(CHANGES_TYPE, key, "; ".join(parts), spans or [dump.spans[index] for index in mixed])


def _not_finite(dump: Dump, key: str) -> Iterator[Finding]:
    kinds = NAN | INFINITE
    found = [index for index, span in enumerate(dump.spans) if span.cell(key).kinds & kinds]
    if found:
        names = named(dump.kinds[key] & kinds, {"NaN": NAN, "infinite": INFINITE})
        yield Finding(
            NOT_FINITE, key, f"{' and '.join(names)} in {_steps(dump, found)}", [dump.spans[index] for index in found]
        )


def _families(span: Span, key: str) -> str:
    return " and ".join(named(span.cell(key).kinds, FAMILIES))


def _steps(dump: Dump, chosen: Sequence[int]) -> str:
    steps = steps_of(dump, chosen)
    return "all steps" if steps == "all" else f"step{'s' if len(chosen) > 1 else ''} {steps}"
