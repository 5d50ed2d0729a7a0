"""The demo as a person sees it: one real run, what a leg counts as lost, and what hostile data can do to the tables."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from verl_ext.demo import leg, show
from verl_ext.demo.show import DemoError

# --- one run for real ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo():
    """The demo as a user runs it, in a terminal of none: real verl on real Ray, both legs."""
    settings = ("VERL_EXT", "VERL_USE_EXTERNAL", "COLUMNS", "FORCE_COLOR", "TTY_", "RAY_ADDRESS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
    return subprocess.run(
        [sys.executable, "-m", "verl_ext", "demo"], env=environment, capture_output=True, text=True, timeout=1200
    )


@pytest.mark.ray
def test_the_demo_ends_with_exit_code_0_and_no_value_lost_where_stock_verl_loses_most(demo):
    assert demo.returncode == 0, demo.stderr
    verdict = re.search(r"with verl-ext: (\d+) of (\d+) values lost +on stock verl: (\d+) of (\d+)", demo.stdout)
    ours, values, stock, same_values = map(int, verdict.groups())
    assert ours == 0
    assert values == same_values > 0
    assert stock > values / 2


@pytest.mark.ray
def test_the_demo_shows_both_legs_with_the_errors_and_losses_of_stock_verl(demo):
    head, *lines = [line for line in demo.stdout.splitlines() if line[:1] in ("┃", "│")]
    assert [cell.strip() for cell in head.strip("┃").split("┃")] == ["path", "row order", "stock verl", "verl-ext"]
    table = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.count("│") == 5]
    stock, ours = (" ".join(cells[column] for cells in table) for column in (2, 3))
    assert "KeyError" in stock
    assert "AssertionError" in stock
    assert re.search(r"[1-9]\d* of \d+ values lost \(score \d+, pred \d+\)", stock)
    assert re.fullmatch(r"(0 of \d+ values lost *)+", ours)


@pytest.mark.ray
def test_the_demo_shows_the_aligned_table_and_each_keys_dtype(demo):
    assert re.search(r"┃ row +┃ data source +┃ acc +┃ score +┃ pred +┃", demo.stdout)
    assert re.search(r"│ +1 │ math_dapo +│ 1\.0 +│ 1\.0 +│ 22 +│", demo.stdout)
    assert re.search(r"│ acc +│ float64 +│ 22 of 22 +│ 22 of 22 +│ 22 of 22 +│", demo.stdout)
    assert re.search(r"│ pred +│ object +│ 0 of 22 +│ 22 of 22 +│ 0 of 22 +│", demo.stdout)


@pytest.mark.ray
def test_the_demo_shows_the_metrics_that_training_would_log_of_its_columns(demo):
    assert re.search(r"┃ key +┃ data source +┃ count ┃ coverage ┃ +mean ┃ +min ┃ +max ┃", demo.stdout)
    assert re.search(r"│ score +│ all +│ +22 │ +0\.333 │ +-?[\d.]+ │ +-1 │ +1 │", demo.stdout)
    assert re.search(r"│ score +│ openai/gsm8k +│ +0 │ +0 │ +- │ +- │ +- │", demo.stdout)


@pytest.mark.ray
def test_the_demo_fits_in_80_columns_and_has_no_terminal_codes_where_there_is_no_terminal(demo):
    assert max(map(cell_len, demo.stdout.splitlines())) <= 80
    assert demo.stdout.replace("\n", "").isprintable()
    assert "\x1b" not in demo.stderr


# --- what a leg counts as lost ---------------------------------------------------------------------------------------

ROWS = [{"data_source": source} for source in ("gsm8k", "dapo", "gsm8k", "dapo")]
EMITTED = [{"acc": 1.0}, {"acc": True, "pred": "7"}, {"acc": 0.0}, {"acc": False, "pred": None}]
WHOLE = {"acc": np.array([1.0, 1.0, 0.0, 0.0]), "pred": np.array([None, "7", None, None], dtype=object)}


def counted(columns, emitted=EMITTED):
    report = leg.outcome(
        "a path", "an order", ROWS[: len(emitted)], emitted, lambda rows: SimpleNamespace(non_tensor_batch=columns)
    )
    assert json.loads(json.dumps(report)) == report
    return report


def test_a_batch_that_holds_every_value_has_lost_none():
    report = counted(WHOLE)
    assert (report["path"], report["order"], report["values"]) == ("a path", "an order", 6)
    assert (report["lost"], report["lost_by_key"]) == (0, {})
    assert "error" not in report


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        ({"acc": None}, {"acc": 4}),
        ({"acc": np.array([1.0, 1.0, 0.5, 0.0])}, {"acc": 1}),
        ({"acc": np.array(["1.0", "True", "0.0", "False"])}, {"acc": 4}),
        ({"acc": np.array([1.0, None, 0.0, 0.0], dtype=object)}, {"acc": 1}),
        ({"acc": np.array([np.nan, 1.0, 0.0, 0.0])}, {"acc": 1}),
        ({"acc": np.array([0.0, 1.0, 1.0, 0.0])}, {"acc": 2}),
        ({"pred": np.array([None, 7, None, None], dtype=object)}, {"pred": 1}),
        ({"pred": np.array(["7", None, None, None], dtype=object)}, {"pred": 1}),
        ({"pred": np.array(["None", "7", "None", "None"])}, {"pred": 1}),
        ({"acc": None, "pred": None}, {"acc": 4, "pred": 2}),
    ],
    ids=[
        "a dropped column",
        "a changed value",
        "numbers turned text",
        "None in place of a value",
        "NaN in place of a value",
        "values at each other's rows",
        "text turned a number",
        "a value at another row",
        "None turned text",
        "every column dropped",
    ],
)
def test_each_value_that_is_gone_or_changed_is_counted_under_its_key(change, lost):
    columns = {key: column for key, column in {**WHOLE, **change}.items() if column is not None}
    report = counted(columns)
    assert report["lost_by_key"] == lost
    assert report["lost"] == sum(lost.values())


def test_a_list_that_comes_back_as_an_array_and_nan_as_nan_are_not_lost():
    emitted = [{"steps": [0.5, 1.0], "loss": float("nan")}, {"steps": (1, 2), "loss": float("inf")}]
    columns = {"steps": np.array([[0.5, 1.0], [1, 2]]), "loss": np.array([np.nan, np.inf])}
    assert counted(columns, emitted)["lost"] == 0
    columns["steps"] = np.array([[0.5, 1.0], [1, 3]])
    assert counted(columns, emitted)["lost_by_key"] == {"steps": 1}


def test_columns_are_described_by_dtype_and_by_how_many_rows_of_each_data_source_emitted_the_key():
    report = counted({**WHOLE, "uid": np.array(list("abcd"))})
    assert report["columns"] == [
        {"key": "acc", "dtype": "float64", "coverage": {"gsm8k": [2, 2], "dapo": [2, 2]}},
        {"key": "pred", "dtype": "object", "coverage": {"gsm8k": [0, 2], "dapo": [2, 2]}},
    ]
    assert report["metrics"][:2] == [
        {"key": "acc", "data source": "all", "mean": "0.5", "std": "0.5", "min": "0", "max": "1"}
        | {"count": "4", "coverage": "1"},
        {"key": "acc", "data source": "gsm8k", "mean": "0.5", "std": "0.5", "min": "0", "max": "1"}
        | {"count": "2", "coverage": "1"},
    ]
    assert report["table"][:2] == [
        {"data source": "gsm8k", "acc": "1.0", "pred": "-"},
        {"data source": "dapo", "acc": "1.0", "pred": "7"},
    ]


def test_an_exception_is_the_outcome_and_all_values_are_lost():
    def job(rows):
        raise KeyError("\x1b[2J score\n" + "x" * 1000)

    report = leg.outcome("a path", "an order", ROWS, EMITTED, job)
    assert report["lost"] == report["values"] == 6
    assert report["error"].startswith("KeyError: ")
    assert report["error"].isprintable()
    assert len(report["error"]) < 100


# --- the tables and the verdict --------------------------------------------------------------------------------------


def outcome(lost=0, *, text="gsm8k", names=("acc",), **more):
    """An outcome as `leg` reports it, with `text` or `names` wherever data stands."""
    coverage = dict.fromkeys((*names, text), (1, 2))
    return {
        "path": text,
        "order": f"{text} first",
        "values": 10,
        "lost": lost,
        "lost_by_key": {name: lost for name in names[:1] if lost},
        "columns": [{"key": name, "dtype": "object", "coverage": coverage} for name in names],
        "table": [{"data source": text, **dict.fromkeys(names, text)}] * 2,
        "metrics": [
            {"key": name, "data source": source, "count": "1", "coverage": "0.5", "mean": "1", "min": "1", "max": "1"}
            for name in names
            for source in ("all", text)
        ],
        **more,
    }


def reported(stock, ours, *, terminal=False):
    """`(number that was returned, what was printed)`."""
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=terminal, color_system="standard" if terminal else None)
    return show._report(console, stock, ours), file.getvalue()


def test_the_verdict_is_0_if_no_value_is_lost_with_verl_ext_whatever_stock_verl_loses():
    lost, printed = reported([outcome(7), outcome(error="KeyError: 'score'", lost=10)], [outcome(), outcome()])
    assert lost == 0
    assert "with verl-ext: 0 of 20 values lost   on stock verl: 17 of 20" in printed


@pytest.mark.parametrize("broken", [outcome(2), outcome(error="KeyError: 'score'", lost=2)])
def test_the_verdict_is_the_number_of_values_that_are_lost_with_verl_ext(broken):
    lost, printed = reported([outcome(), outcome()], [outcome(), broken])
    assert lost == 2
    assert "with verl-ext: 2 of 20 values lost   on stock verl: 0 of 20" in printed


def test_an_error_and_the_losses_of_each_key_stand_in_the_row_of_their_path():
    _, printed = reported([outcome(3), outcome(error="KeyError: \"'score'\"", lost=10)], [outcome(), outcome()])
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert "│ gsm8k │ gsm8k first │ 3 of 10 values lost (acc 3) │ 0 of 10 values lost │" in lines
    assert "│ gsm8k │ gsm8k first │ KeyError: \"'score'\" │ 0 of 10 values lost │" in lines


def test_with_every_path_in_error_the_verdict_still_comes_out():
    lost, printed = reported([outcome()], [outcome(error="ValueError: x", lost=10)])
    assert lost == 10
    assert "The aligned table" not in printed


HOSTILE = [
    "[red]x[/red]",
    "[/]",
    "[link=https://example.org]x[/link]",
    "[bold]x\\",
    ":warning:",
    "\x1b[2J\x1b[31mred",
    "\x1b]0;title\x07",
    "\x9b2J",
    "a\nb\r\tc",
    "\u202ereversed",
    "\ud800",
    "│ 0 of 10 values lost │",
    "'quoted\"",
    "\u6f22\u5b57" * 30,
    "x" * 100_000,
    "two words " * 10_000,
    "",
]
FROM_RICH = re.compile(r"\x1b\[[\d;]*m")


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:20]))
@pytest.mark.parametrize("terminal", [False, True], ids=["no terminal", "terminal"])
def test_hostile_text_neither_breaks_a_table_nor_reaches_a_terminal_unescaped(text, terminal):
    bad = {"text": text, "names": ("acc", text + "key")}
    one, other = outcome(**bad), outcome(3, **{**bad, "names": (text + "key",)})
    failed = outcome(error=f"KeyError: {text}", lost=10, **bad)
    _, printed = reported([other, failed], [one, other], terminal=terminal)

    plain = FROM_RICH.sub("", printed) if terminal else printed
    assert plain.replace("\n", "").isprintable()
    assert max(map(cell_len, plain.splitlines())) <= 80
    assert len(plain.splitlines()) < 200
    for line in plain.splitlines():
        assert line[:1] != "│" or line.rstrip()[-1] == "│"
    assert "with verl-ext: 3 of 20 values lost   on stock verl: 13 of 20" in plain


@pytest.mark.parametrize("text", ["[red]x[/red]", "[/]", ":warning:", "[bold]"])
def test_what_looks_like_markup_is_shown_as_it_is(text):
    _, printed = reported([outcome()], [outcome(text=text)])
    assert f"│ {text} " in printed


def test_many_keys_and_many_data_sources_leave_the_tables_readable_and_are_counted():
    names = [f"key_{number}" for number in range(40)]
    _, printed = reported([outcome()], [outcome(names=names)])
    lines = printed.splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert any("key_0" in line and "key_4" in line for line in lines)
    assert "and 35 more keys" in printed  # "data source" is one of the six
    assert "and 35 more data sources" in printed
    assert "and 56 more" in printed  # of the metrics
    assert all(any(line.startswith(f"│ {name} ") for line in lines) for name in names)


# --- the legs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def fake_leg(tmp_path, monkeypatch):
    """A function from the source of a script to what takes the leg's place: `show` starts it as its interpreter."""

    def install(source):
        script = tmp_path / "leg"
        script.write_text(f"#!{sys.executable}\nimport json, os, signal, sys\n{source}")
        script.chmod(0o700)
        monkeypatch.setattr(sys, "executable", str(script))

    return install


