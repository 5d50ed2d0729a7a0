"""The lines of a dump: the dump's own fields stay, both scores are there, and nothing that is odd ends a run."""

import json
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.plugin import _site
from verl_ext.plugin._dump import Apart, dumpable

ROWS = 2
OWN = {"input": ["a", "b"], "output": ["x", "y"], "gts": ["g", None], "score": [1.0, 0.35], "step": [3, 3]}


@pytest.fixture(autouse=True)
def fresh_warnings(monkeypatch, caplog):
    monkeypatch.setattr(_site, "_warned", set())
    caplog.set_level(logging.WARNING, logger="verl_ext")


@pytest.fixture
def warned(caplog):
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_missing_value_replaces_no_field_that_the_dump_writes_itself():
    infos = dumpable({"score": [None, 0.35], "input": [None, None], "acc": [None, 1]}, OWN)
    assert infos == {"score": [1.0, 0.35], "acc": [None, 1]}


# --- both scores -------------------------------------------------------------------------------------------------


def test_what_the_trainer_summed_up_is_beside_another_score_in_the_rows_where_it_is_another_number():
    assert dumpable({"score": [1.0, 1.0]}, OWN) == {"reward_sum": [None, 0.35], "score": [1.0, 1.0]}
    assert dumpable({"score": [-1.0, None]}, OWN) == {"reward_sum": [1.0, None], "score": [-1.0, 0.35]}


@pytest.mark.parametrize(
    "score", [0.1, np.float64(0.1), np.float32(0.1), "0.1", [0.1], np.array([[0.1]])], ids=lambda score: repr(score)
)
def test_one_number_in_64_and_in_32_bits_is_one_number(score):
    own = {**OWN, "score": [float(np.float32(0.1))] * 2}
    assert "reward_sum" not in dumpable({"score": [score, score]}, own)


@pytest.mark.parametrize(
    ("score", "total"),
    [
        (float("nan"), float("nan")),
        (1e300, float("inf")),
        (True, 1.0),
        (3, 3.0),
    ],
)
def test_what_32_bits_make_of_a_score_is_that_score(score, total):
    assert "reward_sum" not in dumpable({"score": [score] * 2}, {**OWN, "score": [total] * 2})


@pytest.mark.parametrize("score", ["high", [], [1.0, 0.35], {"a": 1}, 10**400, float("nan"), 0.1 + 1e-7])
def test_what_is_another_number_or_none_has_the_trainers_beside_it(score):
    own = {**OWN, "score": [0.1] * 2}
    assert dumpable({"score": [score] * 2}, own)["reward_sum"] == [0.1] * 2


# --- one rule for names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["input", "output", "gts", "step"])
def test_a_reward_key_that_names_a_field_of_the_dump_is_beside_it_in_the_rows_where_it_holds_another_value(field):
    infos = dumpable({field: ["mine", OWN[field][1]], "acc": [1, 0]}, OWN)
    assert infos == {f"reward_extra/{field}": ["mine", None], "acc": [1, 0]}


def test_values_are_compared_as_they_are_written():
    own = {**OWN, "gts": [np.array([1.0, np.nan]), {"a": np.int64(1)}]}
    assert dumpable({"gts": [[1.0, float("nan")], {"a": 1}], "step": [3.0, np.int8(3)]}, own) == {}


def test_a_reward_key_that_is_kept_apart_is_beside_the_field_of_its_name_which_stays():
    infos = {Apart("uid"): ["k1", 7], "uid": ["k1", "k2"], Apart("score"): [1.0, 1.0], "acc": [1, 0]}
    assert dumpable(infos, OWN) == {
        "reward_extra/uid": [None, 7],
        "reward_extra/score": [None, 1.0],
        "uid": ["k1", "k2"],
        "acc": [1, 0],
    }


def test_a_key_that_is_kept_apart_is_another_key_and_spelt_alike():
    apart = Apart.of(np.str_("uid"))
    assert len({apart: 1} | {"uid": 2}) == 2
    assert apart == Apart("uid") != Apart("id")
    assert "uid" != apart != "uid"
    assert f"val/{apart}/mean" == "val/uid/mean"


def test_names_that_a_reward_function_has_taken_stay_its_own():
    infos = {"score": [0.0, 0.35], "reward_sum": [7, 8], "input": ["mine", "b"], "reward_extra/input": [9, 9]}
    assert dumpable(infos, OWN) == {
        "reward_sum_": [1.0, None],
        "reward_extra/input_": ["mine", None],
        "score": [0.0, 0.35],
        "reward_sum": [7, 8],
        "reward_extra/input": [9, 9],
    }


def test_keys_that_are_no_text_are_spelt_as_json_spells_them_and_two_stay_two():
    infos = {1: [1, 1], "1": [2, 2], None: [3, 3], False: [4, 4], (1, 2): [5, 5]}
    expected = {"1": [1, 1], "1_": [2, 2], "null": [3, 3], "false": [4, 4], "(1, 2)": [5, 5]}
    assert dumpable(infos, OWN) == expected


def test_a_reward_key_in_a_column_of_its_own_name_is_dumped_under_that_name():
    assert dumpable({"reward_extra_info/reward_extra_info": [{"a": 1}, {}]}, OWN) == {
        "reward_extra_info": [{"a": 1}, {}]
    }


def test_a_column_of_another_length_is_left_out_as_verl_does():
    assert dumpable({"acc": [1], "score": [2.0]}, OWN) == {}


# --- whatever a reward function returns --------------------------------------------------------------------------


def test_what_is_odd_about_a_key_is_said_once(warned):
    for _ in range(2):
        dumpable({"key": [1j, {"\ud800": b"x"}], "k\ud800": [object(), 10**5000]}, OWN)
    assert [message.split(" holds ")[0] for message in warned()] == [
        "verl-ext: dump: the reward key 'key'",
        "verl-ext: dump: the reward key 'k\\ud800'",
    ]


class Key:
    """A key that is as bad as can be, but that it can be one."""

    def __init__(self, text):
        self.text = text

    def __str__(self):
        return self.text if self.text is not None else 1 / 0

    __repr__ = __str__


KEYS = st.sampled_from(["acc", "a\ud800", "", "\0", "uid", "reward_sum", 1, "1", -1.5, None, True, (1, "\ud800")])
LONG = st.integers(5000, 5001).map(lambda digits: 10**digits)  # made late, as Hypothesis would print it
ODD_KEYS = KEYS | LONG | st.sampled_from([None, "\ud800", "acc", "1"]).map(Key)
VALUES = st.sampled_from([None, 1, "a", "\udfff", {"\ud800": 1}]) | LONG | st.none().map(Key)


@given(infos=st.dictionaries(ODD_KEYS, st.lists(VALUES, min_size=ROWS, max_size=ROWS), max_size=6))
def test_every_key_is_in_every_line_under_a_name_of_its_own_and_none_ends_the_run(infos):
    columns = dumpable(infos, OWN)
    assert len(columns) == len(infos)
    for row in range(ROWS):
        line = json.dumps({name: column[row] for name, column in columns.items()}, ensure_ascii=False).encode()
        for found, values in zip(json.loads(line).values(), infos.values(), strict=True):
            assert (found is None) == (values[row] is None)
            assert values[row] not in (1, "a") or found == values[row]
