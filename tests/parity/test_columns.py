"""Uniform rows give the columns that stock verl makes of them, but for what `differences.py` lists."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from differences import COLUMNS, ELSEWHERE, Difference, OfColumns, Values
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stock_columns import is_stocks, stock_column_of
from strategies import alike, values_of_one_key
from values import FAMILIES

from verl_ext import plugin
from verl_ext.schema import assemble_reward_extra_info

README = Path(__file__).parents[2] / "README.md"

pytestmark = pytest.mark.filterwarnings("ignore")  # NumPy's, of what it makes of such values


def column_of(values: Values) -> np.ndarray:
    return assemble_reward_extra_info([{"key": value} for value in values])["key"]


def assert_stocks_but_for_what_is_listed(values: Values) -> None:
    column, stock = column_of(values), stock_column_of(values)
    listed = [difference.what for difference in COLUMNS if difference.applies(values)]
    assert is_stocks(column, stock) == (not listed), f"{column!r} beside {stock!r}; listed: {listed}"
    assert all(map(alike, column, values))


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_values_that_scorers_return_make_stocks_column_unless_a_difference_is_listed(family):
    @settings(max_examples=settings.default.max_examples // 4)
    @given(st.lists(family, min_size=1, max_size=4))
    def run(values):
        assert_stocks_but_for_what_is_listed(values)

    run()


@example([2**63])
@example([np.False_, np.uint64(0)])
@example([np.True_, np.uint64(2**63)])
@example([np.zeros((2, 0), ">f8")])
@given(values_of_one_key())
def test_any_values_make_stocks_column_unless_a_difference_is_listed(values):
    assert_stocks_but_for_what_is_listed(values)


@pytest.mark.parametrize("difference", COLUMNS, ids=lambda difference: difference.what)
def test_what_is_listed_of_columns_is_so(difference: OfColumns):
    values = difference.example() if callable(difference.example) else difference.example
    assert difference.applies(values)
    assert not is_stocks(column_of(values), stock_column_of(values))


@pytest.mark.parametrize("difference", ELSEWHERE, ids=lambda difference: difference.what)
def test_what_is_listed_of_anything_else_is_so(difference):
    plugin.activate()
    stock, ours = difference.outcomes()
    assert stock != ours


def test_readme_shows_the_list_and_nothing_beside_it():
    section = README.read_text().split("## What changes and what does not")[1].split("\n## ")[0]
    header, _, *rows = re.findall(r"^\|(.*?)\|(.*?)\|(.*?)\|$", section, re.MULTILINE)
    assert [cell.strip() for cell in header] == ["", "stock verl", "with verl-ext"]
    assert [Difference(*(cell.strip() for cell in row)) for row in rows] == [
        Difference(difference.what, difference.stock, difference.ours) for difference in [*ELSEWHERE, *COLUMNS]
    ]
