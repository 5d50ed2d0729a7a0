"""The compiled core beside the version in Python: the same columns, and nothing kept, lost or torn on the way."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections import OrderedDict, defaultdict
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic

import numpy as np
import pytest
from assembled import assert_same_columns
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import ANY_KEYS, Verdict, reward_rows, uniform_rows
from test_fast_and_slow import rows_that_change

from verl_ext import core, schema
from verl_ext.errors import RowError
from verl_ext.schema import assemble_reward_extra_info

pytestmark = pytest.mark.skipif(not core.COMPILED, reason=core.VERSION)

BATCHES = int(os.environ.get("VERL_EXT_READ", "300"))


def assembled_by_both(rows, short=16):
    """The columns, once it is known that both versions make them: of one dtype and value, of the very same objects."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "_SHORT", short)
        compiled = assemble_reward_extra_info(rows)
        patch.setattr(core, "COMPILED", False)
        pure = assemble_reward_extra_info(rows)
    assert [*map(id, compiled)] == [*map(id, pure)], "other keys, or in another order"
    assert_same_columns(compiled, pure, rows)
    return compiled


def own(key):
    """The same key as another object."""
    return "".join([*key]) if type(key) is str else key


@settings(max_examples=BATCHES)
@given(
    st.one_of(
        reward_rows(max_rows=12), reward_rows(max_rows=12, keys=ANY_KEYS), rows_that_change(), uniform_rows(max_rows=12)
    ),
    st.sampled_from([0, 2, 16]),
    st.booleans(),
)
def test_both_versions_make_the_same_columns_of_any_rows(rows, short, own_keys):
    if own_keys:  # as from json: equal keys are not one object
        rows = [row and {own(key): value for key, value in row.items()} for row in rows]
    assembled_by_both(rows, short)


class Loud(str):
    """Text that says what hash it has, and that nothing equals it."""

    def __hash__(self):
        return 7

    def __eq__(self, other):
        return self is other


class Meta(type):
    """The class of a class that cannot be put into a set twice."""

    def __hash__(cls):
        return 7

    def __eq__(cls, other):
        return cls is other


class Odd(metaclass=Meta):
    """Of no importance."""


class Telling(dict):
    """A dict that says it holds something else."""

    def items(self):
        return [("other", 1)]

    def __iter__(self):
        return iter(["acc"])

    def __getitem__(self, key):
        return 2.0


