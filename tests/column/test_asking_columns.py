"""What a `SparseNonTensor` answers: its keys, which rows have one, its repr; and how a batch's are found."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from column_rows import assert_plain, plain

from verl_ext.column import SparseNonTensor, raw_columns


def test_keys_are_the_union_in_the_order_of_first_appearance() -> None:
    rows = [{"b": 1, "a": 1}, None, {"c": 1, "a": 2}, {}, {"a": 0, "0": 0, "b": 0}]
    assert SparseNonTensor(rows).keys() == ["b", "a", "c", "0"]


def test_present_is_bool_by_row_and_tells_a_missing_value_from_an_explicit_none(column: SparseNonTensor) -> None:
    for key, expected in {"acc": [1, 1, 0, 0, 0], "pred": [0, 1, 0, 0, 1], "f1": [0, 0, 0, 0, 0]}.items():
        present = column.present(key)
        assert_plain(present)
        assert present.dtype == bool
        assert present.tolist() == list(map(bool, expected))
    assert SparseNonTensor().present("acc").dtype == bool


def test_present_does_not_add_keys_to_a_defaultdict() -> None:
    row: defaultdict[str, list[int]] = defaultdict(list)
    assert not SparseNonTensor([row]).present("acc").any()
    assert row == {}


def test_a_folded_column_answers_in_its_own_shape(column: SparseNonTensor) -> None:
    folded = column[:4].reshape(2, 2)
    assert folded.keys() == ["acc", "pred"]
    assert folded.present("acc").tolist() == [[True, True], [False, False]]


def test_the_repr_counts_the_rows_that_have_each_key(column: SparseNonTensor) -> None:
    assert repr(column) == str(column) == f"{column}" == "SparseNonTensor(5 rows; acc 2/5, pred 2/5)"
    assert repr(column[2:4]) == "SparseNonTensor(2 rows; no keys)"
    assert repr(column[:4].reshape(2, 2)) == "SparseNonTensor(2 x 2 rows; acc 2/4, pred 1/4)"
    assert repr(column[0, ...]) == "SparseNonTensor(1 rows; acc 1/1)"


@pytest.mark.parametrize(
    "rows",
    [
        [{"\x1b[2J\r\n\x07\u202e": 1}],
        [{"k" * 1_000_000: 1}],
        [{f"key {number}": 1 for number in range(10_000)}],
        [{f"key {number}": 1} for number in range(10_000)],
        [{"": 1, "'": 2, '"': 3, "\\": 4, "\ud800": 5}],
        [{"text": "x" * 1_000_000}] * 3,
    ],
    ids=["control characters", "a million characters", "10,000 keys", "10,000 rows", "quotes", "long values"],
)
def test_the_repr_is_short_printable_and_on_one_line_for_any_rows(rows: list[dict[str, Any]]) -> None:
    text = repr(SparseNonTensor(rows))
    assert len(text) < 700
    assert text.isascii()
    assert text.isprintable()


def test_the_repr_says_how_many_keys_it_leaves_out() -> None:
    assert repr(SparseNonTensor([dict.fromkeys("abcdefgh")])).endswith("f 1/1, and 2 more keys)")
    assert repr(SparseNonTensor([dict.fromkeys("abcdef")])).endswith("f 1/1)")


def test_raw_columns_are_found_among_the_others_in_order(column: SparseNonTensor) -> None:
    columns = {"b": column, "uid": plain(["u"]), "list": [{}], "dicts": plain([{}]), "a": SparseNonTensor()}
    found = raw_columns(columns)
    assert list(found) == ["b", "a"]
    assert found["b"] is column
