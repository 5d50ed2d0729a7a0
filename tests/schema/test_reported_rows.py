"""Rows from public reports, in whatever way they are cut."""

from __future__ import annotations

import json

import pytest
from assembled import assert_same_column, merged
from cases import COPIES, ORIGINALS, cases
from strategies import (
    every_cut,
)

from verl_ext.schema import assemble_reward_extra_info

CASES = cases("reward_rows.json")


def test_the_copy_of_the_cases_is_the_original_and_holds_some():
    copy, original = COPIES / "reward_rows.json", ORIGINALS / "reward_rows.json"
    if original.exists():
        assert json.loads(copy.read_text()) == json.loads(original.read_text()), "tests/data is out of date"
    assert len(CASES) >= 20


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in CASES])
def test_rows_from_public_reports_give_the_expected_columns_however_they_are_cut(case):
    rows, expected = case["rows"], case["columns"]
    ways = [assemble_reward_extra_info(rows), *(merged(rows, cut) for cut in every_cut(len(rows), 3))]
    if "chunks" in case:
        ways.append(merged(rows, case["chunks"]))
    for columns in ways:
        assert list(columns) == list(expected)
        for key, (dtype, values) in expected.items():
            assert_same_column(columns[key], dtype, values)