def test_each_leg_gets_an_empty_directory_the_rows_file_and_its_own_setting_of_the_plugin(
    fake_leg, monkeypatch, tmp_path
):
    monkeypatch.setenv("VERL_EXT_DISABLE", "protocol")
    fake_leg(
        """
_, module, directory, *rows = sys.argv[1:]
print(json.dumps({"event": [module, os.listdir(directory), rows, os.environ["VERL_EXT_DISABLE"]]}))
"""
    )
    seen = {name: list(show._events(tmp_path / "rows.parquet", env)) for name, env in show.LEGS.items()}
    started = ["verl_ext.demo.leg", [], [str(tmp_path / "rows.parquet")]]
    assert seen == {"stock verl": [{"event": [*started, "1"]}], "verl-ext": [{"event": [*started, "0"]}]}


def test_a_real_leg_that_dies_is_an_error_with_its_last_lines():
    with pytest.raises(DemoError, match=r"(?s)exit code 1:\n.*RowsFileError: no/such\.parquet cannot be read"):
        list(show._events(Path("no/such.parquet"), {}))


def test_what_a_dying_leg_wrote_is_cut_to_its_last_lines_and_cannot_drive_the_terminal(fake_leg):
    fake_leg(
        r"""
print(json.dumps({"step": "first"}), flush=True)
print("on standard output", flush=True)
for number in range(100):
    print("line", number, file=sys.stderr)
sys.stderr.buffer.write(b"\x1b[36mcoloured\x1b[39m \x1b]0;title\x07 \xff no utf8\n" + b"x" * 1_000_000 + b"\n")
sys.stderr.flush()
sys.exit(3)
"""
    )
    seen = []
    with pytest.raises(DemoError) as died:
        for event in show._events(None, {}):
            seen.append(event)
    assert seen == [{"step": "first"}]
    message = str(died.value)
    assert "ended with exit code 3:\n" in message
    assert "line 99" in message
    assert "line 80" not in message
    assert "\ncoloured " in message
    assert message.replace("\n", "").isprintable()
    assert len(message) < 3000


