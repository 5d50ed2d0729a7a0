"""The report as plain data, for `--json`."""

from __future__ import annotations

import math
from typing import Any

from verl_ext.report.findings import Finding
from verl_ext.report.kinds import named
from verl_ext.report.run import Report
from verl_ext.report.summary import NO_STEP, Cell, Dump, Group, Span
from verl_ext.reward_metrics import Summary

_MOST_VALUES = 16


def as_json(report: Report) -> dict[str, Any]:
    """What strict JSON can hold.

    A number that is not finite is text, as Python's `float` and JavaScript's `Number` read it.
    """
    return {
        "path": str(report.path),
        "rows": report.rows,
        "bytes": report.bytes,
        "faults": {
            "count": report.faults.count,
            "first": [
                {"file": fault.file, "line": fault.line, "reason": fault.reason} for fault in report.faults.first
            ],
        },
        "dumps": [_dump(dump, found) for dump, found in zip(report.dumps, report.findings, strict=True)],
    }


def _dump(dump: Dump, found: list[Finding]) -> dict[str, Any]:
    further, more = dump.further_keys
    return {
        "name": dump.name,
        "by": dump.by if dump.split else None,
        "rows": dump.rows,
        "steps": [{**_steps(span), "rows": span.rows} for span in dump.spans],
        "places": {name: group.rows for name, group in dump.places.items()},
        "rows_without_place": dump.unplaced,
        "keys": {key: _key(dump, key) for key in dump.keys},
        "further_keys": {"count": further, "is_all": not more, "values": dump.further},
        "findings": [
            {
                "kind": finding.kind,
                "key": finding.key,
                "text": finding.text,
                "steps": [_steps(span) for span in finding.spans],
            }
            for finding in found
        ],
    }


def _key(dump: Dump, key: str) -> dict[str, Any]:
    values = dump.keys[key]
    described = _cell(dump.total(key), dump.rows)
    return {
        **described,
        "values": [{"value": value, "count": count} for value, count in values.commonest(_MOST_VALUES)],
        "values_counted_too_low_by_at_most": values.missed,
        "steps": [{**_steps(span), **_cell(span.cells[key], span.rows)} for span in dump.spans if key in span.cells],
        "places": {name: _in_place(group, key) for name, group in dump.places.items()},
    }


def _in_place(group: Group, key: str) -> dict[str, Any]:
    return _cell(group.cell(key), group.rows)


def _cell(cell: Cell, rows: int) -> dict[str, Any]:
    return {
        "present": cell.present,
        "coverage": cell.present / rows if rows else 0.0,
        "types": named(cell.kinds),
        **_moments(cell.numbers),
    }


def _moments(numbers: Summary) -> dict[str, Any]:
    if not numbers.count:
        return {}
    return {"numbers": numbers.count, **{name: _number(value) for name, value in numbers.moments.items()}}


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _steps(span: Span) -> dict[str, int | None]:
    return {"first": _step(span.first), "last": _step(span.last)}


def _step(step: int) -> int | None:
    return None if step == NO_STEP else step
