"""What a dump holds: JSON as it is, numbers as numbers at any depth, and the dump's own fields."""

import json
import logging
import math

import numpy as np
import pytest
import torch

from verl_ext.plugin import _site
from verl_ext.plugin._dump import dumpable


@pytest.fixture(autouse=True)
def fresh_warnings(monkeypatch, caplog):
    monkeypatch.setattr(_site, "_warned", set())
    caplog.set_level(logging.WARNING, logger="verl_ext")


def written(value):
    (dumped,) = dumpable({"key": [value]}, {})["key"]
    return json.loads(json.dumps(dumped))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (torch.tensor(2), 2),
        (torch.tensor([1.0, 2.0]), [1.0, 2.0]),
        (np.array([[1, 2]]), [[1, 2]]),
        ({"tokens": np.int64(7), "deep": [{"ok": np.bool_(False)}]}, {"tokens": 7, "deep": [{"ok": False}]}),
        ((1, "a", None), [1, "a", None]),
        ({1: "a", (2, 3): "b"}, {"1": "a", "(2, 3)": "b"}),
    ],
    ids=repr,
)
def test_numbers_are_numbers_at_any_depth(value, expected, caplog):
    assert written(value) == expected
    assert not caplog.records


@pytest.mark.parametrize("value", [None, True, 0, 1.5, "text", [1, "a"], {"a": None}], ids=repr)
def test_what_json_can_hold_is_handed_on_equal(value):
    assert dumpable({"key": [value]}, {})["key"] == [value]


def test_nan_is_written_as_verl_writes_it():
    assert math.isnan(written(float("nan")))


@pytest.mark.parametrize("value", [1j, {1, 2}, b"x", object(), [1j], {"a": 1j}], ids=repr)
def test_what_json_cannot_hold_is_text_and_named_once(value, caplog):
    for _ in range(2):
        assert "1" in str(written(value)) or "x" in str(written(value)) or "object" in str(written(value))
    assert [record.getMessage().count("'key' holds a") for record in caplog.records] == [1]


def test_a_dict_that_holds_itself_is_written_and_ends():
    loop = {}
    loop["self"] = loop
    assert "self" in json.dumps(dumpable({"key": [loop]}, {})["key"])


def test_a_missing_value_replaces_no_field_that_the_dump_writes_itself():
    own = {"score": [1.0, 0.0], "input": ["a", "b"]}
    infos = dumpable({"score": [None, -1.0], "input": ["mine", None], "acc": [None, 1]}, own)
    assert infos == {"score": [1.0, -1.0], "input": ["mine", "b"], "acc": [None, 1]}
