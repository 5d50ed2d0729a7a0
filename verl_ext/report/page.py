"""The report as one HTML page that needs nothing else: no script, no font, no picture, and a policy that forbids them.

Every name and value goes through `_text`: it may be what a model wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from string import Template

from verl_ext import __version__
from verl_ext.report.charts import Point, shade, strip, swatch, trend
from verl_ext.report.findings import Finding, causes, steps_of
from verl_ext.report.run import Report
from verl_ext.report.summary import Dump, Group, Span
from verl_ext.report.text import counted, number, share, visible
from verl_ext.report.words import VALUES, fault_lines, headline, shown_keys, types_of, values_of

_MOST_KEYS = 120
_MOST_COLUMNS = 100
_MOST_FINDINGS = 60
_LEGEND = {
    "h0": "no row",
    "h1": "up to 20 %",
    "h2": "40 %",
    "h3": "60 %",
    "h4": "80 %",
    "h5": "below 100 %",
    "h6": "all rows",
}


def page(report: Report) -> str:
    """The whole page, with at most 120 keys and 100 steps, or groups of steps, of each dump."""
    template = Template(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(title=f"Reward keys of {_text(report.path.name)}", body="\n".join(_body(report)))


def _body(report: Report) -> Iterator[str]:
    yield f"<header><h1>Reward keys</h1><p class='soft'><code>{_text(str(report.path), 200)}</code></p>"
    yield f"<p class='soft'>{counted(report.rows, 'row')}, {report.bytes / 1e6:,.1f} MB of dumps</p>"
    if len(report.dumps) > 1:
        links = (f'<a href="#dump-{index}">{_text(dump.name)}</a>' for index, dump in enumerate(report.dumps))
        yield f'<nav aria-label="Dumps">{"".join(links)}</nav>'
    yield "</header>"
    if report.faults.count:
        lines = "".join(f"<li><code>{_text(line, 300)}</code></li>" for line in fault_lines(report.faults))
        yield f"<h3>{counted(report.faults.count, 'place')} in the dumps that could not be read</h3>"
        yield f'<ul class="notes">{lines}</ul>'
    yield "<main>"
    for index, (dump, found) in enumerate(zip(report.dumps, report.findings, strict=True)):
        yield f'<section id="dump-{index}"><h2>{_text(dump.name)}</h2>'
        yield f'<p class="soft">{_text(headline(dump), 200)}</p>'
        if dump.rows:
            yield from _dump(dump, found)
        yield "</section>"
    yield f"</main><footer>verl-ext {__version__} report</footer>"


def _dump(dump: Dump, found: Sequence[Finding]) -> Iterator[str]:
    keys = shown_keys(dump)
    chosen = keys[:_MOST_KEYS]
    yield from _findings(found)
    spans = _columns(dump.spans)
    points = {key: [Point(span.name, span.rows, span.cell(key)) for span in spans] for key in chosen}
    yield from _heat_map(dump, spans, points)
    if len(keys) > _MOST_KEYS:
        yield f'<p class="soft">and {len(keys) - _MOST_KEYS:,} more keys: <code>--json</code> has them</p>'
    further, more = dump.further_keys
    if further:
        yield f'<p class="soft">and {"more than " if more else ""}{further:,} keys that were only counted</p>'
    if dump.split:
        yield from _by_place(dump, chosen)
    yield from _trends(points, dump)
    yield from _table(dump, chosen)


def _columns(spans: Sequence[Span]) -> list[Span]:
    """Neighbouring steps put together, so that no more than `_MOST_COLUMNS` are left."""
    together = -(-len(spans) // _MOST_COLUMNS)
    columns = []
    for start in range(0, len(spans), together):
        group = spans[start : start + together]
        column = Span(first=group[0].first, steps=0)
        for span in group:
            column.join(span)
        columns.append(column)
    return columns


def _findings(found: Sequence[Finding]) -> Iterator[str]:
    if not found:
        return
    lines = [
        f'<li><span class="key">{_text(finding.key)}</span> <b>{finding.kind}</b>: '
        f"{_steps_text(_text(finding.text, 600))}</li>"
        for finding in found[:_MOST_FINDINGS]
    ]
    if len(found) > _MOST_FINDINGS:
        lines.append(f"<li>and {len(found) - _MOST_FINDINGS:,} more</li>")
    lines += [f'<li class="soft">{cause}</li>' for cause in causes(found)]
    yield f'<h3>What stands out</h3><ul class="notes">{"".join(lines)}</ul>'


def _heat_map(dump: Dump, spans: Sequence[Span], points: dict[str, list[Point]]) -> Iterator[str]:
    yield "<h3>Rows that have each key, by step</h3>"
    yield from _legend()
    yield '<div class="heat-map">'
    for key, row in points.items():
        total = dump.total(key)
        steps = steps_of(dump, dump.present(key))
        label = f"{visible(key)}: {share(total.present, dump.rows)} of the rows, in steps: {steps}"
        yield (
            f'<div class="strip"><span class="key">{_text(key)}</span>{strip(row, label)}'
            f'<span class="share">{share(total.present, dump.rows)}</span></div>'
        )
    names = list(dict.fromkeys((spans[0].name, spans[len(spans) // 2].name, spans[-1].name)))
    labels = "".join(f"<span>{'step ' if name == names[0] else ''}{name}</span>" for name in names)
    yield f'<div class="strip"><div class="axis" aria-hidden="true">{labels}</div></div></div>'
    heads = "".join(f'<th scope="col" class="n">{name}</th>' for name in ("key", *(span.name for span in spans)))
    rows = "".join(
        f'<tr><th scope="row" class="key">{_text(key)}</th>'
        f'{"".join(f"""<td class="n">{point.cell.present:,}</td>""" for point in row)}</tr>'
        for key, row in points.items()
    )
    yield (
        '<details class="folded"><summary>The same as a table: rows that have each key, by step</summary>'
        f'<div class="wide" tabindex="0"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
        "</details>"
    )


def _legend() -> Iterator[str]:
    yield '<ul class="legend" aria-label="Share of the rows that have the key">'
    yield from (f"<li>{swatch(kind)}{words}</li>" for kind, words in _LEGEND.items())
    yield "</ul>"


def _by_place(dump: Dump, keys: Sequence[str]) -> Iterator[str]:
    places = list(dump.places.items())
    yield f'<h3>Rows that have each key, by <span class="key">{_text(dump.by or "")}</span></h3>'
    yield '<div class="wide" tabindex="0"><table class="matrix"><thead><tr><th scope="col">key</th>'
    for name, group in places:
        yield f'<th scope="col">{_text(name)}<br><span class="soft">{counted(group.rows, "row")}</span></th>'
    yield "</tr></thead><tbody>"
    for key in keys:
        cells = "".join(_place_cell(group, key) for _, group in places)
        yield f'<tr><th scope="row" class="key">{_text(key)}</th>{cells}</tr>'
    yield "</tbody></table></div>"
    if dump.unplaced:
        yield f'<p class="soft">{counted(dump.unplaced, "row")} without it</p>'


def _place_cell(group: Group, key: str) -> str:
    cell = group.cell(key)
    title = f"{cell.present:,} of {group.rows:,} rows"
    if cell.numbers.count:
        title += f", mean {number(cell.numbers.mean)}"
    return f'<td class="{shade(cell.present, group.rows)}" title="{title}">{share(cell.present, group.rows)}</td>'


def _trends(points: dict[str, list[Point]], dump: Dump) -> Iterator[str]:
    figures = []
    for key, row in points.items():
        numbers = dump.total(key).numbers
        mean = f"mean {number(numbers.mean)}"
        if numbers.count and (chart := trend(row, f"{visible(key)}: {mean}, by step")):
            figures.append(
                f'<figure><figcaption><span class="key">{_text(key)}</span><span class="soft">{mean}</span>'
                f"</figcaption>{chart}</figure>"
            )
    if figures:
        yield "<h3>Mean of each numeric key, by step</h3>"
        yield (
            '<p class="soft">The band is one standard deviation; the cells below it are the coverage, shaded as above. '
            "The line has a gap where no row has the key, or a value is not finite.</p>"
        )
        yield f'<div class="trends">{"".join(figures)}</div>'


def _table(dump: Dump, keys: Sequence[str]) -> Iterator[str]:
    heads = ("key", "types", "rows", "coverage", VALUES, "in steps")
    yield "<h3>Each key</h3>"
    yield '<div class="wide" tabindex="0"><table class="all"><thead><tr>'
    for head in heads:
        yield f'<th scope="col"{_right(head)}>{head}</th>'
    yield "</tr></thead><tbody>"
    for key in keys:
        total = dump.total(key)
        cells = {
            "types": types_of(total),
            "rows": f"{total.present:,}",
            "coverage": share(total.present, dump.rows),
            VALUES: values_of(dump, key, total),
            "in steps": _steps_text(steps_of(dump, dump.present(key))),
        }
        row = "".join(f"<td{_right(head)}>{escape(text)}</td>" for head, text in cells.items())
        yield f'<tr><th scope="row" class="key">{_text(key)}</th>{row}</tr>'
    yield "</tbody></table></div>"


def _right(head: str) -> str:
    return ' class="n"' if head in ("rows", "coverage") else ""


def _steps_text(text: str) -> str:
    """With hyphens at which a line does not break: `4-5` stays together."""
    return text.replace("-", "\N{NON-BREAKING HYPHEN}")


def _text(text: str, longest: int = 60) -> str:
    return escape(visible(text, longest))
