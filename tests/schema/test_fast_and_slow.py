"""The fast assembly, in blocks of rows, against the slow obvious version."""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain

import numpy as np
import pytest
from assembled import assert_same_columns
from hypothesis import given
from hypothesis import strategies as st
from marks import slow_after
from slow_schema import slowly_assembled
from strategies import (
    KEYS,
    reward_rows,
    uniform_rows,
    values_of_one_key,
)

from verl_ext import schema
from verl_ext.schema import assemble_reward_extra_info


def assert_as_slowly_assembled(rows: list) -> None:
    columns, expected = assemble_reward_extra_info(rows), slowly_assembled(rows)
    assert list(columns) == list(expected)
    assert_same_columns(columns, expected, rows)


@st.composite
def rows_that_change(draw: st.DrawFn) -> list[dict | None]:
    """Rows of one schema whose values are of another kind every few rows, some of them absent."""
    columns = []
    for _ in range(draw(st.integers(1, 3))):
        stretches = draw(st.lists(values_of_one_key(max_rows=5), min_size=1, max_size=4))
        columns.append(list(chain.from_iterable(stretches)))
    rows: list[dict | None] = [dict(zip(KEYS, values, strict=False)) for values in zip(*columns, strict=False)]
    for number in draw(st.lists(st.integers(0, len(rows) - 1), max_size=3)):
        rows[number] = draw(st.sampled_from([None, {}, {KEYS[0]: None}, OrderedDict(rows[number] or {})]))
    return rows


@given(
    st.one_of(reward_rows(max_rows=12), rows_that_change(), uniform_rows(max_rows=12)),
    st.integers(1, 6),
    st.integers(1, 4),
    st.sampled_from([0, 1, 16]),
)
def test_blocks_of_rows_give_what_the_slow_obvious_version_gives(rows, block, few, short):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"_BLOCK": block, "_BLOCK_VALUES": 1, "_FEW": few, "_SHORT": short}.items():
            patch.setattr(schema, name, value)
        assert_as_slowly_assembled(rows)


@pytest.fixture
def blocks_of_1024_rows(monkeypatch):
    monkeypatch.setattr(schema, "_BLOCK_VALUES", 1)


@pytest.mark.usefixtures("blocks_of_1024_rows")
@pytest.mark.parametrize(
    "spoilt", slow_after(1, [1023, 1024, 4999]), ids=["end of a block", "start of the next", "last of all"]
)
@pytest.mark.parametrize("value", [None, "text", 3, 0.5, True, np.float32(0.1), 2**53 + 1, [1.0], "a\0", "x" * 60_000])
@pytest.mark.parametrize("others", slow_after(3, [0.5, "text", None, 1, True, np.float64(0.5), [1.0]]), ids=repr)
def test_one_value_of_another_kind_among_thousands_decides_as_among_few(others, value, spoilt):
    rows = [{"key": others, "other": number} for number in range(5000)]
    rows[spoilt]["key"] = value
    assert_as_slowly_assembled(rows)


@pytest.mark.usefixtures("blocks_of_1024_rows")
@pytest.mark.parametrize(
    "row", [{}, None, {"other": 1}, {"key": 0.5, "more": 1}, OrderedDict(other=1, key=2.0)], ids=repr
)
@pytest.mark.parametrize("spoilt", [0, 1023, 1024, 4999])
def test_one_row_of_another_schema_among_thousands_decides_as_among_few(row, spoilt):
    rows = [{"key": number / 2, "other": number} for number in range(5000)]
    rows[spoilt] = row
    assert_as_slowly_assembled(rows)


def test_text_that_is_short_everywhere_but_pads_much_in_the_whole_stays_text():
    rows = [{"key": "x" * 15 if number == 70_000 else ""} for number in range(80_000)]
    assert_as_slowly_assembled(rows)
    assert assemble_reward_extra_info(rows)["key"].dtype == object


def test_text_that_pads_much_in_the_whole_is_weighed_by_its_exact_length(monkeypatch):
    monkeypatch.setattr(schema, "_FREE_TEXT_BYTES", 0)
    for rows, dtype in ((8, "<U9"), (9, object)):  # at most 8 characters for each that is there
        column = assemble_reward_extra_info([{"key": "x" * 9 if row == 0 else ""} for row in range(rows)])["key"]
        assert column.dtype == dtype


def test_what_is_of_one_kind_is_written_as_it_comes_and_never_decided_anew(monkeypatch):
    def decided_anew(*_):
        raise AssertionError("all values were looked at once more")

    patches = {"_BLOCK": 10, "_BLOCK_VALUES": 1, "_FEW": 2, "_FREE_TEXT_BYTES": 0, "dense_column": decided_anew}
    for name, value in patches.items():
        monkeypatch.setattr(schema, name, value)
    rows = [{"float": row / 2, "int": row, "bool": row % 3 > 0, "text": "abcdef"[: row % 7]} for row in range(45)]
    for row in rows[::2]:
        row["sometimes"] = 0.5
    for row in rows[20:]:
        row["late"] = 1.0
    columns = assemble_reward_extra_info(rows)
    kinds = {"float": "f8", "int": "i8", "bool": "?", "text": "<U6", "sometimes": "O", "late": "O"}
    assert list(columns) == list(kinds)
    for key, column in columns.items():
        assert column.dtype == np.dtype(kinds[key])
        assert column.tolist() == [row.get(key) for row in rows]


def test_an_ordered_row_whose_order_was_changed_keeps_its_values_under_their_keys():
    moved = OrderedDict(acc=1.0, pred="7")
    moved.move_to_end("acc")
    assert_as_slowly_assembled([moved] * 9 + [{"acc": 0.5}] * 9)
