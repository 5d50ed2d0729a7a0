"""`SparseNonTensor`: what it accepts, what it stays through, and what can never get into it."""

from __future__ import annotations

import copy
import pickle
import random
import tracemalloc
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest

from verl_ext.column import SparseNonTensor, _restore, raw_columns
from verl_ext.errors import RowError

ROWS: list[dict[str, Any] | None] = [{"acc": 1.0}, {"acc": 0.0, "pred": "42"}, None, {}, {"pred": None}]


@pytest.fixture
def column() -> SparseNonTensor:
    return SparseNonTensor(ROWS)


def plain(rows: list[Any]) -> np.ndarray:
    """A 1-D object array, also where NumPy would rather make two dimensions of it."""
    return np.fromiter(rows, dtype=object, count=len(rows))


def assert_column(found: Any, rows: list[Any], shape: tuple[int, ...] | None = None) -> None:
    """`found` is a column of exactly these row objects."""
    assert type(found) is SparseNonTensor
    assert found.dtype == object
    assert found.shape == ((len(rows),) if shape is None else shape)
    assert [id(row) for row in found.ravel().tolist()] == [id(row) for row in rows]


def assert_plain(found: Any) -> None:
    assert type(found) is np.ndarray


# --- making one --------------------------------------------------------------------------------------------------


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


# --- asking it ---------------------------------------------------------------------------------------------------


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


# --- moving rows -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "move",
    [
        lambda rows: rows[1:4],
        lambda rows: rows[::-2],
        lambda rows: rows[:0],
        lambda rows: rows[...],
        lambda rows: rows[[4, 0, 0]],
        lambda rows: rows[np.array([], dtype=int)],
        lambda rows: rows[np.array([3, -1], dtype=np.int32)],
        lambda rows: rows[np.array([True, False, True, False, True])],
        lambda rows: rows[None],
        lambda rows: rows.reshape(5, 1),
        lambda rows: rows[:4].reshape(2, 2).reshape(4),
        lambda rows: rows[:4].reshape(2, -1).T,
        lambda rows: rows[:4].reshape(2, 2)[1],
        lambda rows: rows.reshape(5, 1).squeeze(),
        lambda rows: rows.reshape(5, 1).ravel(),
        lambda rows: rows.reshape(5, 1).flatten(),
        lambda rows: rows.repeat(2),
        lambda rows: rows.take([1, 1]),
        lambda rows: rows.compress([True, True]),
        lambda rows: rows.copy(),
        lambda rows: rows.astype(object),
        lambda rows: copy.copy(rows),
        lambda rows: np.repeat(rows, 3, axis=0),
        lambda rows: np.repeat(rows, [0, 1, 2, 0, 3], axis=0),
        lambda rows: np.tile(rows, 2),
        lambda rows: np.tile(rows, (2,)),
        lambda rows: np.take(rows, [2, 0]),
        lambda rows: np.compress([False, True], rows),
        lambda rows: np.delete(rows, [0, 1]),
        lambda rows: np.resize(rows, 7),
        lambda rows: np.copy(rows, subok=True),
        lambda rows: np.roll(rows, 2),
        lambda rows: np.flip(rows),
        lambda rows: np.reshape(rows, (5, 1)),
        lambda rows: np.ravel(np.expand_dims(rows, 0)),
        lambda rows: np.squeeze(np.atleast_2d(rows)),
        lambda rows: np.atleast_1d(rows),
        lambda rows: np.transpose(rows.reshape(5, 1)),
        lambda rows: np.swapaxes(rows.reshape(5, 1), 0, 1),
        lambda rows: np.moveaxis(rows.reshape(5, 1), 0, 1),
        lambda rows: np.broadcast_to(rows, (2, 5), subok=True),
        lambda rows: np.array(rows, subok=True),
        lambda rows: np.asanyarray(rows),
    ],
)
def test_what_moves_rows_moves_the_same_rows_as_in_a_plain_array_and_gives_a_column(
    column: SparseNonTensor, move: Callable[[np.ndarray], np.ndarray]
) -> None:
    expected = move(plain(ROWS))
    assert_column(move(column), expected.ravel().tolist(), expected.shape)


