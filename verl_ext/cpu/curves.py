"""Learning curves as an SVG picture: one panel for each kind of run, stock verl beside verl-ext. Of verl: nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 380, 250
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 38, 46
LEGEND = 30

COLOURS = {"stock verl": "#c0392b", "verl-ext": "#1f6fb2"}
DASHES = {"stock verl": "6 4", "verl-ext": "none"}

Panel = Mapping[str, Sequence[float]]
"""By side, the mean reward of each step."""


def draw(panels: Mapping[str, Panel], steps: int) -> str:
    """The picture: a panel by title, of `steps` steps; rewards are from 0 to 1, and drawn as such."""
    columns = min(2, len(panels)) or 1
    rows = -(-len(panels) // columns)
    width, height = columns * WIDTH, rows * HEIGHT + LEGEND
    top = max([1.0, *(reward for panel in panels.values() for line in panel.values() for reward in line)])
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" role="img">',
        "<title>Mean reward by training step, stock verl beside verl-ext</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (title, panel) in enumerate(panels.items()):
        x, y = number % columns * WIDTH, number // columns * HEIGHT
        parts += [f'<g transform="translate({x} {y})">', *_panel(title, panel, steps, top), "</g>"]
    left, middle = width / 2 - 110, height - LEGEND / 2
    for side, colour in COLOURS.items():
        ends = f'x1="{left:.0f}" y1="{middle}" x2="{left + 28:.0f}" y2="{middle}"'
        parts += [
            f'<line {ends} stroke="{colour}" stroke-width="2.5" stroke-dasharray="{DASHES[side]}"/>',
            f'<text x="{left + 36:.0f}" y="{middle + 4}" fill="#222222">{side}</text>',
        ]
        left += 130
    return "\n".join([*parts, "</svg>", ""])


def _panel(title: str, panel: Panel, steps: int, top: float) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def across(step: float) -> float:
        return LEFT + (right - LEFT) * (step - 1) / max(steps - 1, 1)

    def up(reward: float) -> float:
        return bottom - (bottom - TOP) * reward / top

    parts = [f'<text x="{(LEFT + right) / 2:.0f}" y="22" text-anchor="middle" font-size="14">{escape(title)}</text>']
    for tick in range(5):
        reward = top * tick / 4
        parts.append(
            f'<line x1="{LEFT}" y1="{up(reward):.1f}" x2="{right}" y2="{up(reward):.1f}" stroke="#dddddd"/>'
            f'<text x="{LEFT - 8}" y="{up(reward) + 4:.1f}" text-anchor="end" fill="#444444">{reward:.2f}</text>'
        )
    for step in sorted({1, *(round(steps * part / 3) or 1 for part in (1, 2, 3))}):
        parts.append(
            f'<text x="{across(step):.1f}" y="{bottom + 18}" text-anchor="middle" fill="#444444">{step}</text>'
        )
    parts.append(f'<text x="{(LEFT + right) / 2:.0f}" y="{bottom + 36}" text-anchor="middle">training step</text>')
    middle = (TOP + bottom) / 2
    parts.append(f'<text transform="translate(14 {middle:.0f}) rotate(-90)" text-anchor="middle">mean reward</text>')
    for side, colour in reversed(COLOURS.items()):  # dashes above the line that they may coincide with
        if side not in panel:
            continue
        rewards = panel[side]
        points = [(across(step), up(reward)) for step, reward in enumerate(rewards, 1)]
        if len(points) > 1:
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(
                f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5" '
                f'stroke-dasharray="{DASHES[side]}"/>'
            )
        if points and len(rewards) < steps:  # it ended early
            x, y = points[-1]
            parts.append(f'<text x="{x:.1f}" y="{y + 5:.1f}" text-anchor="middle" fill="{colour}">✕</text>')
        if not points:
            text = f"{side}: no step"
            parts.append(f'<text x="{LEFT + 10}" y="{TOP + 14}" fill="{colour}">{text}</text>')
    return parts
