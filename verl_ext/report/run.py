"""Reads what is under a path once and hands out the report, which the table, the page and the JSON are views of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from verl_ext.report.findings import Finding, findings
from verl_ext.report.read import DumpFiles, Faults, Progress, find_dumps, read_rows
from verl_ext.report.summary import MOST_CELLS, Dump

DATA_SOURCE = "data_source"
"""The column that splits a report where no other is named."""


@dataclass
class Report:
    """What is known of the dumps under a path.

    Attributes:
        path: as it was given.
        by: the column that splits it, where it was named.
        dumps: each of them summed up.
        files: of each dump, to read them again.
        faults: what in them is no row.
    """

    path: Path
    by: str | None
    dumps: Sequence[Dump]
    files: Sequence[DumpFiles]
    faults: Faults

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.size for dump in self.files for file in dump.files)

    @property
    def rows(self) -> int:
        """How many rows were read."""
        return sum(dump.rows for dump in self.dumps)

    @property
    def by_is_missing(self) -> bool:
        """Whether a column was named that no row has."""
        return self.by is not None and not any(dump.split for dump in self.dumps)

    @cached_property
    def findings(self) -> list[list[Finding]]:
        """For each dump."""
        return [list(findings(dump)) for dump in self.dumps]


def summarize(
    path: Path,
    by: str | None = None,
    nan_is_missing: bool = False,
    strict: bool = False,
    progress: Callable[[int], Progress] = lambda total: lambda name, more: None,
) -> Report:
    """Read every dump under `path`, a file or a directory.

    Args:
        path: a dump, a directory of dumps, or a directory of such directories.
        by: the column that splits the report; without it `data_source`, where the rows have one.
        nan_is_missing: whether NaN counts as a missing value.
        strict: stop at the first place that is no row.
        progress: called with the number of bytes there are; what it returns is called with those that are read.

    Raises:
        ReportError: there is no dump.
        NoRowError: in strict mode, for the first line that is no row.
    """
    faults = Faults(strict)
    found = find_dumps(path, faults)
    advance = progress(sum(file.size for files in found for file in files.files))
    dumps = []
    for files in found:
        dump = Dump(files.name, by or DATA_SOURCE, nan_is_missing, MOST_CELLS // len(found))
        for file in files.files:
            for row in read_rows(file, faults, advance):
                dump.add(row, file.step)
            dump.settle()
        dumps.append(dump)
    return Report(path, by, dumps, found, faults)