@pytest.mark.parametrize("split", [np.array_split, np.split], ids=["array_split", "split"])
@pytest.mark.parametrize("sections", [[2], [1, 1, 4], 5])
def test_splitting_gives_columns(column: SparseNonTensor, split: Callable[..., Any], sections: Any) -> None:
    parts = split(column, sections)
    for part, expected in zip(parts, split(plain(ROWS), sections), strict=True):
        assert_column(part, expected.tolist())


def test_one_index_gives_the_row_itself(column: SparseNonTensor) -> None:
    assert column[1] is ROWS[1]
    assert column[np.int64(-1)] is ROWS[-1]
    assert column.item(0) is ROWS[0]
    assert [id(row) for row in column] == list(map(id, ROWS))


def test_deepcopy_copies_the_rows_too(column: SparseNonTensor) -> None:
    deep = copy.deepcopy({"reward_extra_info": column})["reward_extra_info"]
    assert type(deep) is SparseNonTensor
    assert deep.tolist() == ROWS
    deep[0]["acc"] = 5
    assert column[0] == {"acc": 1.0}


# --- pickling ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps], ids=["pickle", "cloudpickle"])
def test_a_column_comes_back_from_every_pickle_protocol(dumps: Callable[..., bytes], protocol: int) -> None:
    rows = [*ROWS, {"nested": {"texts": ["a"]}, "array": np.arange(3)}]
    for column in (SparseNonTensor(rows), SparseNonTensor(rows)[::-1], SparseNonTensor(rows).reshape(3, 2)):
        back = pickle.loads(dumps(column, protocol=protocol))  # noqa: S301
        assert type(back) is SparseNonTensor
        assert back.dtype == object
        assert back.shape == column.shape
        assert str(back.tolist()) == str(column.tolist())
    assert_column(pickle.loads(dumps(SparseNonTensor(), protocol=protocol)), [])  # noqa: S301


def test_a_column_comes_back_from_out_of_band_pickling() -> None:
    buffers: list[pickle.PickleBuffer] = []
    stored = pickle.dumps(SparseNonTensor([{"array": np.arange(3)}]), protocol=5, buffer_callback=buffers.append)
    back = pickle.loads(stored, buffers=buffers)  # noqa: S301
    assert type(back) is SparseNonTensor
    assert back[0]["array"].tolist() == [0, 1, 2]


def test_a_row_that_two_columns_share_is_shared_after_pickling() -> None:
    row = {"acc": 1.0}
    one, other = pickle.loads(pickle.dumps([SparseNonTensor([row, row]), SparseNonTensor([row])]))  # noqa: S301
    assert one[0] is one[1]
    assert one[0] is other[0]


@pytest.mark.parametrize("state", [((1,), [{}]), ((1,), [{}], "and what the newer format adds"), ()])
def test_a_pickle_of_a_newer_format_says_so(state: tuple[Any, ...]) -> None:
    rebuild, (pickle_format, *_) = SparseNonTensor([{}]).__reduce__()

    class Newer:
        def __reduce__(self) -> tuple[Any, ...]:
            return rebuild, (pickle_format + 1, *state)

    with pytest.raises(RowError, match=r"pickled in format 2, .* reads up to 1: install the newer verl-ext"):
        pickle.loads(pickle.dumps(Newer()))  # noqa: S301


def test_a_pickle_names_no_internals_of_numpy(column: SparseNonTensor) -> None:
    stored = pickle.dumps(column, protocol=2)
    assert b"numpy" not in stored
    assert b"_restore" in stored
    assert_column(_restore(1, (5,), ROWS), ROWS)


# --- joining -----------------------------------------------------------------------------------------------------

NEW: list[dict[str, Any] | None] = [{"f1": 0.5}, None]


