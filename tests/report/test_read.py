"""Which files are read, in which order, and what becomes of what is no row."""

import gzip
import json
import os
import socket
from pathlib import Path

import pytest

from report.dumps import write_step
from verl_ext.report.read import LONGEST_LINE, Faults, NoRowError, ReportError, find_dumps, read_rows


def rows_of(path, **kwargs):
    """All rows under a path, and its faults as text."""
    faults = Faults(**kwargs)
    rows = [row for dump in find_dumps(path, faults) for file in dump.files for row in read_rows(file, faults)]
    return rows, [str(fault) for fault in faults.first]


def test_steps_are_read_in_the_order_of_their_numbers(tmp_path):
    for step in (10, 9, 100, 1):
        write_step(tmp_path, step, [{"at": step}])
    assert [row["at"] for row in rows_of(tmp_path)[0]] == [1, 9, 10, 100]


def test_a_run_has_a_dump_for_each_directory_that_holds_one(tmp_path):
    write_step(tmp_path / "rollout", 1, [{}])
    write_step(tmp_path / "deep" / "validation", 1, [{}])
    (tmp_path / "rollout" / "notes.txt").write_text("no dump")
    (tmp_path / "empty").mkdir()
    assert [dump.name for dump in find_dumps(tmp_path, Faults())] == ["deep/validation", "rollout"]


def test_compressed_files_are_read_as_the_others(tmp_path):
    plain = write_step(tmp_path, 1, [{"at": 1}, {"at": 2}])
    (tmp_path / "2.jsonl.gz").write_bytes(gzip.compress(b'{"at": 3}\n{"at": 4}'))
    assert [row["at"] for row in rows_of(tmp_path)[0]] == [1, 2, 3, 4]
    assert [row["at"] for row in rows_of(plain)[0]] == [1, 2]


def test_a_file_that_stands_beside_its_compressed_copy_is_read_once_and_that_is_said(tmp_path):
    plain = write_step(tmp_path, 1, [{"at": 1}])
    (tmp_path / "1.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert rows_of(tmp_path) == ([{"at": 1}], ["1.jsonl.gz: left out: 1.jsonl is beside it"])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[1, 2]", "no JSON object, but a list"),
        (b"null", "no JSON object, but a null"),
        (b'{"at": 1', "no JSON object: Expecting ',' delimiter at column 10"),
        (b'{"at": "\xff\xfe"}', "no JSON object: 'utf-8' codec can't decode byte 0xff in position 8"),
        (b"[" * 100_000, "no JSON object: nested too deeply"),
        (b'{"at": ' + b"1" * 5_000 + b"}", "no JSON object: Exceeds the limit"),
        (b"\x1b[31mred", "no JSON object: Expecting value at column 1"),
    ],
    ids=["list", "null", "cut short", "no UTF-8", "deep", "long number", "escape"],
)
def test_a_line_that_is_no_row_is_named_by_file_and_line_and_the_rest_goes_on(line, reason, tmp_path):
    (tmp_path / "7.jsonl").write_bytes(b'{"at": 0}\n\n' + line + b'\n{"at": 2}\n')
    rows, faults = rows_of(tmp_path)
    assert [row["at"] for row in rows] == [0, 2]
    assert len(faults) == 1
    assert faults[0].startswith(f"7.jsonl:3: {reason}")
    assert faults[0].isprintable()