KINDS = [type(f"Kind{number}", (), {})() for number in range(12)]
ROWS = {
    "keys that are text of a class of its own": [{Loud("acc"): 1.0}, {"acc": 2.0}, {Loud("acc"): 3.0}],
    "one such key far behind": [*({"acc": 1.0} for _ in range(50)), {np.str_("acc"): 2.0}, {Verdict.RIGHT: 1}],
    "dicts of classes of their own": [{"acc": 1.0}, OrderedDict(acc=2.0), defaultdict(int, acc=3.0)],
    "a dict that says it holds something else": [{"acc": 1.0}, Telling(acc=3.0)],
    "integers at the ends of int64": [{"a": -(2**63), "b": 2**63 - 1}, {"a": 2**63 - 1, "b": -(2**63)}],
    "an integer beyond int64, last": [{"a": 1, "b": 1}, {"a": 2**63, "b": -(2**63) - 1}],
    "an integer beyond int64, first": [{"a": 10**5000, "b": 2**64 - 1}, {"a": 1, "b": 1}],
    "rows that are None": [None, {"a": 1.0}, None],
    "rows that are all None": [None, None],
    "rows without keys": [{}, {}],
    "the last row lacks a key": [{"a": 1.0, "b": True, "c": "x", "d": 1}, {}],
    "the first row lacks a key": [{}, {"a": 1.0, "b": True, "c": "x", "d": 1}],
    "bools beside integers": [{"a": True}, {"a": 1}],
    "NaN and zeros with their signs": [{"a": float("nan")}, {"a": -0.0}, {"a": float("-inf")}],
    "text that grows": [{"a": "x" * number} for number in range(20)],
    "empty text": [{"a": ""}, {"a": ""}],
    "NULs in text": [{"a": "x\0y", "b": "x", "c": "\0"}, {"a": "z", "b": "x\0", "c": ""}],
    "letters of every width": [{"a": "a"}, {"a": "é"}, {"a": "漢"}, {"a": "🙂"}, {"a": "\ud800"}],
    "more types than are noted": [{"a": kind, "b": 1.0} for kind in KINDS],
    "more types than are noted, NumPy's last": [*({"a": kind} for kind in KINDS), {"a": np.int64(3)}, {}],
    "a class whose class has a hash of its own": [{"a": Odd()}, {"a": Odd()}, {"a": 1}],
    "NumPy's numbers": [{"a": np.float32(0.5), "b": np.float64(0.5)}, {"a": 0.5, "b": 0.5}, {"b": 1}],
    "more columns than the cache has slots": [{f"{row}/{key}": row for key in range(400)} for row in range(9)],
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("times", [1, 40])
def test_both_versions_make_the_same_columns_of_odd_rows(rows, times):
    assembled_by_both(rows * times)


@pytest.mark.parametrize("rows", [[{"a": 1}, 5], [{"a": 1}, [("a", 1)]], [None, "text"]], ids=repr)
def test_what_is_no_row_is_the_same_error_of_both(rows):
    with pytest.raises(RowError) as compiled:
        assemble_reward_extra_info(rows)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(RowError) as pure:
        patch.setattr(core, "COMPILED", False)
        assemble_reward_extra_info(rows)
    assert str(compiled.value) == str(pure.value)


def test_dense_text_of_any_length_is_written_as_numpy_writes_it():
    for texts in (["x" * 60, "é" * 17], ["漢🙂" * 20, ""], ["\ud800" * 30, "\0y" * 20], ["a" * 40, "b" * 39 + "\0"]):
        assembled_by_both([{"a": text} for text in texts])


def test_the_core_reads_what_most_rows_are_and_leaves_the_rest_to_python():
    rows = [{"acc": 1.0, "pred": "42"}, None, {"acc": 0.5, "steps": 3}]
    found = core.read_columns(rows, 16)
    assert {key: (array.tolist(), set(types), filled) for key, (array, types, filled) in found.items()} == {
        "acc": ([1.0, None, 0.5], {float}, 2),
        "pred": (["42", None, None], {str}, 1),
        "steps": ([None, None, 3], {int}, 1),
    }
    for rows in ([{7: 1}], [OrderedDict(a=1)], [{"a": 1}, {np.str_("a"): 1}], [{"a": 1}, 3]):
        assert core.read_columns(rows, 16) is None


# --- rows that change meanwhile --------------------------------------------------------------------------------------


def gains(row):
    row["late"] = "late"


def loses(row):
    row.pop("b", None)


def swaps(row):
    if row.pop("b", None):
        row["late"] = "late"


def moves(row):
    if "b" in row:
        row["b"] = row.pop("b")


def empties(row):
    row.clear()


@pytest.mark.parametrize("change", [gains, loses, swaps, moves, empties])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("at", range(12))
def test_whatever_python_does_to_a_row_while_it_is_read_no_value_comes_out_at_another_key(change, place, at):
    """Python runs where an array is made: there, another thread may get its turn."""
    rows = [{"a": "a", "b": "b", "c": "c"} for _ in range(3)] + [{"a": "a" * 9}, {"d": "d", "b": "b"}]
    arrays = 0

    def renewed(*asked):
        nonlocal arrays
        arrays += 1
        if arrays == at:
            change(rows[place])
        return core._renewed(rows, *asked)

    found = core._CORE.read(rows, 16, renewed)
    for key, (array, _, filled) in (found or {}).items():
        values = array.tolist()
        assert sum(value is not None for value in values) == filled > 0
        assert {value[0] for value in values if value} == {key[0]}


def test_a_list_that_becomes_shorter_while_it_is_read_is_left_to_python():
    rows = [{"a": 1.0}, {"a": 2.0}, {"a": 3.0}]

    def renewed(*asked):
        found = core._renewed(rows, *asked)
        rows.pop()
        return found

    assert core._CORE.read(rows, 16, renewed) is None


def test_threads_that_change_rows_meanwhile_never_move_a_value_to_another_key():
    rows = [{"a": "a", "b": "b", "c": "c"} for _ in range(30_000)]
    done = threading.Event()

    def meddle(start):
        while not done.is_set():
            for row in rows[start::7]:
                swaps(row)
                row.pop("late", None)
                row["b"] = "b"

    threads = [threading.Thread(target=meddle, args=(start,)) for start in range(2)]
    for thread in threads:
        thread.start()
    came_out, until = 0, monotonic() + 3
    try:
        while monotonic() < until:
            with suppress(RowError):
                columns = assemble_reward_extra_info(rows)
                came_out += 1
                for key, column in columns.items():
                    assert set(column.tolist()) <= {key, None}
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert came_out


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers")
def test_ctrl_c_is_heard_while_rows_are_read():
    rows = [{str(key): 0.5 for key in range(20)}] * 4_000_000 + [{"last": 1.0}]
    cell = np.empty(1)
    ends = []

    def renewed(kind, *_):
        if kind != "d":
            ends.append(kind)
            raise AssertionError("the last row was read")
        return cell, cell.__array_interface__["data"][0], 0  # all into one cell: so many values are not to be kept

    def interrupted(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupted)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            core._CORE.read(rows, 16, renewed)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not ends


# --- references ------------------------------------------------------------------------------------------------------


def many_rows(number):
    """Rows of every kind of column, and all objects that they hold once."""
    objects = {name: name + "-" * 40 for name in ("long", "sometimes")}
    objects |= {"float": 12345.5, "int": 10**12, "huge": 10**30, "text": "short text", "list": [1], "late": object()}
    keys = {name: "".join([*name]) for name in (*objects, "bool", "none")}
    rows = []
    for row in range(number):
        held = {keys[name]: objects[name] for name in objects if name not in ("late", "sometimes")}
        held |= {keys["bool"]: row % 2 == 0, keys["none"]: None}
        if row % 3 == 0:
            held[keys["sometimes"]] = objects["sometimes"]
        if row > number // 2:
            held[keys["late"]] = objects["late"]
        rows.append(held)
    return rows, [*objects.values(), *keys.values(), None, True, False, float, int, str, list, object]


def counts(objects):
    return [sys.getrefcount(one) for one in objects]


def test_references_are_even_after_a_million_rows():
    rows, objects = many_rows(20_000)
    before = counts(objects)
    for _ in range(50):
        assemble_reward_extra_info(rows)
    after = counts(objects)
    # What the interpreter itself does with None and small objects meanwhile moves their counts by a few.
    assert all(abs(one - two) < 50 for one, two in zip(before, after, strict=True)), (before, after)


@pytest.mark.parametrize("rows", [[{"a": 1.0}, {"b": 5}, 7], [{"a": "x"}, {"a": 1.5}, {7: 1}]], ids=repr)
def test_references_are_even_where_the_rows_are_left_to_python(rows):
    objects = [*rows, *(part for row in rows if type(row) is dict for item in row.items() for part in item)]
    before = counts(objects)
    for _ in range(1000):
        assert core.read_columns(rows, 16) is None
    assert all(abs(one - two) < 50 for one, two in zip(before, counts(objects), strict=True))


@pytest.mark.parametrize("answer", [None, (), (1, 2), (None, "x", 1), 5, MemoryError], ids=repr)
@pytest.mark.parametrize("at", [1, 2, 5, 9, 10, 11, 12, 14, 17])
def test_an_error_on_the_way_is_raised_and_keeps_nothing(answer, at):
    rows, objects = many_rows(30)
    before = counts(objects)
    for _ in range(100):
        arrays = 0

        def renewed(*asked):
            nonlocal arrays
            arrays += 1
            if arrays < at:
                return core._renewed(rows, *asked)
            if answer is MemoryError:
                raise MemoryError
            return answer

        if answer is None:
            core._CORE.read(rows, 16, renewed)
        else:
            with suppress(MemoryError, TypeError, SystemError):
                core._CORE.read(rows, 16, renewed)
    assert all(abs(one - two) < 50 for one, two in zip(before, counts(objects), strict=True))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
def test_resident_memory_is_flat_over_repeats():
    rows, _ = many_rows(2000)
    rows[-1] = {"own": "keys"}

    def resident():
        gc.collect()
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

    for _ in range(100):
        assemble_reward_extra_info(rows)
    before = resident()
    for _ in range(400):
        assemble_reward_extra_info(rows)
    assert resident() - before < 2048  # KiB; one kept array of each would be 60 MiB


# --- which one runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "says"), [("1", "pure Python: VERL_EXT_PURE=1"), ("", "the compiled core")])
def test_which_version_runs_is_decided_by_the_environment(value, says):
    env = {**os.environ, core.PURE: value, "PYTHONPATH": os.pathsep.join(sys.path)}
    code = "from verl_ext import core; print(core.VERSION)"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == says


def test_without_a_gil_and_without_the_core_python_reads_the_rows(monkeypatch):
    monkeypatch.delenv(core.PURE, raising=False)
    assert core._chosen()[0] is not None
    with monkeypatch.context() as patch:
        patch.setattr("sysconfig.get_config_var", lambda name: name == "Py_GIL_DISABLED")
        assert core._chosen() == (None, "pure Python: this one has no GIL")
    with monkeypatch.context() as patch:
        patch.setattr(core, "import_module", partial(__import__, "no_such_module"))
        assert core._chosen() == (None, "pure Python: no core was compiled when verl-ext was installed")