@pytest.mark.parametrize(
    "other", [SparseNonTensor(NEW), plain(NEW), NEW, tuple(NEW)], ids=["column", "object array", "list", "tuple"]
)
def test_columns_join_with_columns_and_with_plain_rows(column: SparseNonTensor, other: Any) -> None:
    assert_column(np.concatenate([column, other]), [*ROWS, *NEW])
    assert_column(np.concatenate((other, column), axis=0), [*NEW, *ROWS])
    assert_column(np.hstack([column, other]), [*ROWS, *NEW])
    assert_column(np.stack([column[:2], other]), [*ROWS[:2], *NEW], (2, 2))
    assert_column(np.stack([column[:2], other], axis=1), [ROWS[0], NEW[0], ROWS[1], NEW[1]], (2, 2))
    assert_column(np.vstack([column[:2], other]), [*ROWS[:2], *NEW], (2, 2))
    assert_column(np.append(column, other), [*ROWS, *NEW])
    assert_column(np.append(arr=other, values=column), [*NEW, *ROWS])
    assert_column(np.append(column, other, axis=0), [*ROWS, *NEW])
    assert_column(np.insert(column, 1, other), [ROWS[0], *NEW, *ROWS[1:]])
    assert_column(np.insert(arr=column, obj=[0, 5], values=other), [NEW[0], *ROWS, NEW[1]])
    assert_column(np.concatenate([column, SparseNonTensor(), plain([])]), ROWS)


def test_one_row_can_be_appended_and_inserted(column: SparseNonTensor) -> None:
    row = {"f1": 0.5}
    assert_column(np.append(column, row), [*ROWS, row])
    assert_column(np.append(column, None), [*ROWS, None])
    assert_column(np.insert(column, 2, row), [*ROWS[:2], row, *ROWS[2:]])
    assert_column(np.insert(column, 0, None), [None, *ROWS])


def test_folded_columns_join_along_either_axis(column: SparseNonTensor) -> None:
    folded = column[:4].reshape(2, 2)
    assert np.concatenate([folded, folded], axis=1).shape == np.append(folded, folded, axis=1).shape == (2, 4)
    assert_column(np.append(folded, folded, axis=1)[0], [ROWS[0], ROWS[1]] * 2)
    assert_column(np.insert(folded, 0, column[:2], axis=1)[0], [ROWS[0], ROWS[0], ROWS[1]])


def test_a_joined_column_has_memory_of_its_own(column: SparseNonTensor) -> None:
    for joined in (np.concatenate([column, column[:0]]), np.insert(column, 0, {}), np.append(column, {})):
        joined[:] = None
    assert_column(column, ROWS)


@pytest.mark.parametrize(
    "other",
    [np.arange(2), np.array(["a", "b"]), plain(["a", {}]), plain([[{}], {}]), [1.0], ["a"]],
    ids=["int64", "text", "a str among dicts", "a list among dicts", "list", "list of text"],
)
@pytest.mark.parametrize(
    "join",
    [
        lambda column, other: np.concatenate([column, other]),
        lambda column, other: np.concatenate([other, column]),
        lambda column, other: np.hstack([column, other]),
        lambda column, other: np.stack([column[: len(other)], other]),
        lambda column, other: np.append(column, other),
        lambda column, other: np.append(other, column),
        lambda column, other: np.insert(column, 0, other),
        lambda column, other: np.insert(column, range(len(other)), other),
    ],
    ids=["after", "before", "hstack", "stack", "append", "append to", "insert", "insert many"],
)
def test_a_join_with_anything_but_rows_is_refused(
    column: SparseNonTensor, other: Any, join: Callable[[Any, Any], Any]
) -> None:
    with pytest.raises(RowError, match=r"^row \d "):
        join(column, other)
    assert_column(column, ROWS)


def test_the_refused_row_of_a_join_is_counted_through_all_parts(column: SparseNonTensor) -> None:
    with pytest.raises(RowError, match=r"^row 7 of the raw column is a str \('a'\)"):
        np.concatenate([column, plain([{}, None, "a"])])


# --- writing -----------------------------------------------------------------------------------------------------


