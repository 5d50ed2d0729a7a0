"""What an engineer should look at in a dump: keys that come and go, change their type, or never hold a value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from verl_ext.dump_fields import ABSTAINED, REWARD_SUM, SCORE, WHERE_DIFFERENT, beside
from verl_ext.report.kinds import FAMILIES, INFINITE, NAN, named
from verl_ext.report.summary import Dump, Span, changes
from verl_ext.report.text import counted, runs, visible

COMES_AND_GOES = "comes and goes"
BEGINS_LATE = "begins late"
ENDS_EARLY = "ends early"
CHANGES_TYPE = "changes type"
ALL_MISSING = "all missing"
NOT_A_NUMBER = "not a number"
INFINITY = "infinite"
SCORE_REPLACED = "score replaced"
SCORES_DIFFER = "scores differ"
UNSCORED = "unscored"

_OTHER_SCORE = {
    REWARD_SUM: "what the trainer summed up; `score` is what the reward function returned",
    beside(SCORE): "what the reward function returned; `score` is what the trainer summed up",
}
"""By field: what it is, and what `score` is in the rows that have it."""

_SAMPLE_0 = (
    "Where a key is absent from a step, none of its rows emitted it or, on stock verl, sample 0 did not: there the "
    "first sample of a batch decides which keys its step has, and the other rows lose theirs. verl-ext keeps them."
)
_CAUSES = {
    COMES_AND_GOES: _SAMPLE_0,
    BEGINS_LATE: _SAMPLE_0,
    ENDS_EARLY: _SAMPLE_0,
    NOT_A_NUMBER: "A mean over a NaN is NaN; with --nan missing, NaN counts as a missing value.",
    INFINITY: "A mean over an infinite value is infinite, or NaN.",
    SCORES_DIFFER: "A reward manager that adds a penalty to a score, or a reward on several tokens, makes two numbers.",
    UNSCORED: "With +verl_ext.unscored=abstain a sample without a score trains nothing. Many: an outage of a judge?",
    SCORE_REPLACED: "On stock verl a reward key `score` replaces the dump's own field, also in rows that lack the key.",
}
_MOST_CHANGES = 3
_MOST_PLACES = 5


@dataclass(frozen=True)
class Finding:
    """One thing about one key: its kind, what it is in words, and the steps it is about."""

    kind: str
    key: str
    text: str
    spans: Sequence[Span] = ()


def findings(dump: Dump) -> Iterator[Finding]:
    """All of them, by key in the order of the table; at most one of each kind for a key."""
    unscored = _unscored(dump)
    for key in dump.keys:
        present = dump.present(key)
        if not present:
            yield Finding(ALL_MISSING, key, f"null in all of {counted(dump.rows, 'row')}")
            continue
        if key == ABSTAINED and unscored:  # it comes and goes by nature
            text = f"{unscored:,} of {counted(dump.rows, 'row')} have no score: they train nothing and count in no mean"
            yield Finding(UNSCORED, key, text, [dump.spans[index] for index in present])
            continue
        if key not in WHERE_DIFFERENT:
            yield from _presence(dump, key, present)
        yield from _types(dump, key)
        yield from _not_finite(dump, key)
        total = dump.total(key).present
        if key in _OTHER_SCORE:
            text = f"another number in {total:,} of {counted(dump.rows, 'row')}: {_OTHER_SCORE[key]}"
            yield Finding(SCORES_DIFFER, key, text, [dump.spans[index] for index in present])
        if key == SCORE and total + unscored < dump.rows:
            partial = [span for span in dump.spans if span.cell(key).present < span.rows]
            text = f"null or missing in {dump.rows - total - unscored:,} of {counted(dump.rows, 'row')}"
            yield Finding(SCORE_REPLACED, key, text, partial)


def _unscored(dump: Dump) -> int:
    """How many rows say why they have no score; a key of that name on rows that have one is as any other."""
    told, scored = (dump.total(key).present if key in dump.keys else 0 for key in (ABSTAINED, SCORE))
    return told if told + scored <= dump.rows else 0


def causes(found: Sequence[Finding]) -> list[str]:
    """What is known to bring such findings about, once each."""
    return list(dict.fromkeys(_CAUSES[finding.kind] for finding in found if finding.kind in _CAUSES))


def steps_of(dump: Dump, chosen: Sequence[int]) -> str:
    """The chosen of its steps in words, by their indices."""
    if not chosen:
        return "none"
    if len(chosen) == len(dump.spans):
        return "all"
    return runs([span.label for span in dump.spans], chosen)


def _presence(dump: Dump, key: str, present: Sequence[int]) -> Iterator[Finding]:
    absent = sorted(set(range(len(dump.spans))) - set(present))
    if not absent:
        return
    spans = [dump.spans[index] for index in absent]
    lost = _lost(dump, key, spans)
    if absent[-1] < present[0]:
        yield Finding(BEGINS_LATE, key, f"not before step {dump.spans[present[0]].name}{lost}", spans)
    elif absent[0] > present[-1]:
        yield Finding(ENDS_EARLY, key, f"not after step {dump.spans[present[-1]].name}{lost}", spans)
    else:
        text = f"in {_steps(dump, present)}; absent from {_steps(dump, absent)}{lost}"
        yield Finding(COMES_AND_GOES, key, text, spans)


def _lost(dump: Dump, key: str, absent: Sequence[Span]) -> str:
    """The rows of the steps without a key, from places that have it in other steps: lost there, or never emitted."""
    lost = {
        place: rows
        for place, group in dump.places.items()
        if group.cell(key).present and (rows := sum(span.places.get(place, 0) for span in absent))
    }
    parts = [f"{rows:,} of {visible(place, 40)}" for place, rows in list(lost.items())[:_MOST_PLACES]]
    if len(lost) > _MOST_PLACES:
        parts.append(f"and of {len(lost) - _MOST_PLACES} more")
    by = visible(dump.by or "", 40)
    return f"; rows there whose {by} has it in other steps: {', '.join(parts)}" if parts else ""


def _types(dump: Dump, key: str) -> Iterator[Finding]:
    if len(named(dump.kinds[key], FAMILIES)) < 2:
        return
    found = list(changes(dump, key))
    parts = [
        f"{_families(before, key)} in step {before.name}, {_families(after, key)} in step {after.name}"
        for before, after in found[:_MOST_CHANGES]
    ]
    if len(found) > _MOST_CHANGES:
        parts.append(f"and {len(found) - _MOST_CHANGES:,} more changes")
    mixed: dict[str, list[int]] = {}
    for index, span in enumerate(dump.spans):
        if len(named(span.cell(key).kinds, FAMILIES)) > 1:
            mixed.setdefault(_families(span, key), []).append(index)
    parts += [f"{families} within {_steps(dump, indices)}" for families, indices in mixed.items()]
    spans = [after for _, after in found] or [dump.spans[index] for index in chain.from_iterable(mixed.values())]
    yield Finding(CHANGES_TYPE, key, "; ".join(parts), spans)


def _not_finite(dump: Dump, key: str) -> Iterator[Finding]:
    for kind, bits in ((NOT_A_NUMBER, NAN), (INFINITY, INFINITE)):
        found = [index for index, span in enumerate(dump.spans) if span.cell(key).kinds & bits]
        if found:
            yield Finding(kind, key, f"in {_steps(dump, found)}", [dump.spans[index] for index in found])


def _families(span: Span, key: str) -> str:
    return " and ".join(named(span.cell(key).kinds, FAMILIES))


def _steps(dump: Dump, chosen: Sequence[int]) -> str:
    steps = steps_of(dump, chosen)
    return "all steps" if steps == "all" else f"step{'s' if len(chosen) > 1 else ''} {steps}"
