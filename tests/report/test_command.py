"""`verl-ext report`: its exit codes, what goes to which stream, and what it prints where there is no terminal."""

import functools
import gzip
import json
import os
import pty
import signal
import subprocess
import sys
import time

import pytest
from marks import slow_after

from report.dumps import write_run, write_step
from report.test_page import ATTACKS, hostile_run
from verl_ext.report import summarize
from verl_ext.report.text import visible

ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.startswith(("FORCE_COLOR", "TTY_", "COLUMNS"))
}


def run(*arguments, start=("-m", "verl_ext"), **environment):
    """`verl-ext report` in a process of its own."""
    command = [sys.executable, *start, "report", *map(str, arguments)]
    return subprocess.run(
        command,
        env={**ENVIRONMENT, **environment},
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
    )


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("stock") / "run", stock=True)


def test_a_run_without_faults_is_a_plain_table_a_line_per_key_and_exit_code_0(stock):
    done = run(stock)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.endswith(" ")] == []
    assert lines[0] == "rollout: 288 rows in 12 steps (1 to 12)"
    assert lines[1].split() == [
        "key",
        "types",
        "rows",
        "coverage",
        "mean",
        "(min",
        "to",
        "max),",
        "or",
        "texts",
        "in",
        "steps",
    ]
    pred = next(line for line in lines if line.startswith("pred "))
    assert pred.split()[:6] == ["pred", "text", "96", "of", "288", "33"]
    assert pred.endswith("3, 6, 9, 12")
    lost = "rows there whose data_source has it in other steps: 64 of math_dapo"
    assert f"! pred comes and goes: in steps 3, 6, 9, 12; absent from steps 1-2, 4-5, 7-8, 10-11; {lost}" in lines
    assert "validation: 96 rows in 4 steps (0 to 12)" in lines
    assert "\x1b" not in done.stdout


def test_the_table_is_split_by_data_source_where_there_is_one_or_by_any_column(stock):
    by_source, by_pred = run(stock / "rollout").stdout, run(stock / "rollout", "--by", "pred").stdout
    assert [by_source.count(f"\n  {name} ") for name in ("math_dapo", "openai/gsm8k", "judge/essays")] == [4] * 3
    assert by_pred.count("\n  42 ") == by_pred.count("\n  [INVALID] ") == 4


def test_a_column_that_no_row_has_is_wrong_use_said_after_the_report(stock):
    done = run(stock, "--by", "task\x1b")
    assert done.returncode == 2
    assert done.stdout.startswith("rollout: ")
    assert done.stderr == "verl-ext: no row has the column 'task\\x1b': the report is not split\n"


def test_json_is_strict_and_holds_what_the_table_says(tmp_path):
    write_step(tmp_path / "rollout", 2, [{"acc": float("nan"), "score": 1}, {"score": 0, "pred": "a"}])
    done = run(tmp_path, "--json")
    found = json.loads(done.stdout, parse_constant=pytest.fail)
    (dump,) = found["dumps"]
    assert (done.returncode, dump["name"], dump["rows"], dump["steps"]) == (
        0,
        "rollout",
        2,
        [{"first": 2, "last": 2, "rows": 2}],
    )
    assert dump["keys"]["score"] | {"steps": [], "places": {}} == {
        "present": 2,
        "coverage": 1.0,
        "types": ["int"],
        "numbers": 2,
        "mean": 0.5,
        "std": 0.5,
        "min": 0.0,
        "max": 1.0,
        "values": [],
        "values_counted_too_low_by_at_most": 0,
        "steps": [],
        "places": {},
    }
    assert dump["keys"]["acc"]["mean"] == "NaN"
    assert dump["keys"]["pred"]["values"] == [{"value": "a", "count": 1}]
    assert dump["findings"][0] == {
        "kind": "not a number",
        "key": "acc",
        "text": "in all steps",
        "steps": [{"first": 2, "last": 2}],
    }


def test_nan_counts_as_missing_where_that_is_wanted(tmp_path):
    write_step(tmp_path, 2, [{"acc": float("nan")}, {"acc": 1}])
    acc = json.loads(run(tmp_path, "--json", "--nan", "missing").stdout)["dumps"][0]["keys"]["acc"]
    assert (acc["present"], acc["mean"]) == (1, 1.0)


