"""How a run is started, watched and ended. A shell script stands in for Python with verl's command line."""

import signal
import sys
import threading

import pytest

from verl_ext.cpu import run as runs
from verl_ext.cpu.run import Run


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """`planned(script)`: a run whose driver is the script, which runs in the run's directory."""

    def plan(script):
        driver = tmp_path / "driver"
        driver.write_text(f"#!/bin/sh\n{script}\n")
        driver.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(driver))
        return Run("legacy", "GRPO", "verl-ext", tmp_path / "run", tmp_path, tmp_path, "f.py:f", steps=3)

    return plan


def _ended(run):
    going = run.to_its_end()
    steps = []
    while True:
        try:
            steps.append(next(going))
        except StopIteration as end:
            return end.value, steps


def test_a_run_says_how_many_steps_are_done_and_ends_with_its_exit_code(planned):
    line = '{"step": 1, "data": {"critic/score/mean": 0.5}}'
    code, steps = _ended(planned(f"""echo '{line}' >> "$VERL_FILE_LOGGER_PATH"; exit 3"""))
    assert code == 3
    assert steps[-1] == 1


def test_ray_that_was_too_slow_to_start_is_started_again(planned):
    slow = f"echo 'Exception: {runs.NO_RAY}'; exit 1"
    run = planned(f"echo started >> starts; [ $(wc -l < starts) = 2 ] || {{ {slow}; }}")
    assert _ended(run)[0] == 0
    assert (run.directory / "starts").read_text() == "started\n" * 2


def test_a_run_that_fails_otherwise_is_not(planned):
    run = planned("echo started >> starts; echo 'KeyError: 1'; exit 1")
    assert _ended(run)[0] == 1
    assert (run.directory / "starts").read_text() == "started\n"
    assert run.error() == "KeyError: 1"


def test_a_run_without_a_sign_of_life_is_given_up(planned, monkeypatch):
    monkeypatch.setattr(runs, "STALLED", 0.0)
    run = planned("exec sleep 600")
    assert _ended(run)[0] == -1
    assert run.error().startswith("TimeoutError")


def test_a_run_that_is_broken_off_ends_its_process(planned):
    run = planned("exec sleep 600")
    with run.started() as process:
        assert process.poll() is None
    assert process.returncode == -signal.SIGTERM


def test_a_process_that_does_not_end_when_asked_is_ended_by_force(planned, monkeypatch):
    monkeypatch.setattr(runs, "_ENDED", 0.1)
    run = planned("trap '' TERM; echo ready; exec sleep 600")
    moment = threading.Event()
    with run.started() as process:
        while "ready" not in run.log.read_text():
            moment.wait(0.01)
    assert process.returncode == -signal.SIGKILL


def test_the_driver_joins_no_cluster_that_happens_to_be_named(planned, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    run = planned('echo "address ${RAY_ADDRESS-none}, disabled $VERL_EXT_DISABLE"')
    assert _ended(run)[0] == 0
    assert run.log.read_text() == "address none, disabled 0\n"
