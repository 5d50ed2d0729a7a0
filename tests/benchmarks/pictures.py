"""What the documentation shows of `make bench`: two charts and the table, all written from the figures of one run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

WIDTH = 760
LEFT, RIGHT = 225, 60
BAR, GAP = 17, 26

WHO = {
    "ours": ("verl-ext, compiled", "#1f6fb2"),
    "pure": ("verl-ext, pure Python", "#8ab6dc"),
    "stock": ("stock verl's loop, uniform rows", "#c0392b"),
    "frame": ("fastest data frame", "#7f8c8d"),
    "union": ("plain union of keys", "#c9b458"),
}
FRAMES = ("pandas", "pyarrow", "polars")
ROWS = 16_384
GROUPS = {
    f"{ROWS:,} rows, 4 schema(s), 12 keys, mixed": "4 schemas of 12 keys",
    f"{ROWS:,} rows, 1 schema(s), 12 keys, mixed": "1 schema of 12 keys",
    f"{ROWS:,} short rows, 4 schemas of 1, 3, 8 and 3 keys": "short rows of 1 to 8 keys",
}
BY_ROWS = ", 4 schema(s), 12 keys, mixed"

Times = Mapping[str, Mapping[str, float]]
"""By input, and by who: nanoseconds a value."""


def write(directory: Path, figures: Sequence[Any], times: Sequence[Any], machine: Mapping[str, Any]) -> None:
    """The charts into `images/` of a directory, and the table as a page beside them."""
    images = directory / "images"
    images.mkdir(parents=True, exist_ok=True)
    by_input: dict[str, dict[str, float]] = {}
    rows = {time.input: time.rows for time in times}
    for time in times:
        by_input.setdefault(time.input, {})[time.who] = time.nanoseconds
    for found in by_input.values():
        if frames := [found[name] for name in FRAMES if name in found]:
            found["frame"] = min(frames)
    groups = {label: by_input[where] for where, label in GROUPS.items() if where in by_input}
    if groups:
        (images / "time-by-peer.svg").write_text(bars(groups))
    lines = {rows[where]: found for where, found in by_input.items() if where == f"{rows[where]:,} rows{BY_ROWS}"}
    if len(lines) > 1:
        (images / "time-by-rows.svg").write_text(curves(lines))
    (directory / "performance-figures.md").write_text(page(figures, machine))


def _picture(title: str, height: float, parts: Iterable[str]) -> str:
    size = f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" role="img">'
    ground = f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>'
    return "\n".join([head, f"<title>{escape(title)}</title>", ground, *parts, "</svg>", ""])


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = "#222222", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{more}>{escape(text)}</text>'


def bars(groups: Times) -> str:
    """A group of bars for each input, one bar for each of those who read it; nanoseconds a value."""
    title = f"Time per value, {ROWS:,} rows of numbers and text (ns; shorter is better)"
    most = max(nanoseconds for found in groups.values() for who, nanoseconds in found.items() if who in WHO)
    parts = [_text(WIDTH / 2, 22, title, "middle", more=' font-size="14"')]
    y = 44.0
    for label, found in groups.items():
        parts.append(_text(16, y + 13, label, more=' font-weight="bold"'))
        y += 20
        for who, (name, colour) in WHO.items():
            if who not in found:
                continue
            length = (WIDTH - LEFT - RIGHT) * found[who] / most
            parts += [
                _text(LEFT - 8, y + 12, name, "end", "#444444"),
                f'<rect x="{LEFT}" y="{y:.1f}" width="{length:.1f}" height="{BAR - 3}" fill="{colour}"/>',
                _text(LEFT + length + 5, y + 12, f"{found[who]:.0f}"),
            ]
            y += BAR
        y += GAP - BAR
    return _picture(title, y + 8, parts)


def curves(lines: Mapping[int, Mapping[str, float]]) -> str:
    """A line for each of those who read the rows: nanoseconds a value by rows, both on scales of powers."""
    title = "Time per value by rows, 4 schemas of 12 keys, numbers and text (ns)"
    left, right, top, bottom = 60.0, WIDTH - 235.0, 44.0, 320.0
    counts = sorted(lines)
    found = [nanoseconds for one in lines.values() for who, nanoseconds in one.items() if who in WHO]
    ticks = [step * 10.0**power for power in range(6) for step in (1, 2, 5)]
    low, high = max(tick for tick in ticks if tick <= min(found)), min(tick for tick in ticks if tick >= max(found))

    def across(rows: float) -> float:
        return left + (right - left) * math.log(rows / counts[0]) / math.log(counts[-1] / counts[0])

    def up(nanoseconds: float) -> float:
        return bottom - (bottom - top) * math.log(nanoseconds / low) / math.log(high / low)

    parts = [_text(WIDTH / 2, 22, title, "middle", more=' font-size="14"')]
    for tick in (tick for tick in ticks if low <= tick <= high):
        y = up(tick)
        parts.append(f'<line x1="{left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(_text(left - 8, y + 4, f"{tick:,.0f}", "end", "#444444"))
    parts += [_text(across(rows), bottom + 18, f"{rows:,}", "middle", "#444444") for rows in counts]
    parts.append(_text((left + right) / 2, bottom + 38, "rows", "middle"))
    last: list[float] = []
    for who, (name, colour) in sorted(WHO.items(), key=lambda item: lines[counts[-1]].get(item[0], 0)):
        points = [(across(rows), up(lines[rows][who])) for rows in counts if who in lines[rows]]
        if not points:
            continue
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        y = min([points[-1][1], *(one - 15 for one in last)])  # names do not lie on each other
        last.append(y)
        parts.append(_text(right + 10, y + 4, name, colour=colour))
    return _picture(title, bottom + 50, parts)


def page(figures: Sequence[Any], machine: Mapping[str, Any]) -> str:
    """The table as a page of the documentation."""
    lines = [
        "# Performance: all figures",
        "",
        "One run of `make bench PAGES=docs`, which writes this page. [Performance](performance.md) says what was",
        "measured, and what the figures mean. *Pure*: ours without the compiled core.",
        "",
        f"{', '.join(f'{name} {value}' for name, value in machine.items())}.",
        "",
        "| figure | input | ours | pure | peer | ratio | target | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in figures:
        met = {None: "", True: "met", False: "**missed**"}[one.met]
        cells = (one.figure, one.input, one.ours, one.pure, one.peer, f"{one.ratio:.2f}", one.target, met)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
