"""The command line: its exit codes, where its messages go, and what it says where its libraries are missing."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from verl_ext.cli import app
from verl_ext.demo import show
from verl_ext.demo.data import read_rows
from verl_ext.demo.show import DemoError

WITHOUT = """
import runpy, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == sys.argv[1]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
runpy.run_module("verl_ext", run_name="__main__")
"""


def run(*arguments, without=None):
    """`python -m verl_ext` with these arguments, in a Python that cannot import the library `without`."""
    start = ["-c", WITHOUT, without] if without else ["-m", "verl_ext"]
    command = [sys.executable, *start, *arguments]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("FORCE_COLOR", "TTY_", "COLUMNS"))
    }
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_help_names_the_commands():
    done = run("--help")
    assert done.returncode == 0
    assert "demo" in done.stdout
    assert "\x1b" not in done.stdout


def test_help_of_the_demo_says_what_the_exit_code_means_and_what_rows_are():
    done = run("demo", "--help")
    assert done.returncode == 0
    text = " ".join(done.stdout.replace("│", " ").split())
    assert "Exit code 1 if verl-ext lost a value" in text
    assert "parquet file in verl's row format" in text


def test_an_unknown_command_is_wrong_use():
    done = run("dmeo")
    assert done.returncode == 2
    assert "dmeo" in done.stderr


@pytest.mark.parametrize("column", ["data_source", "prompt", "reward_model", "response"])
def test_rows_without_a_column_end_with_exit_code_2_and_one_line_on_stderr_that_names_it(column, tmp_path):
    path = tmp_path / ("a-long-name-" * 10 + "missing-column.parquet")
    pq.write_table(pa.Table.from_pylist(read_rows()).drop_columns([column]), path)
    result = CliRunner().invoke(app, ["demo", "--rows", str(path)])
    assert result.exit_code == 2
    assert result.stdout == ""
    message = f"verl-ext: {path} lacks the column {column!r}. The rows must be in verl's row format"
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


def test_rows_that_are_not_there_end_so_in_a_real_shell_too(tmp_path):
    done = run("demo", "--rows", str(tmp_path / "none.parquet"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"verl-ext: {tmp_path / 'none.parquet'} cannot be read as parquet: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("lost", "code"), [(0, 0), (1, 1), (300, 1)])
def test_the_demos_exit_code_is_1_if_verl_ext_lost_a_value(lost, code, monkeypatch):
    monkeypatch.setattr(show, "run_demo", lambda console, rows: lost)
    assert CliRunner().invoke(app, ["demo"]).exit_code == code


def test_a_demo_that_breaks_off_ends_with_exit_code_2_and_its_message_as_it_is(monkeypatch):
    def breaks_off(console, rows):
        raise DemoError("a leg of the demo ended with exit code 1:\n[red] :warning: " + "x" * 200)

    monkeypatch.setattr(show, "run_demo", breaks_off)
    result = CliRunner().invoke(app, ["demo"])
    assert result.exit_code == 2
    assert result.stdout == ""
    message = "a leg of the demo ended with exit code 1:\n[red] :warning: " + "x" * 200
    assert result.stderr == f"verl-ext: {message}\n"


@pytest.mark.parametrize("library", ["typer", "rich"])
def test_without_its_libraries_the_command_line_says_what_to_install(library):
    done = run("demo", without=library)
    assert done.returncode not in (0, 2)
    assert "Traceback" not in done.stderr
    assert f"needs {library}; pip install 'verl-ext[cli]' brings it" in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [("verl-ext ", {"demo", "doctor", "report"}), ("verl-ext report --", {"--by", "--nan", "--html", "--parquet"})],
)
def test_the_shell_completes_commands_and_options(words, expected):
    typed = {"_VERL_EXT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = Path(sys.executable).with_name("verl-ext")
    done = subprocess.run([command], env={**os.environ, **typed}, capture_output=True, text=True, timeout=120)
    assert expected <= set(done.stdout.split())