def test_a_line_that_is_too_long_is_not_held_in_memory(tmp_path):
    with (tmp_path / "1.jsonl").open("wb") as file:
        file.write(b'{"at": 0}\n"')
        for _ in range(5):
            file.write(b"x" * (LONGEST_LINE // 2))
        file.write(b'"\n{"at": 2}\n')
    rows, faults = rows_of(tmp_path)
    assert rows == [{"at": 0}, {"at": 2}]
    assert faults == ["1.jsonl:2: longer than 16,777,216 bytes"]


def test_a_compressed_file_that_is_cut_off_gives_the_rows_before_the_cut(tmp_path):
    rows = (b'{"at": %d, "text": "%s"}\n' % (row, os.urandom(2000).hex().encode()) for row in range(99))
    whole = gzip.compress(b"".join(rows))
    (tmp_path / "1.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    write_step(tmp_path, 2, [{"at": "next"}])
    rows, faults = rows_of(tmp_path)
    assert rows[0]["at"] == 0
    assert rows[-1]["at"] == "next"
    assert len(faults) == 1
    assert "cannot be read further" in faults[0]


def test_what_is_no_gzip_at_all_is_one_fault(tmp_path):
    (tmp_path / "1.jsonl.gz").write_bytes(b"plain text")
    assert rows_of(tmp_path) == ([], ["1.jsonl.gz: cannot be read further: Not a gzipped file (b'pl')"])


def test_strict_stops_at_the_first_line_that_is_no_row(tmp_path):
    write_step(tmp_path, 1, ["{}", "no", "no"])
    with pytest.raises(NoRowError, match=r"^1\.jsonl:2: no JSON object"):
        rows_of(tmp_path, strict=True)


def test_a_hundred_thousand_faults_are_counted_and_twenty_kept(tmp_path):
    (tmp_path / "1.jsonl").write_bytes(b"x\n" * 100_000)
    faults = Faults()
    (dump,) = find_dumps(tmp_path, faults)
    assert list(read_rows(dump.files[0], faults)) == []
    assert (faults.count, len(faults.first)) == (100_000, 20)


def test_numbers_that_python_writes_and_json_does_not_know_are_read(tmp_path):
    path = write_step(tmp_path, 1, [{"nan": float("nan"), "inf": float("-inf")}])
    assert "NaN" in path.read_text()
    ((row,), faults) = rows_of(path)
    assert str(row) == "{'nan': nan, 'inf': -inf}"
    assert faults == []


def no_file(kind, path):
    """Something of a kind at `path` that is no file: to read it would wait for good, or have no end."""
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(path))
        case "device":
            path.symlink_to("/dev/zero")
        case "directory":
            path.mkdir()
        case "link to a directory":
            (path.parent / "elsewhere").mkdir()
            path.symlink_to("elsewhere")
        case "broken link":
            path.symlink_to("gone")
        case "link to itself":
            path.symlink_to(path.name)


NO_FILES = {
    "pipe": "it is a named pipe, not a file",
    "socket": "it is a socket, not a file",
    "device": "it is a device, not a file",
    "directory": "it is a directory, not a file",
    "link to a directory": "it is a directory, not a file",
    "broken link": "No such file or directory",
    "link to itself": "Too many levels of symbolic links",
}


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_has_the_name_of_a_file_and_is_none_is_said_in_one_line_and_the_rest_is_read(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    directory = Path("run")
    write_step(directory, 1, [{"at": 1}])
    no_file(kind, directory / "3.jsonl")
    assert rows_of(directory) == ([{"at": 1}], [f"3.jsonl: cannot be read: {NO_FILES[kind]}"])


@pytest.mark.parametrize("kind", NO_FILES)
def test_where_nothing_else_is_there_the_error_says_why_it_was_not_read(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    no_file(kind, Path("run", "3.jsonl"))
    with pytest.raises(ReportError, match=f"holds no dump: .*; 3.jsonl: cannot be read: {NO_FILES[kind]}"):
        find_dumps(Path("run"), Faults())


def test_a_directory_that_is_named_as_a_file_and_holds_a_dump_is_read(tmp_path):
    write_step(tmp_path / "all.jsonl", 1, [{"at": 1}])
    assert rows_of(tmp_path) == ([{"at": 1}], [])


def test_a_compressed_copy_is_read_where_what_is_beside_it_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "1.jsonl")
    (tmp_path / "1.jsonl.gz").write_bytes(gzip.compress(b'{"at": 1}'))
    assert rows_of(tmp_path) == ([{"at": 1}], ["1.jsonl: cannot be read: it is a named pipe, not a file"])


@pytest.mark.parametrize("becomes", ["pipe", "device", "directory", "broken link"])
def test_a_file_that_is_another_thing_or_gone_when_it_is_read_is_a_fault(becomes, tmp_path):
    paths = [write_step(tmp_path, step, [{"at": step}]) for step in (1, 2)]
    faults = Faults()
    (dump,) = find_dumps(tmp_path, faults)
    paths[0].unlink()
    no_file(becomes, paths[0])
    assert [row for file in dump.files for row in read_rows(file, faults)] == [{"at": 2}]
    (fault,) = map(str, faults.first)
    said = {"directory": "Is a directory"}.get(becomes, NO_FILES[becomes])
    assert fault == f"1.jsonl: cannot be read further: {said}"


@pytest.mark.parametrize("name", ["none", "empty"])
def test_where_there_is_no_dump_the_error_says_so(name, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ReportError, match="cannot be read: No such file" if name == "none" else "holds no dump"):
        find_dumps(tmp_path / name, Faults())


def test_more_dumps_than_a_report_takes_are_an_error(tmp_path):
    for number in range(9):
        write_step(tmp_path / str(number), 1, [{}])
    with pytest.raises(ReportError, match="9 directories with dumps; at most 8"):
        find_dumps(tmp_path, Faults())


def test_progress_adds_up_to_the_size_of_the_files(tmp_path):
    text = "x" * 100_000
    write_step(tmp_path, 1, [{"text": text}] * 20)
    (tmp_path / "2.jsonl.gz").write_bytes(gzip.compress(json.dumps({"text": text}).encode()))
    read = []
    (dump,) = find_dumps(tmp_path, Faults())
    for file in dump.files:
        for _ in read_rows(file, Faults(), lambda name, more: read.append(more)):
            pass
    assert sum(read) == sum(file.size for file in dump.files)
    assert len(read) > 4