def test_rows_are_written_by_any_index(column: SparseNonTensor) -> None:
    row: dict[str, Any] = {"f1": 0.5}
    column[0] = row
    column[1:3] = [None, row]
    column[[3]] = row
    column[np.array([False, False, False, False, True])] = SparseNonTensor([row])
    assert_column(column, [row, None, row, row, row])
    column[...] = None
    assert_column(column, [None] * 5)
    column[:] = plain([row] * 5)
    assert_column(column, [row] * 5)
    folded = column[:4].reshape(2, 2)
    folded[0, 0] = {}
    folded[1] = [None, None]
    assert folded.tolist() == [[{}, row], [None, None]]


@pytest.mark.parametrize("value", ["acc", 5, 1.0, [{}], ({},), plain([{}]), plain([5]), np.array(5), object()])
def test_one_place_takes_one_row_and_nothing_else(column: SparseNonTensor, value: Any) -> None:
    with pytest.raises(RowError, match="row 0"):
        column[0] = value
    assert_column(column, ROWS)


@pytest.mark.parametrize(
    "value",
    ["acc", 5, [1, 2], [{}, 5], [[1], [1, 2]], np.arange(2), ({} for _ in range(2))],
)
def test_several_places_take_rows_and_nothing_else(column: SparseNonTensor, value: Any) -> None:
    for index in (slice(2), [0, 1], np.array([True, True, False, False, False])):
        with pytest.raises(RowError, match=r"row \d"):
            column[index] = value
    assert_column(column, ROWS)


@pytest.mark.filterwarnings("ignore:Shuffling a one dimensional array subclass")
@pytest.mark.parametrize("shuffle", [random.shuffle, np.random.default_rng(0).shuffle, np.random.shuffle])
def test_shuffling_in_place_keeps_the_rows(shuffle: Callable[[Any], None]) -> None:
    rows = [{"number": number} for number in range(20)]
    column = SparseNonTensor(rows)
    shuffle(column)
    assert all(any(row is original for original in rows) for row in column)
    assert sorted(row["number"] for row in column) == list(range(20))
    assert column.tolist() != rows


def sort_in_place(column: SparseNonTensor) -> None:
    column.sort()


def write_through_flat(column: SparseNonTensor) -> None:
    column.flat[0] = 5


def replace_flat(column: SparseNonTensor) -> None:
    column.flat = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("write", "error"),
    [
        (lambda column: column.fill(5), RowError),
        (lambda column: column.put([0], [5]), RowError),
        (lambda column: column.copy().resize(9, refcheck=False), RowError),
        (lambda column: column.setfield(5, object), RowError),
        (lambda column: np.copyto(column, 5), ValueError),
        (lambda column: np.put(column, [0], 5), ValueError),
        (lambda column: np.place(column, [True] * 5, [5]), ValueError),
        (lambda column: np.putmask(column, [True] * 5, 5), ValueError),
        (lambda column: np.put_along_axis(column, np.array([0]), 5, 0), ValueError),
        (lambda column: np.fill_diagonal(column[:4].reshape(2, 2), 5), ValueError),
        (lambda column: np.equal(column, column, out=column), ValueError),
        (lambda column: np.take(plain([5, 6]), [0] * 5, out=column), ValueError),
        (lambda column: np.compress([True] * 5, plain([5] * 5), out=column), ValueError),
        (lambda column: np.concatenate([column[:3], column[:2]], out=column), ValueError),
        (sort_in_place, TypeError),
        (write_through_flat, ValueError),
        (replace_flat, AttributeError),
    ],
)
def test_what_writes_without_looking_at_rows_is_refused(
    column: SparseNonTensor, write: Callable[[SparseNonTensor], None], error: type[Exception]
) -> None:
    with pytest.raises(error):
        write(column)
    if error is RowError:
        with pytest.raises(RowError, match=r"^write rows by assignment, column\[index\] = row"):
            write(column)
    assert_column(column, ROWS)
    column[0] = {}
    assert column[0] == {}  # and the refusal has not made it read-only


def test_what_is_refused_says_what_would_do() -> None:
    with pytest.raises(
        RowError, match="each row must be a dict from reward key to value, or None for a sample that emi"
    ):
        SparseNonTensor([5])  # type: ignore[list-item]
    with pytest.raises(RowError, match=r"holds rows, not int64: see it as plain first, column\.view\(np\.ndarray\)"):
        np.arange(3).view(SparseNonTensor)


