"""Charts of one key as inline SVG: its coverage as a strip of cells, its mean as a line over the steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from verl_ext.report.summary import Cell
from verl_ext.report.text import number, share

_WIDTH, _HEIGHT = 320, 132
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 6, 8, 100
_STRIP = 106
_MOST_GAPS = 60
_MOST_DOTS = 40


@dataclass(frozen=True)
class Point:
    """One key in one step, or in a group of them."""

    step: str
    rows: int
    cell: Cell

    @property
    def share(self) -> str:
        """Of the rows that have it."""
        return share(self.cell.present, self.rows)


def shade(present: int, rows: int) -> str:
    """The class of a cell: `h0` for none of the rows, `h1` to `h5` by fifths, `h6` for all."""
    if present == 0:
        return "h0"
    return "h6" if present == rows else f"h{min(5, math.ceil(5 * present / rows))}"


def strip(points: Sequence[Point], label: str) -> str:
    """A row of the heat map, which stretches to any width."""
    return (
        f'<svg class="cells" role="img" aria-label="{escape(label)}" viewBox="0 0 {len(points)} 1" '
        f'preserveAspectRatio="none">{"".join(_cells(points))}</svg>'
    )


def swatch(kind: str) -> str:
    """A cell for the legend."""
    return f'<svg viewBox="0 0 1 1" preserveAspectRatio="none" aria-hidden="true">{_rect(0, 1, kind)}</svg>'


def _cells(points: Sequence[Point]) -> Iterator[str]:
    width = 0.94 if len(points) <= _MOST_GAPS else 1.02
    for index, point in enumerate(points):
        title = (
            f"<title>step {escape(point.step)}: {point.cell.present:,} of {point.rows:,} rows, {point.share}</title>"
        )
        yield f"<g>{title}{_rect(index, width, shade(point.cell.present, point.rows))}</g>"


def _rect(x: float, width: float, kind: str) -> str:
    y, height = (0.42, 0.16) if kind == "h0" else (0, 1)
    hidden = f'<rect x="{x}" y="0" width="{width}" height="1" fill="transparent"/>' if kind == "h0" else ""
    return f'{hidden}<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}"/>'


def trend(points: Sequence[Point], label: str) -> str:
    """The mean of a key, a band of one standard deviation around it, and its coverage below; gaps where it is none."""
    found = [_moments(point) for point in points]
    known = [moments for moments in found if moments is not None]
    if not known:
        return ""
    low, high = min(moment[1] for moment in known), max(moment[2] for moment in known)
    if low == high:
        low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
    if not math.isfinite(high - low):
        return ""
    across = (_WIDTH - _LEFT - _RIGHT) / len(points)

    def x(index: int) -> float:
        return round(_LEFT + (index + 0.5) * across, 1)

    def y(value: float) -> float:
        return round(_BOTTOM - (value - low) / (high - low) * (_BOTTOM - _TOP), 1)

    parts = [
        f'<path class="frame" d="M{_LEFT} {_TOP}H{_WIDTH - _RIGHT}M{_LEFT} {_BOTTOM}H{_WIDTH - _RIGHT}"/>',
        *(
            f'<text x="{_LEFT - 6}" y="{at}" text-anchor="end">{number(value, 3)}</text>'
            for value, at in ((high, _TOP + 8), (low, _BOTTOM))
        ),
    ]
    dots = len(known) <= _MOST_DOTS
    for there, run in groupby(range(len(points)), key=lambda index: found[index] is not None):
        indices = list(run)
        if there:
            moments = [(x(index), *map(y, found[index] or ())) for index in indices]
            upper = " ".join(f"{at},{top}" for at, _, _, top in moments)
            lower = " ".join(f"{at},{bottom}" for at, _, bottom, _ in reversed(moments))
            parts.append(f'<polygon class="band" points="{upper} {lower}"/>')
            parts.append(f'<polyline class="mean" points="{" ".join(f"{at},{mean}" for at, mean, *_ in moments)}"/>')
            for index, (at, mean, *_) in zip(indices, moments, strict=True):
                if dots or len(indices) == 1:
                    value = number(points[index].cell.numbers.mean)
                    title = f"<title>step {escape(points[index].step)}: mean {value}</title>"
                    parts.append(f'<circle class="dot" cx="{at}" cy="{mean}" r="2.5">{title}</circle>')
    scale = f"translate({_LEFT} {_STRIP}) scale({across:.4f} 6)"
    parts.append(f'<g transform="{scale}">{"".join(_cells(points))}</g>')
    ends = [(points[0].step, _LEFT, "start")]
    if len(points) > 1:
        ends.append((points[-1].step, _WIDTH - _RIGHT, "end"))
    parts += [
        f'<text x="{at}" y="{_HEIGHT - 6}" text-anchor="{to}">step {escape(step)}</text>' for step, at, to in ends
    ]
    return (
        f'<svg class="trend" role="img" aria-label="{escape(label)}" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        f"{''.join(parts)}</svg>"
    )


def _moments(point: Point) -> tuple[float, float, float] | None:
    """Mean, and the ends of the band; `None` where there is nothing to draw."""
    numbers = point.cell.numbers
    if not numbers.count or not math.isfinite(numbers.mean) or not math.isfinite(numbers.std):
        return None
    return numbers.mean, max(numbers.low, numbers.mean - numbers.std), min(numbers.high, numbers.mean + numbers.std)
