"""The reward function that keeps a line of each call of another."""

import asyncio
import json

import pytest

from verl_ext.cpu import recorded

CALL = {"data_source": "d", "solution_str": "s", "ground_truth": "g", "extra_info": {}}

USERS = """
def scores(data_source, solution_str, ground_truth, extra_info):
    return {"score": 1.0, "format": None, "pred": solution_str}

def only_a_number(**call):
    return 0.5

def raises(**call):
    raise LookupError("no such answer")

async def later(**call):
    return {"score": 1}
"""


@pytest.fixture
def users(tmp_path):
    (tmp_path / "users.py").write_text(USERS)
    return tmp_path / "users.py"


def _kept(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_the_result_is_the_other_functions_and_its_keys_are_kept(users, tmp_path):
    log = tmp_path / "log"
    result = recorded.compute_score(function=f"{users}:scores", log=str(log), **CALL)
    assert result == {"score": 1.0, "format": None, "pred": "s"}
    assert _kept(log) == [{"data_source": "d", "keys": {"score": "number", "format": "none", "pred": "other"}}]


def test_a_number_is_kept_under_the_name_that_verl_gives_it(users, tmp_path):
    log = tmp_path / "log"
    assert recorded.compute_score(function=f"{users}:only_a_number", log=str(log), **CALL) == 0.5
    assert _kept(log) == [{"data_source": "d", "keys": {"acc": "number"}}]


def test_a_coroutine_function_is_awaited(users, tmp_path):
    log = tmp_path / "log"
    assert asyncio.run(recorded.compute_score_async(function=f"{users}:later", log=str(log), **CALL)) == {"score": 1}
    assert _kept(log) == [{"data_source": "d", "keys": {"score": "number"}}]


def test_what_it_raises_is_raised_and_kept_with_its_line(users, tmp_path):
    log = tmp_path / "log"
    with pytest.raises(LookupError):
        recorded.compute_score(function=f"{users}:raises", log=str(log), **CALL)
    assert _kept(log) == [{"data_source": "d", "error": "LookupError: no such answer (users.py, line 9)"}]
