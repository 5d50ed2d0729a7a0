"""What `verl-ext report` does, in order: look whether it can write what is wanted, read, write, print."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from verl_ext.errors import shown
from verl_ext.report.page import page
from verl_ext.report.parquet import require_pyarrow, write_parquet
from verl_ext.report.plain import as_json
from verl_ext.report.read import ReportError
from verl_ext.report.run import Report, summarize
from verl_ext.report.show import console, progress_bar, show
from verl_ext.report.words import fault_lines


def run_report(
    path: Path,
    *,
    by: str | None = None,
    nan_is_missing: bool = False,
    json: bool = False,
    html: Path | None = None,
    parquet: Path | None = None,
    strict: bool = False,
) -> int:
    """Print the report, as a table or as JSON, and write what else is wanted.

    Returns:
        The number of places that are no row.

    Raises:
        ReportError: there is no dump, a file cannot be written, or no row has the column `by`.
        NoRowError: in strict mode, for the first line that is no row.
        PyarrowNotFoundError: `parquet` is wanted.
    """
    if parquet is not None:
        require_pyarrow()
    for target in (html, parquet):
        if target is not None:
            _check_target(target, path)
    with progress_bar() as progress:
        report = summarize(path, by, nan_is_missing, strict, progress)
    if html is not None:  # the files first: a reader such as `head` may close standard output at any time
        _write_page(report, html)
    if parquet is not None:
        with progress_bar() as progress:
            write_parquet(report, parquet, progress(report.bytes))
    _say(*(f"wrote {target}" for target in (html, parquet) if target is not None))
    if json:
        _print_json(report)
    else:
        show(report, console())
    _say(*fault_lines(report.faults))
    if report.by_is_missing:
        raise ReportError(f"no row has the column {shown(by)}: the report is not split")
    return report.faults.count


def _check_target(target: Path, source: Path) -> None:
    place = target.resolve().parent
    if not place.is_dir():
        raise ReportError(f"{target} cannot be written: there is no directory {place}")
    if target.is_dir() or not os.access(place, os.W_OK):
        raise ReportError(f"{target} cannot be written: it is a directory, or you may not write there")
    if target.exists() and (target.samefile(source) or ".jsonl" in target.suffixes):
        raise ReportError(f"{target} is a dump: it is not overwritten")


def _print_json(report: Report) -> None:
    json.dump(as_json(report), sys.stdout, indent=1, allow_nan=False)
    print()


def _write_page(report: Report, target: Path) -> None:
    try:
        target.write_text(page(report), encoding="utf-8")
    except OSError as error:
        raise ReportError(f"{target} cannot be written: {error.strerror}") from error


def _say(*lines: str) -> None:
    for line in lines:
        print(f"verl-ext: {line}", file=sys.stderr)
