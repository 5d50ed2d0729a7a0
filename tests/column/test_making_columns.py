"""What becomes a `SparseNonTensor`: rows from any iterable; anything else is refused by its number and type."""

from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from column_rows import ROWS, assert_column, plain

from verl_ext.column import SparseNonTensor
from verl_ext.errors import RowError


@pytest.mark.parametrize(
    "make",
    [list, tuple, iter, lambda rows: (row for row in rows), plain, SparseNonTensor],
    ids=["list", "tuple", "iterator", "generator", "object array", "column"],
)
def test_rows_come_from_any_iterable(make: Callable[[list[Any]], Any]) -> None:
    assert_column(SparseNonTensor(make(ROWS)), ROWS)


def test_a_single_dict_in_the_place_of_rows_is_refused() -> None:
    with pytest.raises(RowError, match=r"row 0 .* is a str \('acc'\)"):
        SparseNonTensor({"acc": 1.0})  # type: ignore[arg-type]


def test_rows_are_shared_and_not_copied(column: SparseNonTensor) -> None:
    rows: list[dict[str, Any] | None] = [{"acc": 1.0}]
    made = SparseNonTensor(rows)
    assert made[0] is rows[0]
    rows[0]["acc"] = 0.0  # type: ignore[index]
    assert made.tolist() == [{"acc": 0.0}]
    rows[0] = None
    assert made.tolist() == [{"acc": 0.0}]
    assert SparseNonTensor(column)[1] is ROWS[1]


def test_dict_subclasses_stay_what_they_are() -> None:
    class Scores(dict):  # type: ignore[type-arg]
        __slots__ = ("scorer",)

    rows = [OrderedDict(acc=1.0), defaultdict(list, pred=["a"]), Scores(f1=0.5)]
    assert_column(SparseNonTensor(rows), rows)
    assert SparseNonTensor(rows).keys() == ["acc", "pred", "f1"]


def test_a_column_without_rows_is_one_dimensional() -> None:
    for empty in (SparseNonTensor(), SparseNonTensor([]), SparseNonTensor(iter(()))):
        assert_column(empty, [])
        assert empty.keys() == []
        assert empty.present("acc").shape == (0,)


def test_one_row_is_one_dimensional_too() -> None:
    assert_column(SparseNonTensor(ROWS[:1]), ROWS[:1])


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        ("acc", "str"),
        (1.0, "float"),
        ([("acc", 1.0)], "list"),
        ([], "list"),
        (np.float32(1), "float32"),
        (float("nan"), "float"),
        (object(), "object"),
    ],
)
def test_a_row_that_is_no_dict_is_refused_by_its_number_and_type(bad: object, kind: str) -> None:
    with pytest.raises(RowError, match=rf"^row 2 of the raw column is a {kind} "):
        SparseNonTensor([{}, None, bad, 5])  # type: ignore[list-item]


@pytest.mark.parametrize("key", [5, None, b"acc", ("a", "b"), 1.5, 10**5000], ids=lambda key: type(key).__name__)
def test_a_key_need_not_be_a_str(key: object) -> None:
    rows = [{"acc": 1.0}, {"acc": 1.0, key: 2.0}]
    column = SparseNonTensor(rows)
    assert column.keys() == ["acc", key]
    assert column.present(key).tolist() == [False, True]
    assert_column(np.concatenate([column, plain(rows)]), rows * 2)
    column[0] = rows[1]
    assert_column(column, [rows[1]] * 2)
    assert repr(pickle.loads(pickle.dumps(column))) == repr(column)  # noqa: S301
    assert repr(column).startswith("SparseNonTensor(2 rows; acc 2/2, ")
    assert repr(column).isprintable()


def test_a_str_subclass_is_a_key() -> None:
    class Name(str):
        __slots__ = ()

    assert SparseNonTensor([{Name("acc"): 1.0}]).keys() == ["acc"]


def test_what_is_refused_says_what_would_do() -> None:
    with pytest.raises(
        RowError, match="each row must be a dict from reward key to value, or None for a sample that emi"
    ):
        SparseNonTensor([5])  # type: ignore[list-item]
    with pytest.raises(RowError, match=r"holds rows, not int64: see it as plain first, column\.view\(np\.ndarray\)"):
        np.arange(3).view(SparseNonTensor)


@pytest.mark.parametrize(
    "make",
    [
        lambda column: np.zeros(3).view(SparseNonTensor),
        lambda column: np.array(["a"]).view(SparseNonTensor),
        lambda column: np.array(["a"], dtype=object).view(SparseNonTensor),
        lambda column: np.ndarray.__new__(SparseNonTensor, (3,)),
        lambda column: np.empty_like(column, dtype=float),
        lambda column: np.asanyarray(column[2:3], dtype=float),
        lambda column: column[:1].argsort(),
        lambda column: column[:0].argsort(),
        lambda column: SparseNonTensor(column.reshape(5, 1)),
    ],
)
def test_there_is_no_column_of_another_dtype_or_of_anything_but_rows(
    column: SparseNonTensor, make: Callable[[SparseNonTensor], Any]
) -> None:
    with pytest.raises(RowError):
        make(column)


def test_an_empty_like_column_holds_none(column: SparseNonTensor) -> None:
    assert_column(np.empty_like(column), [None] * 5)
