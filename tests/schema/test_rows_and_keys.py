"""What a row and a key may be, and what is said of a row that is none or that changes while it is read."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from functools import partial

import numpy as np
import pytest
from assembled import assert_same_column
from strategies import (
    Colour,
    Level,
    Verdict,
)

from verl_ext.errors import RowError, VerlExtError
from verl_ext.schema import assemble_reward_extra_info


@pytest.mark.parametrize("key", [1, None, True, Level.LOW, Colour.RED, ("a", "b"), b"acc", 1.5, 10**5000], ids=type)
def test_a_key_may_be_whatever_a_dict_takes(key):
    uniform = assemble_reward_extra_info([{"acc": 1.0, key: 2.0}, {key: 0.5, "acc": 0.0}])
    assert list(uniform) == ["acc", key]
    assert_same_column(uniform[key], np.float64, [2.0, 0.5])
    sparse = assemble_reward_extra_info([{"acc": 1.0}, {}, {key: "x"}])
    assert list(sparse) == ["acc", key]
    assert_same_column(sparse[key], object, [None, None, "x"])


def test_a_number_and_its_text_are_two_keys_and_equal_keys_are_one_as_in_a_dict():
    columns = assemble_reward_extra_info([{1: "a"}, {"1": "b"}, {True: "c"}, {1.0: "d"}])
    assert {key: column.tolist() for key, column in columns.items()} == {
        1: ["a", None, "c", "d"],
        "1": [None, "b", None, None],
    }


@pytest.mark.parametrize("row", [1.0, "acc", [("acc", 1.0)], {"acc"}, np.float32(1)], ids=repr)
def test_a_row_that_is_no_dict_is_named_with_its_number_and_type(row):
    with pytest.raises(RowError, match="row 1") as caught:
        assemble_reward_extra_info([{"acc": 1.0}, row])
    assert type(row).__name__ in str(caught.value)
    assert isinstance(caught.value, VerlExtError)


class Meddling(str):
    """A key during whose look-up, as if in another thread, a row changes."""

    def __hash__(self):
        self.meddle()
        return super().__hash__()

    def meddle(self):
        """Nothing, until a test says what."""


def gets_a_key(row):
    row.setdefault("late", "late")


def loses_a_key(row):
    row.pop("acc", None)


def swaps_a_key(row):
    if "acc" in row:
        del row["acc"]
        row["late"] = "late"


def after(times, act):
    """What does nothing so many times, and acts from then on."""
    waits = iter(range(times))
    return lambda: next(waits, None) is None and act()


@pytest.mark.parametrize("others", [[], [{"only": "only"}] * 20], ids=["one schema", "two schemas"])
@pytest.mark.parametrize("rows_of_a_schema", [2, 20])
@pytest.mark.parametrize("place", [0, 1, -1])
@pytest.mark.parametrize("change", [gets_a_key, loses_a_key, swaps_a_key])
def test_of_a_row_that_changes_while_it_is_read_no_value_comes_out_at_another_key(
    change, place, rows_of_a_schema, others
):
    """Whichever look-up of the key the change comes at."""
    comes_out = 0
    for look in range(1, 60):
        key = Meddling("fmt")
        rows = [{key: "fmt", "acc": "acc"} for _ in range(rows_of_a_schema)] + others
        key.meddle = after(look, partial(change, rows[place % rows_of_a_schema]))
        try:
            columns = assemble_reward_extra_info(rows)
        except RowError as error:
            assert str(error).startswith("a row got or lost a key while it was read: finalize a copy")
        else:
            comes_out += 1
            for name, column in columns.items():
                assert set(column.tolist()) <= {name, None}
    assert comes_out


def test_subclasses_of_dict_and_text_are_rows_and_keys():
    rows = [OrderedDict(acc=1.0), defaultdict(float, {np.str_("acc"): 0.5}), {Verdict.RIGHT: 1}]
    columns = assemble_reward_extra_info(rows)
    assert list(columns) == ["acc", "right"]
    assert len(rows[1]) == 1, "looking up a missing key must not create it"
    assert_same_column(columns["acc"], object, [1.0, 0.5, None])


def test_rows_may_come_from_a_generator():
    assert_same_column(assemble_reward_extra_info({"acc": n} for n in range(3))["acc"], np.int64, [0, 1, 2])


def test_no_rows_give_no_columns():
    assert assemble_reward_extra_info([]) == {}


@pytest.mark.parametrize("bad", [0.5, "acc"])
def test_a_bad_row_far_behind_is_counted_from_the_first_row_of_all(bad):
    with pytest.raises(RowError, match=r"^row 30000 "):
        assemble_reward_extra_info([*[{"acc": 1.0}] * 30_000, bad])
