"""verl's dumps as a stream of rows: which files, in which order, and what in them is no row.

verl writes one JSONL file per step, `<step>.jsonl`, into `trainer.rollout_data_dir` and `trainer.validation_data_dir`.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeAlias

from verl_ext.errors import VerlExtError
from verl_ext.report.text import visible

Row: TypeAlias = dict[str, Any]
Progress: TypeAlias = Callable[[str, int], None]
"""Called with the name of a file, and how many bytes more of it have been read."""

LONGEST_LINE = 16 * 2**20
"""Bytes of a line that are read as one: a row of 128,000 tokens takes about 0.6 MB."""

MOST_DUMPS = 8
_MOST_FAULTS = 20
_MOST_FAULTS_IN_ERROR = 4
_STEP = re.compile(r"(\d{1,18})\.jsonl(\.gz)?", re.IGNORECASE | re.ASCII)
_JSONL = re.compile(r".+\.jsonl(\.gz)?", re.IGNORECASE | re.DOTALL)
_TOLD_EVERY = 2**18


class ReportError(VerlExtError, ValueError):
    """There is nothing to report on, or no way to write it where it should go."""


class NoRowError(VerlExtError, ValueError):
    """Something in a dump is no row, and the report was to stop there."""


@dataclass(frozen=True)
class Fault:
    """A place in a dump that is no row, and why."""

    file: str
    line: int | None
    reason: str

    def __str__(self) -> str:
        place = visible(self.file, 200)
        return f"{place}:{self.line}: {self.reason}" if self.line else f"{place}: {self.reason}"


@dataclass
class Faults:
    """All that is no row: how many places, and the first of them."""

    strict: bool = False
    count: int = 0
    first: list[Fault] = field(default_factory=list)

    def add(self, file: str, line: int | None, reason: str) -> None:
        """Note a place.

        Raises:
            NoRowError: in strict mode.
        """
        fault = Fault(file, line, reason)
        if self.strict:
            raise NoRowError(str(fault))
        self.count += 1
        if len(self.first) < _MOST_FAULTS:
            self.first.append(fault)


@dataclass(frozen=True)
class DumpFile:
    """One file of a dump; `name` is its path as the report shows it, `step` the number that names it."""

    path: Path
    name: str
    step: int | None
    size: int


@dataclass(frozen=True)
class DumpFiles:
    """One dump, as `rollout` or `validation`: the files of one directory, by step."""

    name: str
    files: tuple[DumpFile, ...]


def find_dumps(path: Path, faults: Faults) -> list[DumpFiles]:
    """The dumps under `path`, a file or a directory.

    Raises:
        ReportError: there is none, or more than `MOST_DUMPS`.
    """
    try:
        if path.exists() and not (path.is_dir() or path.is_file()):
            raise ReportError(f"{path} is no file that can be read twice: write it to one first")
        if not path.is_dir():
            return [DumpFiles(path.name, (_file(path, path.name),))]
        found = []
        for place, folders, names in sorted(os.walk(path, onerror=lambda error: _unreadable(error, faults))):
            here = Path(place)
            name = str(here.relative_to(path)) if here != path else path.resolve().name
            links = [folder for folder in folders if (here / folder).is_symlink()]  # which are not walked through
            if files := _in_order(here, path, [*names, *links], faults):
                found.append(DumpFiles(name, tuple(files)))
            elif _JSONL.fullmatch(here.name) and here != path:
                faults.add(name, None, "cannot be read: it is a directory, not a file")
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from error
    if not found:
        left_out = "".join(f"; {fault}" for fault in faults.first[:_MOST_FAULTS_IN_ERROR])
        raise ReportError(f"{path} holds no dump: no file <step>.jsonl or <step>.jsonl.gz is in it{left_out}")
    if len(found) > MOST_DUMPS:
        raise ReportError(f"{path} holds {len(found)} directories with dumps; at most {MOST_DUMPS} make one report")
    return found


def _in_order(here: Path, root: Path, names: list[str], faults: Faults) -> list[DumpFile]:
    files: dict[str, DumpFile] = {}
    for name in filter(_JSONL.fullmatch, names):
        shown_name = str((here / name).relative_to(root))
        try:
            files[name] = _file(here / name, shown_name)
        except OSError as error:
            faults.add(shown_name, None, f"cannot be read: {error.strerror}")
    for name in [name for name in files if name.lower().endswith(".gz") and name[: -len(".gz")] in files]:
        faults.add(files.pop(name).name, None, f"left out: {visible(name[: -len('.gz')])} is beside it")
    return sorted(files.values(), key=lambda file: (file.step is None, file.step or 0, file.name))


def _file(path: Path, name: str) -> DumpFile:
    step = _STEP.fullmatch(path.name)
    found = path.stat()
    _refuse_what_is_no_file(found)
    return DumpFile(path, name, int(step[1]) if step else None, found.st_size)


_NO_FILES = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def _refuse_what_is_no_file(found: os.stat_result) -> None:
    """A pipe would be waited for, and a device may have no end."""
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, f"it is {_NO_FILES.get(stat.S_IFMT(found.st_mode), 'something else')}, not a file")


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    """Without waiting, whatever has taken the place of a file since it was found; what is no file is refused."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as raw:
        _refuse_what_is_no_file(os.fstat(raw.fileno()))
        yield raw


def _unreadable(error: OSError, faults: Faults) -> None:
    faults.add(str(error.filename), None, f"cannot be read: {error.strerror}")


def read_rows(file: DumpFile, faults: Faults, progress: Progress = lambda name, more: None) -> Iterator[Row]:
    """The rows of one file; what is none goes to `faults`. Holds one line at a time."""
    line, told = 0, 0
    try:
        with _opened(file.path) as raw:
            for line, text in enumerate(_lines(raw, file), start=1):
                if raw.tell() - told >= _TOLD_EVERY:
                    progress(file.name, raw.tell() - told)
                    told = raw.tell()
                if text is None:
                    faults.add(file.name, line, f"longer than {LONGEST_LINE:,} bytes")
                elif not text.isspace():
                    try:
                        row = json.loads(text)
                    except (ValueError, RecursionError) as error:
                        faults.add(file.name, line, f"no JSON object: {_why(error)}")
                        continue
                    if isinstance(row, dict):
                        yield row
                    else:
                        faults.add(file.name, line, f"no JSON object, but a {_JSON_NAMES[type(row)]}")
            progress(file.name, raw.tell() - told)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        faults.add(file.name, line + 1 if line else None, f"cannot be read further: {visible(reason, 200)}")


def _lines(raw: BufferedReader, file: DumpFile) -> Iterator[bytes | None]:
    """Each line, or `None` for one that is too long."""
    zipped = file.path.name.lower().endswith(".gz")
    lines = BufferedReader(gzip.GzipFile(fileobj=raw)) if zipped else raw
    while text := lines.readline(LONGEST_LINE):
        if len(text) < LONGEST_LINE or text.endswith(b"\n"):
            yield text
            continue
        while (rest := lines.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
            pass
        yield None


_JSON_NAMES = {list: "list", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):  # its text is Python's own, and quotes nothing of the line
        return f"{error.msg} at column {error.pos + 1}"
    return "nested too deeply" if isinstance(error, RecursionError) else visible(str(error), 120)