def test_lines_that_are_no_rows_are_named_on_stderr_and_the_exit_code_is_1(tmp_path):
    write_step(tmp_path, 1, [{"acc": 1}, "no", "[]", {"acc": 0}])
    done = run(tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "verl-ext: 1.jsonl:2: no JSON object: Expecting value at column 1",
        "verl-ext: 1.jsonl:3: no JSON object, but a list",
    ]
    assert "2 of 2" in done.stdout


def test_a_pipe_in_the_directory_is_one_line_and_exit_code_1_and_2_where_nothing_is_left(tmp_path):
    os.mkfifo(tmp_path / "2.jsonl")
    line = "2.jsonl: cannot be read: it is a named pipe, not a file\n"
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f" is in it; {line}")
    write_step(tmp_path, 1, [{"acc": 1}])
    done = run(tmp_path)
    assert (done.returncode, done.stderr) == (1, f"verl-ext: {line}")
    assert done.stdout.startswith(f"{tmp_path.name}: 1 row ")


def test_strict_stops_there(tmp_path):
    write_step(tmp_path, 1, [{"acc": 1}, "no", {"acc": 0}])
    done = run(tmp_path, "--strict", "--html", tmp_path / "page.html")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "verl-ext: 1.jsonl:2: no JSON object: Expecting value at column 1\n"
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    "arguments", slow_after(2, [["none"], ["."], [".", "--html", "none/page.html"], [".", "--nan", "maybe"], []])
)
def test_what_cannot_be_read_or_written_and_wrong_use_are_exit_code_2(arguments, tmp_path):
    arguments = [
        str(tmp_path / argument) if "-" not in argument and argument != "maybe" else argument for argument in arguments
    ]
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_where_a_page_cannot_be_written_the_reason_is_said_before_anything_is_read(stock, tmp_path):
    lost = run(stock, "--html", tmp_path / "none" / "page.html")
    assert lost.stderr == (
        f"verl-ext: {tmp_path}/none/page.html cannot be written: there is no directory {tmp_path}/none\n"
    )
    assert run(stock, "--html", tmp_path).stderr.startswith(
        f"verl-ext: {tmp_path} cannot be written: it is a directory"
    )


def test_a_dump_is_not_overwritten(tmp_path):
    path = write_step(tmp_path, 1, [{"acc": 1}])
    done = run(tmp_path, "--html", path)
    assert done.returncode == 2
    assert "1.jsonl is a dump: it is not overwritten" in done.stderr
    assert path.read_text() == '{"acc": 1}\n'


def test_the_page_and_the_rows_are_written_beside_the_table(stock, tmp_path):
    done = run(stock, "--html", tmp_path / "page.html", "--parquet", tmp_path / "rows.parquet")
    wrote = [f"verl-ext: wrote {tmp_path / name}" for name in ("page.html", "rows.parquet")]
    assert (done.returncode, done.stderr.splitlines()) == (0, wrote)
    assert done.stdout.startswith("rollout: ")
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (tmp_path / "rows.parquet").read_bytes().startswith(b"PAR1")


def test_without_pyarrow_parquet_says_what_to_install_before_anything_is_read(stock, tmp_path):
    code = "import sys; sys.modules['pyarrow'] = None; from verl_ext.__main__ import main; main()"
    done = run(stock, "--parquet", tmp_path / "rows.parquet", start=("-c", code))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "verl-ext: --parquet needs pyarrow: pip install pyarrow\n"
    assert run(stock, start=("-c", code)).returncode == 0


def test_the_report_needs_neither_torch_nor_verl_nor_ray(stock):
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'verl', 'ray', 'tensordict', 'pyarrow'])); "
        "from verl_ext.__main__ import main; main()"
    )
    assert run(stock, start=("-c", code)).returncode == 0