def test_a_leg_that_is_killed_is_an_error_with_the_signal(fake_leg):
    fake_leg("os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(DemoError, match="exit code -9"):
        list(show._events(None, {}))


@pytest.mark.parametrize("ends", ["by itself", "on Ctrl-C", "when it is killed"])
def test_however_a_leg_ends_nothing_of_it_stays_in_the_temporary_folder(ends, fake_leg, monkeypatch, tmp_path):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(show, "_PATIENCE", 0.2 if ends == "when it is killed" else 30.0)
    heeds = "signal.SIG_IGN" if ends == "when it is killed" else "signal.default_int_handler"
    fake_leg(
        f"""
signal.signal(signal.SIGINT, {heeds})
open(sys.argv[3] + "/config.json", "w").close()
print(json.dumps({{"step": "first"}}), flush=True)
if {ends != "by itself"}:
    signal.pause()
    signal.pause()
"""
    )
    events = show._events(None, {})
    assert next(events) == {"step": "first"}
    assert [file.name for file in temporary.glob("*/*")] == ["config.json"]
    if ends == "by itself":
        assert list(events) == []
    else:
        events.close()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("lost", [0, 4])
def test_the_demo_returns_how_many_values_verl_ext_lost_and_shows_progress_safely(lost, monkeypatch):
    hostile = "\x1b]0;title\x07[/red] first"

    def events(rows_file, environment):
        yield {"step": hostile}
        time.sleep(0.3)  # the progress is drawn ten times a second
        yield {"outcome": outcome(lost if environment == show.LEGS["verl-ext"] else 9)}

    monkeypatch.setattr(show, "_events", events)
    file = io.StringIO()
    assert show.run_demo(Console(file=file, width=80, force_terminal=True)) == lost
    printed = file.getvalue()
    assert "66 row(s) of 3 data source(s) (openai/gsm8k, math_dapo, lighteval/MATH)" in printed
    assert "stock verl: \\x1b]0;title\\x07[/red] first" in printed
    assert "\x1b]" not in printed
    assert "\x07" not in printed


def heed_ctrl_c():
    """As in a terminal; what is started in the background, as a whole test run may be, ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def processes_with(mark):
    """Those that have this variable in their environment, the zombies left out."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if f"DEMO_MARK={mark}".encode() in (place / "environ").read_bytes():
                found.append((place / "cmdline").read_bytes()[:80])
        except OSError:  # it has just ended
            continue
    return found


@pytest.mark.ray
@pytest.mark.parametrize("step", ["starting Ray", "starting the workers, scoring each row by itself"])
def test_ctrl_c_ends_the_demo_and_every_process_of_its_ray(step):
    mark = uuid.uuid4().hex
    with subprocess.Popen(
        [sys.executable, "-m", "verl_ext", "demo"],
        env={**os.environ, "DEMO_MARK": mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed_ctrl_c,
    ) as demo:
        assert any(line == f"stock verl: {step}\n" for line in demo.stdout)
        time.sleep(1.5)
        assert len(processes_with(mark)) > 2
        os.killpg(demo.pid, signal.SIGINT)  # as a terminal does it
        _, errors = demo.communicate(timeout=60)
    assert (demo.returncode, errors.strip()) == (130, "")
    end = time.monotonic() + 20
    while processes_with(mark) and time.monotonic() < end:
        time.sleep(0.1)
    assert processes_with(mark) == []