def test_astype_hands_on_what_else_it_is_given(column: SparseNonTensor) -> None:
    assert np.shares_memory(column.astype(object, copy=False), column)
    assert np.shares_memory(column.astype(object, "K", "unsafe", True, False), column)
    assert not np.shares_memory(column.astype(object), column)


def test_a_named_tuple_among_the_arguments_of_a_numpy_function_stays_one(column: SparseNonTensor) -> None:
    axes = namedtuple("axes", "one other")(0, 1)
    assert np.rot90(column[:4].reshape(2, 2), 2, axes).tolist() == [ROWS[3:1:-1], ROWS[1::-1]]


def test_a_plain_view_is_the_way_out(column: SparseNonTensor) -> None:
    for way in (column.view(np.ndarray), np.asarray(column)):
        assert_plain(way)
        assert np.shares_memory(way, column)
        assert way.flags.writeable
    assert_plain(np.array(column))
    assert_plain(np.copy(column))  # as np.array: NumPy's default is subok=False


# --- what is no column any more ----------------------------------------------------------------------------------


def test_comparing_gives_plain_booleans(column: SparseNonTensor) -> None:
    for found, expected in [
        (column == column.copy(), [True] * 5),
        (column != column.copy(), [False] * 5),
        (column == plain([{"acc": 1.0}, {}, {}, {}, {}]), [True, False, False, True, False]),
        (column == {"acc": 1.0}, [True, False, False, False, False]),
        (plain([{"acc": 1.0}]) == column, [True, False, False, False, False]),
        (np.equal(column, None), [False, False, True, False, False]),
        (np.isin(column, [None, {}]), [False, False, True, True, False]),
    ]:
        assert_plain(found)
        assert found.astype(bool).tolist() == expected
    assert np.array_equal(column, column.copy())
    assert not np.array_equal(column, column[::-1])


@pytest.mark.parametrize(
    "compute",
    [
        lambda column: np.where([True, False, True, False, True], column, 5),
        lambda column: np.full_like(column, 5),
        lambda column: np.ones_like(column),
        lambda column: np.zeros_like(column),
        lambda column: np.full(5, column),
        lambda column: np.select([[True] * 5], [column], 5),
        lambda column: np.piecewise(column, [[True] * 5], [5]),
        lambda column: np.pad(column, 1),
        lambda column: np.nan_to_num(column),
        lambda column: np.broadcast_to(column, (2, 5)),
        lambda column: np.dstack([column, column]),
        lambda column: np.block([column, column]),
        lambda column: np.resize(column[:0], 2),
        lambda column: np.argsort(column[:1]),
        lambda column: np.sort(column[:1]),
        lambda column: np.frompyfunc(len, 1, 1)(column[:2]),
        lambda column: np.vectorize(bool)(column),
        lambda column: np.nonzero(column)[0],
        lambda column: np.logical_not(column),
        lambda column: column[:2] | column[:2],
        lambda column: column[:1].cumsum(),
        lambda column: column.astype(str),
        lambda column: column.astype("U3"),
        lambda column: column[2:3].astype(float),
        lambda column: column.astype(bool),
    ],
)
def test_a_function_that_is_not_about_rows_gives_a_plain_array(
    column: SparseNonTensor, compute: Callable[[SparseNonTensor], Any]
) -> None:
    assert_plain(compute(column))
    assert_column(column, ROWS)


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


# --- what the batch asks -----------------------------------------------------------------------------------------


def test_raw_columns_are_found_among_the_others_in_order(column: SparseNonTensor) -> None:
    columns = {"b": column, "uid": plain(["u"]), "list": [{}], "dicts": plain([{}]), "a": SparseNonTensor()}
    found = raw_columns(columns)
    assert list(found) == ["b", "a"]
    assert found["b"] is column


def test_a_slice_of_a_large_column_copies_nothing() -> None:
    column = SparseNonTensor([{"acc": 1.0}] * 100_000)
    tracemalloc.start()
    try:
        part = column[10:90_000]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert np.shares_memory(part, column)
    assert peak < 10_000