@pytest.mark.parametrize("encoding", slow_after(1, ["utf-8", "ascii", "latin-1"]))
def test_hostile_names_and_values_drive_no_terminal_and_break_no_line(encoding, tmp_path):
    done = run(hostile_run(tmp_path, *ATTACKS), PYTHONIOENCODING=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(line.isprintable() for line in done.stdout.splitlines())
    rows = [line for line in done.stdout.splitlines()[2:] if line and not line.startswith(("  ", "!", "and "))]
    assert len(rows) == 2 + 2 * len(ATTACKS)  # score, text, and two keys of each
    assert any(line.startswith("[bold red]rich[/]") for line in rows)


def test_on_a_terminal_there_are_a_progress_bar_on_stderr_and_colours_on_stdout(tmp_path):
    for step in range(30):
        write_step(tmp_path, step, [{"acc": 1, "pred": "\x1b[5m", "output": "x" * 50_000}] * 20 + [{"acc": 0}])
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "verl_ext", "report", str(tmp_path)]
    environment = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "100"}
    errors = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=theirs, timeout=120)
    assert b"\x1b" not in errors.stdout
    os.set_blocking(ours, False)
    said = os.read(ours, 1_000_000).decode()
    os.close(ours), os.close(theirs)
    assert ".jsonl" in said
    assert "B/s" in said
    assert "0:00:0" in said


def test_ten_thousand_keys_are_a_table_of_bounded_length(tmp_path):
    write_step(tmp_path, 1, [{f"key {index}": None for index in range(10_000)}])
    lines = run(tmp_path).stdout.splitlines()
    assert len(lines) < 300
    assert "and 800 more keys: --json has them" in lines
    assert "and 9,000 keys beyond the first 1,000, with 0 values" in lines


def test_without_a_terminal_columns_says_how_wide_the_table_is(stock):
    assert max(map(len, run(stock, COLUMNS="100").stdout.splitlines())) <= 100
    assert max(map(len, run(stock).stdout.splitlines())) > 100


def test_a_reader_that_closes_early_is_exit_code_1_without_a_word(tmp_path):
    write_step(tmp_path, 1, [{f"{index} " * 40: index for index in range(900)}])  # more than a pipe holds
    command = f"{sys.executable} -m verl_ext report {tmp_path} --json | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["/bin/bash", "-c", command], env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("{\n1\n", "")


def test_rows_that_say_no_step_or_no_data_source_are_counted_apart(tmp_path):
    rows = [{"acc": 1, "step": 3, "data_source": "math"}, {"acc": 1, "step": 7}, {"acc": 1}, {"acc": 0}]
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = run(tmp_path / "all.jsonl").stdout.splitlines()
    assert lines[0].rstrip() == "all.jsonl: 4 rows in 2 steps (3 to 7), 2 rows of which say no step"
    assert "3 rows without data_source" in lines


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_output_that_cannot_be_written_and_a_pipe_as_a_dump_are_one_line_and_exit_code_2(stock, arguments):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "verl_ext", "report", stock, *arguments]
        done = subprocess.run(command, env=ENVIRONMENT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (
        2,
        "verl-ext: standard output cannot be written: No space left on device\n",
    )
    piped = run("/dev/stdin")
    assert piped.returncode == 2
    assert piped.stderr == "verl-ext: /dev/stdin is no file that can be read twice: write it to one first\n"


def test_help_says_what_the_exit_codes_mean():
    text = " ".join(run("--help").stdout.replace("│", " ").split())
    assert "Exit code 1 if a line is no JSON object" in text
    assert "trainer.rollout_data_dir" in text


def test_long_names_that_begin_alike_stay_apart_when_they_are_shown(tmp_path):
    write_step(tmp_path, 1, [{"k" * 500 + "a": 1, "k" * 500 + "b": 1}])
    names = {visible(key, 40) for key in summarize(tmp_path).dumps[0].keys}
    assert len(names) == 2


def test_ctrl_c_in_the_midst_of_a_long_read_leaves_nothing_half_written(tmp_path):
    line = json.dumps({"step": 1, "output": "x" * 2_000, "acc": 1.0}).encode() + b"\n"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "1.jsonl.gz").write_bytes(gzip.compress(line * 20_000, 1) * 25)  # 1 GB
    target = tmp_path / "rows.parquet"
    command = [sys.executable, "-m", "verl_ext", "report", tmp_path / "run", "--parquet", target]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a job in the background ignores it
    with subprocess.Popen(command, env=ENVIRONMENT, preexec_fn=heed, **pipes) as report:
        time.sleep(2.0)
        assert report.poll() is None
        report.send_signal(signal.SIGINT)
        said, errors = report.communicate(timeout=60)
    assert report.returncode in (1, 130)
    assert said == ""
    assert "Traceback" not in errors
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
