"""What is kept of the rows: as a plain count over all of them says it, and never more than the bound."""

import math
import re
import tracemalloc
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.report import summary
from verl_ext.report.kinds import named
from verl_ext.report.summary import MOST_KEYS, MOST_PLACES, OTHER, UNSPLIT, Dump
from verl_ext.report.text import kept, visible
from verl_ext.report.values import MOST_VALUES, Values

NUMBERS = st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False, width=32)
VALUES = st.none() | NUMBERS | st.sampled_from(["a", "b", ""]) | st.lists(st.none(), max_size=1) | st.just({})
ROWS = st.lists(
    st.dictionaries(st.sampled_from(["acc", "pred", "score", "ключ", "data_source"]), VALUES, max_size=5), max_size=12
)


def summed(rows, step=1, **kwargs):
    dump = Dump("rollout", "data_source", **kwargs)
    for row in rows:
        dump.add(row, step)
    dump.settle()
    return dump


@given(steps=st.lists(ROWS, max_size=5))
def test_counts_moments_and_types_are_those_of_the_rows(steps):
    dump = Dump("rollout", None)
    for step, rows in enumerate(steps):
        for row in rows:
            dump.add(row, step)
    dump.settle()
    rows = [row for step in steps for row in step]
    assert dump.rows == len(rows)
    assert set(dump.keys) == {key for row in rows for key in row}
    for key in dump.keys:
        values = [row[key] for row in rows if row.get(key) is not None]
        numbers = [float(value) for value in values if isinstance(value, bool | int | float)]
        total = dump.total(key)
        assert total.present == len(values)
        assert total.numbers.count == len(numbers)
        assert set(named(total.kinds)) == {
            {"str": "text"}.get(type(value).__name__, type(value).__name__) for value in values
        }
        if numbers:
            near = 1e-6 * max(map(abs, numbers))
            assert math.isclose(total.numbers.mean, sum(numbers) / len(numbers), rel_tol=1e-9, abs_tol=near)
            assert (total.numbers.low, total.numbers.high) == (min(numbers), max(numbers))
        texts = Counter(value for value in values if isinstance(value, str))
        assert dict(dump.keys[key].commonest(9)) == texts
    for span in dump.spans:
        here = steps[span.first]
        assert span.rows == len(here)
        assert {key: span.cell(key).present for key in dump.keys} == {
            key: sum(row.get(key) is not None for row in here) for key in dump.keys
        }


@given(steps=st.lists(ROWS, min_size=1, max_size=12), most=st.integers(1, 20))
def test_steps_that_are_put_together_keep_the_sums(steps, most):
    whole, few = Dump("rollout", None), Dump("rollout", None, most_cells=most)
    for step, rows in enumerate(steps):
        for dump in (whole, few):
            for row in rows:
                dump.add(row, step)
            dump.settle()
    assert few.step_numbers == whole.step_numbers
    assert [span.first for span in few.spans] == sorted(span.first for span in few.spans)
    assert len(few.spans) <= max(1, most)
    for key in whole.keys:
        assert few.total(key).present == whole.total(key).present


def test_nan_is_a_value_or_missing_as_is_wanted():
    rows = [{"acc": float("nan")}, {"acc": 1.0}]
    kept, left = summed(rows).total("acc"), summed(rows, nan_is_missing=True).total("acc")
    assert (kept.present, left.present, left.numbers.mean) == (2, 1, 1.0)
    assert math.isnan(kept.numbers.mean)


def test_numbers_beyond_float64_and_infinite_ones_are_no_error():
    huge = summed([{"acc": value} for value in (10**400, -1e308, 1e308, float("inf"), 1)])
    more = summed([{"acc": 1e300}] * 2, step=2)
    assert (huge.total("acc") + more.total("acc")).numbers.high == math.inf


def test_the_step_of_a_row_counts_where_the_file_says_none():
    dump = summed([{"step": 3, "acc": 1}, {"step": 2, "acc": 1}, {"acc": 1}, {"step": "x"}], step=None)
    assert [(span.name, span.rows) for span in dump.spans] == [("no step", 2), ("2", 1), ("3", 1)]


