"""The rows of the dumps as one aligned Parquet file: a column per key, and a true null where a row lacks it.

A column has numbers where every value is one: `bool`, `int64`, or `double` where these meet and all are exact. It has
text where every value is text, and else the JSON text of each value, as the metadata of its field says.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from verl_ext.errors import VerlExtError
from verl_ext.report.kinds import BOOL, FLOATS, INTEGER, LARGE, TEXT
from verl_ext.report.read import Faults, Progress, ReportError, Row, read_rows
from verl_ext.report.run import Report
from verl_ext.report.summary import NO_STEP, UNSPLIT, step_of
from verl_ext.report.text import counted, kept

DUMP, STEP, FURTHER = "__dump__", "__step__", "__further__"
"""Columns of the file's own: which dump and step a row is of, and as JSON what has no column."""

_BYTES_AT_A_TIME = 32 * 2**20
_ROW_BYTES = 512


class PyarrowNotFoundError(VerlExtError, ImportError):
    """`--parquet` needs pyarrow, which is not installed."""


def require_pyarrow() -> None:
    """Look for it before a long read, not after it.

    Raises:
        PyarrowNotFoundError: it is not there.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise PyarrowNotFoundError("--parquet needs pyarrow: pip install pyarrow") from error


def write_parquet(report: Report, path: Path, progress: Progress = lambda name, more: None) -> None:
    """Write the rows of a report, which are read once more.

    Raises:
        ReportError: `path` cannot be written, or the dumps hold what they did not when they were read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds: dict[str, int] = {}
    for dump in report.dumps:
        for name, found in dump.kinds.items():
            kinds[name] = kinds.get(name, 0) | found
    order = [*(name for name in UNSPLIT if name in kinds), *(name for name in kinds if name not in UNSPLIT)]
    columns = {name: _Column(kinds[name]) for name in order if name not in (DUMP, STEP, FURTHER)}
    schema = pa.schema(
        [
            pa.field(DUMP, pa.string()),
            pa.field(STEP, pa.int64()),
            *(
                pa.field(name, getattr(pa, column.type)(), metadata={"verl_ext": "json"} if column.is_json else None)
                for name, column in columns.items()
            ),
            pa.field(FURTHER, pa.string(), metadata={"verl_ext": "json"}),
        ]
    )
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".verl-ext-") as beside:
            unfinished = Path(beside) / "rows.parquet"  # a report that breaks off leaves nothing that looks like one
            written = 0
            with pq.ParquetWriter(unfinished, schema, compression="zstd") as writer:
                for rows in _blocks(report, columns, progress):
                    writer.write_table(pa.table(rows, schema=schema))
                    written += len(rows[DUMP])
            if written < report.rows:  # a file was cut or is gone; rows that a run still adds are welcome
                lost = counted(report.rows - written, "row")
                raise ReportError(f"{report.path} has changed while it was read: {lost} are gone")
            os.replace(unfinished, path)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise ReportError(f"{report.path} has changed while it was read: {error}") from error
    except OSError as error:
        raise ReportError(f"{path} cannot be written: {error.strerror or error}") from error


class _Column:
    """How the values of one key become those of one Parquet column."""

    def __init__(self, kinds: int) -> None:
        self.convert: Callable[[Any], Any]
        if not kinds:
            self.type, self.convert = "null", _as_it_is
        elif not kinds & ~BOOL:
            self.type, self.convert = "bool_", _as_it_is
        elif not kinds & ~(INTEGER | LARGE):
            self.type, self.convert = "int64", _as_it_is
        elif not kinds & ~(BOOL | INTEGER | FLOATS):
            self.type, self.convert = "float64", float
        elif not kinds & ~TEXT:
            self.type, self.convert = "string", _as_it_is
        else:
            self.type, self.convert = "string", json.dumps
        self.is_json = self.convert is json.dumps


def _as_it_is(value: Any) -> Any:
    return value


def _blocks(report: Report, columns: dict[str, _Column], progress: Progress) -> Iterator[dict[str, list[Any]]]:
    """The rows in blocks, column by column."""
    block: dict[str, list[Any]] = {name: [] for name in (DUMP, STEP, *columns, FURTHER)}
    taken = 0
    for dump, files in zip(report.dumps, report.files, strict=True):
        name = kept(dump.name)
        for file in files.files:
            for row in read_rows(file, Faults(), progress):
                step = step_of(row) if file.step is None else file.step
                block[DUMP].append(name)
                block[STEP].append(None if step == NO_STEP else step)
                further = _spread(row, columns, block, dump.nan_is_missing)
                block[FURTHER].append(json.dumps(further) if further else None)
                taken += _ROW_BYTES + sum(len(value) for value in row.values() if isinstance(value, str))
                if taken >= _BYTES_AT_A_TIME:
                    yield block
                    block, taken = {name: [] for name in block}, 0
    yield block


def _spread(row: Row, columns: dict[str, _Column], block: dict[str, list[Any]], nan_is_missing: bool) -> Row:
    """Put the values of a row at the end of their columns; what has none is returned."""
    named = {kept(name): (name, value) for name, value in row.items()}
    for name, column in columns.items():
        _, value = named.pop(name, (name, None))
        missing = value is None or (nan_is_missing and value != value)
        block[name].append(None if missing else column.convert(value))
    return {name: value for name, value in named.values() if value is not None}