def test_fields_that_verl_writes_itself_are_not_described():
    assert list(summed([dict.fromkeys([*UNSPLIT, "score"], 1)]).keys) == ["score"]


# --- the bound -------------------------------------------------------------------------------------------------------


def test_places_beyond_the_bound_are_one():
    dump = summed([{"data_source": f"place {number}"} for number in range(100)] + [{}])
    assert len(dump.places) == MOST_PLACES + 1
    assert dump.places[OTHER].rows == 100 - MOST_PLACES
    assert dump.unplaced == 1


def test_keys_beyond_the_bound_are_counted():
    dump = summed([{f"key {number}": number for number in range(10_000)}] * 2)
    assert len(dump.keys) == MOST_KEYS
    assert dump.further_keys == (9_000, False)
    assert dump.further == 18_000


def test_a_long_key_is_kept_short_and_apart_from_its_like():
    long = "k" * 1_000_000
    dump = summed([{long: 1, long + "!": 2, "\ud800": 3}])
    assert len(dump.keys) == 3
    assert all(len(key) < 200 for key in dump.keys)
    assert all(key.encode() for key in dump.keys)
    assert next(iter(dump.keys)).startswith("kkkk")


@pytest.mark.parametrize(
    ("text", "starts", "kept_whole"),
    [
        ("short", "short", True),
        ("\ud800", "\\ud800 #", False),
        ("k" * 5_000, "kkkk", False),
        ("\ud800" * 5_000, "\\ud", False),
    ],
)
def test_a_text_that_is_not_kept_whole_ends_in_a_digest_which_stays_whole_where_it_is_cut(text, starts, kept_whole):
    whole, cut = kept(text), visible(kept(text), 24)
    assert whole.startswith(starts)
    assert (whole == text) == kept_whole
    if not kept_whole:
        assert re.search(r" #[0-9a-f]{8}$", whole)
        assert cut[-10:] == whole[-10:]
        assert (" characters)" in whole) == (len(text) > 120)


@given(st.lists(st.sampled_from([*"abcdefg", *map(str, range(200))]), max_size=2_000))
def test_a_common_value_is_found_among_any_others(texts):
    values = Values()
    for text in texts + ["common"] * (len(texts) // 30 + 1):
        values.add(text)
    found = dict(values.commonest(MOST_VALUES))
    counts = Counter(texts + ["common"] * (len(texts) // 30 + 1))
    assert len(found) <= MOST_VALUES
    assert all(counts[text] - values.missed <= count <= counts[text] for text, count in found.items())
    assert {text for text, count in counts.items() if count > counts.total() / 32 + 1} <= set(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "rows"),
    [
        ("keys", lambda step: [{f"key {step} {number}": number for number in range(1_000)}] * 3),
        ("long keys", lambda step: [{f"{'k' * 100_000} {step} {number}": 1 for number in range(20)}]),
        ("long texts", lambda step: [{"pred": f"{'x' * 100_000} {step} {number}"} for number in range(10)]),
        ("places", lambda step: [{"data_source": f"{'x' * 1_000} {step} {number}", "acc": 1} for number in range(50)]),
        ("steps", lambda step: [{"step": 100 * step + number, "acc": 1} for number in range(100)]),
    ],
    ids=["keys", "long keys", "long texts", "places", "steps"],
)
def test_memory_does_not_grow_with_what_there_is_more_of(what, rows, monkeypatch):
    monkeypatch.setattr(summary, "_MOST_FURTHER", 1_000)

    def memory(dump, steps):
        for step in steps:
            for row in rows(step):
                dump.add(row)
            dump.settle()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        dump = Dump("rollout", "data_source", most_cells=1_500)
        early = memory(dump, range(60))
        late = memory(dump, range(60, 180))
    finally:
        tracemalloc.stop()
    assert late < 1.3 * early + 200_000
