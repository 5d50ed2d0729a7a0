"""Metrics of reward keys over a run, against the plainest computation there is."""

import math
import re
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_ext import NotNumericError, assemble_reward_extra_info, numeric, present
from verl_ext.reward_metrics import RewardMetrics, Step, Summary

# --- numeric and present ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "values", "mask"),
    [
        (np.array([1.5, 2.5]), [1.5, 2.5], [True, True]),
        (np.array([True, False]), [1.0, 0.0], [True, True]),
        (np.array([1, 2], dtype=np.int8), [1.0, 2.0], [True, True]),
        (np.array([None, 1, True, 0.5], dtype=object), [math.nan, 1.0, 1.0, 0.5], [False, True, True, True]),
        ([None, np.float32(0.5), torch.tensor(2), np.array(3)], [math.nan, 0.5, 2.0, 3.0], [False, True, True, True]),
        (np.array([None, None], dtype=object), [math.nan] * 2, [False, False]),
        ([10**400, -(10**400), None], [math.inf, -math.inf, math.nan], [True, True, False]),
        ([], [], []),
    ],
)
def test_numeric_gives_float64_with_nan_where_a_value_is_missing_and_says_where_one_is(column, values, mask):
    found, where = numeric(column)
    assert (found.dtype, where.dtype) == (np.float64, bool)
    np.testing.assert_array_equal(found, values)
    assert where.tolist() == mask
    assert present(column).tolist() == mask


@pytest.mark.parametrize(
    "value",
    ["1.0", [1.0], {"a": 1}, b"1", 1j, np.array([1.0]), torch.ones(2), np.timedelta64(3, "s"), np.timedelta64(3)],
)
def test_numeric_refuses_what_is_no_number_and_names_the_row_and_the_column(value):
    column = np.empty(3, dtype=object)
    column[1], column[2] = 1.0, value
    with pytest.raises(NotNumericError, match="row 2 of the column 'judge' is a "):
        numeric(column, "judge")
    assert present(column).tolist() == [False, True, True]


def test_numeric_refuses_dense_text_and_columns_of_arrays():
    with pytest.raises(NotNumericError, match="row 0 of the column is a str"):
        numeric(np.array(["a", "b"]))
    with pytest.raises(NotNumericError, match="row 0 of the column is a ndarray"):
        numeric(np.ones((2, 3)))


@pytest.mark.parametrize("value", [3.0, None, np.array(1.0), iter([1.0])])
@pytest.mark.parametrize("ask", [numeric, present])
def test_what_is_no_column_is_refused_by_what_it_is(ask, value):
    with pytest.raises(NotNumericError, match="is no column, which is an array or a list"):
        ask(value)


# --- summaries -------------------------------------------------------------------------------------------------------

finite = st.floats(-1e6, 1e6)


@given(st.lists(st.lists(finite | st.none(), max_size=8), max_size=6))
def test_the_summaries_of_steps_add_up_to_that_of_all_their_samples_whatever_the_split(steps):
    def summary(values):
        return Summary.of(np.array([value for value in values if value is not None]), len(values))

    found = sum((summary(values) for values in steps), Summary(0)).metrics("key")
    everything = summary([value for values in steps for value in values]).metrics("key")
    assert found.keys() == everything.keys()
    for name, value in everything.items():
        assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-6)


any_finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.lists(any_finite, min_size=1, max_size=8), min_size=1, max_size=6))
def test_the_mean_and_the_deviation_are_right_up_to_the_largest_float(steps):
    values = [Fraction(value) for values in steps for value in values]
    mean = sum(values) / len(values)
    with localcontext() as exact:
        exact.prec = 60
        variance = sum((value - mean) ** 2 for value in values) / len(values)
        std = float((Decimal(variance.numerator) / Decimal(variance.denominator)).sqrt())
    largest = max(map(abs, values))
    for found in (
        Summary.of(np.array([value for values in steps for value in values]), len(values)),
        sum((Summary.of(np.array(values), len(values)) for values in steps), Summary(0)),
    ):
        assert found.mean == pytest.approx(float(mean), rel=1e-9, abs=float(largest) * 1e-9 + 1e-300)
        assert found.std == pytest.approx(std, rel=1e-7, abs=float(largest) * 1e-7 + 1e-300)


@pytest.mark.parametrize("values", [[math.inf, 1.0], [1.0, math.inf], [math.inf, math.inf], [-math.inf, math.inf]])
def test_a_sum_with_infinities_has_the_mean_that_all_values_together_have(values):
    apart = merged_one_by_one(values).metrics("key")["key/mean"]
    with np.errstate(invalid="ignore"):
        np.testing.assert_equal(apart, float(np.mean(values)))


def merged_one_by_one(values):
    total = Summary(0)
    for value in values:
        total = total + Summary.of(np.array([value]), 1)
    return total


def test_a_sum_shows_nan_and_infinity_of_either_side():
    odd = Summary.of(np.array([math.nan, 1.0]), 2) + Summary.of(np.array([2.0]), 1)
    assert math.isnan(odd.metrics("key")["key/mean"])
    assert math.isnan(odd.metrics("key")["key/max"])
    endless = Summary.of(np.array([math.inf, 1.0]), 2).metrics("key")
    assert endless["key/mean"] == endless["key/max"] == math.inf
    assert endless["key/min"] == 1.0


# --- a run -----------------------------------------------------------------------------------------------------------


def steps_of(run, *batches, sources=None):
    """The metrics of each step: a batch is its samples' reward dicts."""
    found = []
    for number, rows in enumerate(batches):
        columns = assemble_reward_extra_info(rows)
        found.append(run.step(columns, None if sources is None else sources[number], len(rows)))
    return found


def test_a_uniform_run_logs_nothing():
    assert steps_of(RewardMetrics(), [{"acc": 1.0}] * 3, [{"acc": 0.0}] * 2) == [{}, {}]


def test_a_key_that_a_sample_lacked_is_logged_from_then_on_in_every_step_without_holes():
    first, second, third = steps_of(
        RewardMetrics(), [{"acc": 1.0, "len": 3}, {"acc": 0.0}], [{"acc": 1.0, "len": 5}] * 2, [{"acc": 1.0}]
    )
    assert first == {
        "reward_extra/len/mean": 3.0,
        "reward_extra/len/std": 0.0,
        "reward_extra/len/min": 3.0,
        "reward_extra/len/max": 3.0,
        "reward_extra/len/count": 1.0,
        "reward_extra/len/coverage": 0.5,
    }
    assert (second["reward_extra/len/mean"], second["reward_extra/len/coverage"]) == (5.0, 1.0)
    assert third == {"reward_extra/len/count": 0.0, "reward_extra/len/coverage": 0.0}


def test_a_key_that_comes_later_was_lacked_by_the_samples_before():
    _, second = steps_of(RewardMetrics(), [{"acc": 1.0}], [{"acc": 1.0, "new": True}])
    assert second["reward_extra/new/mean"] == 1.0
    assert not any(name.startswith("reward_extra/acc") for name in second)


def test_all_logs_every_numeric_key_and_off_none():
    rows = [{"acc": True, "judge": "good"}, {"acc": False, "judge": "bad"}]
    (every,) = steps_of(RewardMetrics("all"), rows)
    assert {name.split("/")[1] for name in every} == {"acc"}
    assert every["reward_extra/acc/mean"] == 0.5
    assert every["reward_extra/acc/std"] == 0.5
    assert steps_of(RewardMetrics("off"), [*rows, {}]) == [{}]


def test_with_several_data_sources_in_the_run_each_has_its_own_from_then_on():
    rows = [{"acc": 1.0, "pred_len": 4}, {"acc": 0.0}, {"acc": 1.0}]
    first, second = steps_of(
        RewardMetrics(), rows, [{"acc": 1.0}] * 2, sources=[["dapo", "gsm8k", "gsm8k"], ["gsm8k"] * 2]
    )
    assert first["reward_extra/dapo/pred_len/coverage"] == 1.0
    assert first["reward_extra/gsm8k/pred_len/coverage"] == 0.0
    assert first["reward_extra/pred_len/coverage"] == pytest.approx(1 / 3)
    assert "reward_extra/gsm8k/pred_len/mean" not in first
    assert second["reward_extra/dapo/pred_len/count"] == 0.0
    (alone,) = steps_of(RewardMetrics(), rows, sources=[["gsm8k"] * 3])
    assert not any("gsm8k" in name for name in alone)


def test_an_explicit_none_and_a_key_that_was_never_there_are_no_samples_that_have_it():
    (found,) = steps_of(RewardMetrics(), [{"judge": None, "acc": 1.0}, {"judge": 2.0, "acc": 1.0}])
    assert found["reward_extra/judge/count"] == 1.0
    assert steps_of(RewardMetrics(), [{"judge": None}]) == [{}], "a key without any value is of no known kind"


def test_keys_that_are_no_numbers_are_left_out_and_one_that_stops_to_be_one_is_said():
    said = {}
    run = RewardMetrics("all", warn=said.__setitem__)
    first, second, third = steps_of(run, [{"len": 3, "text": "a", "list": [1]}], [{"len": "three"}], [{"len": 4}])
    assert {name.split("/")[1] for name in first} == {"len"}
    assert second == {"reward_extra/len/count": 0.0, "reward_extra/len/coverage": 0.0}, "no series has a hole"
    assert third["reward_extra/len/mean"] == 4.0
    ((what, message),) = said.items()
    assert what == ("kind", "len")
    assert "the reward key 'len', a number before, is none in some samples: row 0 of the column 'len'" in message
    assert "('three'), not a number. It counts as missing" in message


def test_the_numbers_among_values_that_are_none_are_averaged():
    _, second = steps_of(RewardMetrics("all"), [{"len": 3}], [{"len": "three"}, {"len": 5}])
    assert (second["reward_extra/len/mean"], second["reward_extra/len/count"]) == (5.0, 1.0)


def test_a_key_that_begins_after_a_step_was_lacked_even_if_a_step_without_samples_came_between():
    *_, last = steps_of(RewardMetrics(), [{"acc": 1.0}], [], [{"acc": 1.0, "new": 2.0}])
    assert last["reward_extra/new/mean"] == 2.0


def test_a_key_of_a_step_without_samples_has_no_coverage():
    assert Summary(0).metrics("key") == {"key/count": 0.0, "key/coverage": 0.0}


@pytest.mark.parametrize(("nan_is_missing", "count"), [(False, 2.0), (True, 1.0)])
def test_nan_is_a_value_or_missing_and_is_named_once_with_its_data_source(nan_is_missing, count):
    said = []
    run = RewardMetrics("all", nan_is_missing=nan_is_missing, warn=lambda what, message: said.append((what, message)))
    rows = [{"judge": math.nan}, {"judge": 1.0}]
    first, _ = steps_of(run, rows, rows, sources=[["dapo", "gsm8k"]] * 2)
    assert first["reward_extra/judge/count"] == count
    assert math.isnan(first["reward_extra/judge/mean"]) != nan_is_missing
    assert {what for what, _ in said} == {("NaN", "judge")}, "who warns once per subject warns once"
    assert "'judge' is NaN for a sample of data source 'dapo'" in said[0][1]


def test_infinity_is_named_likewise_beside_nan_and_an_integer_beyond_float64_is_one():
    said = []
    (found,) = steps_of(
        RewardMetrics("all", nan_is_missing=True, warn=lambda what, message: said.append(message)),
        [{"judge": math.nan}, {"judge": 10**400}],
    )
    assert found["reward_extra/judge/mean"] == math.inf
    assert "'judge' is NaN for a sample; it counts as missing" in said[0]
    assert "'judge' is infinite for a sample; it counts as a value" in said[1]


def test_the_shares_of_a_text_keys_commonest_values_are_logged_where_they_are_asked_for():
    run = RewardMetrics(texts=["judge"])
    first, second = steps_of(run, [{"judge": "good"}, {"judge": "good"}, {"judge": "bad"}, {}], [{"judge": "bad"}])
    assert first == {
        "reward_extra/judge/count": 3.0,
        "reward_extra/judge/coverage": 0.75,
        "reward_extra/judge/share/good": pytest.approx(2 / 3),
        "reward_extra/judge/share/bad": pytest.approx(1 / 3),
    }
    assert (second["reward_extra/judge/share/good"], second["reward_extra/judge/share/bad"]) == (0.0, 1.0)


def test_of_many_values_the_commonest_of_the_first_step_have_shares_of_their_own_and_the_others_one():
    def rows(most):
        return [{"judge": f"value {19 - number:02}"} for number in range(20) for _ in range(most - number)]

    run = RewardMetrics(texts=["judge"])
    first, second = steps_of(run, rows(30), [{"judge": "new"}, {"judge": "value 19"}, {"judge": "value 00"}, {}])
    named = {f"reward_extra/judge/share/value {19 - number:02}": (30 - number) / 410 for number in range(16)}
    shares = {name: share for name, share in first.items() if "/share/" in name}
    assert shares == pytest.approx({**named, "reward_extra/judge/share/(other)": (14 + 13 + 12 + 11) / 410})
    assert second["reward_extra/judge/share/(other)"] == pytest.approx(2 / 3)
    assert second["reward_extra/judge/share/value 19"] == pytest.approx(1 / 3)


def test_values_that_come_as_often_are_taken_by_the_alphabet_and_each_key_has_its_own():
    run = RewardMetrics(texts=["judge", "style"])
    rows = [{"judge": letter, "style": letter.upper()} for letter in "zyxwvutsrqponmlkjihgfedcba"]
    (found,) = steps_of(run, rows)
    for key, letters in {"judge": "abcdefghijklmnop", "style": "ABCDEFGHIJKLMNOP"}.items():
        shares = [name.rpartition("/")[2] for name in found if name.startswith(f"reward_extra/{key}/share/")]
        assert shares == [*letters, "(other)"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("good", r"good"),
        ("x" * 40, r"x{40}"),
        ("x" * 41, r"x{30} #[0-9a-f]{8}"),
        ("a/b", r"a_b #[0-9a-f]{8}"),
        ("a\nb", r"a\\nb #[0-9a-f]{8}"),
    ],
)
def test_a_value_is_named_by_itself_or_by_its_beginning_and_a_digest(text, name):
    (found,) = steps_of(RewardMetrics(texts=["judge"]), [{"judge": text}])
    (share,) = [metric for metric in found if "/share/" in metric]
    assert re.fullmatch(f"reward_extra/judge/share/{name}", share)


@pytest.mark.parametrize(("values", "is_said"), [([1.0, 2.0], True), (["a", 1.0], False), ([None, None], False)])
def test_a_text_key_whose_values_are_no_text_is_said(values, is_said):
    said = {}
    run = RewardMetrics(texts=["judge"], warn=said.__setitem__)
    steps_of(run, [{"judge": value} for value in values])
    message = "text_metrics names 'judge', whose values are no text: only text counts"
    assert said == ({("text", "judge"): message} if is_said else {})


def test_text_that_a_model_wrote_makes_neither_long_nor_many_nor_hostile_names():
    rows = [{"judge": f"{'x' * 50_000}{number}/\x1b[31m\n"} for number in range(500)]
    (found,) = steps_of(RewardMetrics(texts=["judge"]), [*rows, *[{"judge": "\x1b[2J/etc"}] * 9])
    assert len(found) < 25
    assert all(len(name) < 100 and name.isprintable() for name in found)
    shares = [value for name, value in found.items() if "/share/" in name]
    assert sum(shares) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("rows", "sources"),
    [
        ([{"b/acc": 1.0, "a/b/acc": 3.0}], ["a", "b"]),
        ([{"a/b/acc": 3.0, "b/acc": 1.0}], ["a", "b"]),
        ([{3: 1.0, "3": 3.0}], None),
        ([{f"{'x' * 90}1": 1.0, f"{'x' * 90}2": 3.0}], None),
        ([{"line\nbreak": 1.0, r"line\nbreak": 3.0}], None),
    ],
)
def test_two_series_that_would_have_one_name_have_two_in_every_step(rows, sources):
    run = RewardMetrics("all")
    columns = {key: np.array([value] * 2) for key, value in rows[0].items()}
    first, second = (run.step(columns, sources, 2) for _ in range(2))
    assert first == second
    means = [value for name, value in first.items() if name.endswith("/mean")]
    assert sorted(means) == sorted([1.0, 3.0] * (3 if sources else 1))
    assert len({name.rpartition("/")[0] for name in first}) == len(means)


def test_a_series_keeps_its_name_where_another_of_that_name_comes_later():
    first, second = steps_of(
        RewardMetrics("all"), [{"b": 1.0}] * 2, [{"b": 1.0, "a/b": 3.0}] * 2, sources=[["a", "c"]] * 2
    )
    assert first["reward_extra/a/b/mean"] == second["reward_extra/a/b/mean"] == 1.0
    (clash,) = [name for name in second if re.fullmatch("reward_extra/a/b #.{8}/mean", name)]
    assert second[clash] == 3.0


@pytest.mark.parametrize("what", ["key", "data source"])
def test_long_names_with_a_common_beginning_are_cut_and_end_in_a_digest(what):
    long = [f"{'judged/by/' * 9}{number}" for number in range(3)]
    if what == "key":
        (found,) = steps_of(RewardMetrics("all"), [{name: number for number, name in enumerate(long)}])
    else:
        (found,) = steps_of(RewardMetrics("all"), [{"acc": number} for number in range(3)], sources=[long])
    named = {name: mean for name, mean in found.items() if re.match("reward_extra/judged.*/mean$", name)}
    assert sorted(named.values()) == [0.0, 1.0, 2.0]
    assert all(re.fullmatch(r"reward_extra/[a-z/]{70} #[0-9a-f]{8}(/acc)?/mean", name) for name in named)


def test_a_text_value_that_is_named_as_the_rest_or_as_a_moment_has_its_own_share():
    rows = [{"judge": text} for text in ["(other)", "mean", "count", *map(str, range(17))] for _ in range(2)]
    (step,) = steps_of(RewardMetrics(texts=["judge"]), rows)
    shares = {name.rpartition("/")[2]: share for name, share in step.items() if "/share/" in name}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert len(shares) == 17
    (own,) = [share for label, share in shares.items() if re.fullmatch(r"\(other\) #.{8}", label)]
    assert (own, shares["(other)"]) == (2 / 40, pytest.approx(8 / 40))
    taken = steps_of(RewardMetrics(texts=["judge"]), [{"judge": "mean", "judge/share": 3.0}, {"judge": "mean"}])[0]
    assert taken["reward_extra/judge/share/mean"] == 3.0, "the mean of a key"
    assert [share for name, share in taken.items() if re.search("share/mean #.{8}$", name)] == [1.0]


def test_a_tensor_without_a_value_is_no_number_and_ends_no_step():
    values = np.fromiter([torch.empty((), device="meta"), 1.0], dtype=object)
    assert RewardMetrics("all").step({"odd": values, "acc": np.array([1.0, 2.0])}, None, 2).keys() == {
        f"reward_extra/acc/{name}" for name in ("mean", "std", "min", "max", "count", "coverage")
    }


def test_a_key_that_every_sample_has_is_not_sparse_where_its_values_were_text_before():
    *_, last = steps_of(RewardMetrics(), [{"len": "three"}], [{"len": 3}])
    assert last == {}
    said = []
    run = RewardMetrics(warn=lambda what, message: said.append(message))
    assert steps_of(run, [{"len": "three"}], [{"len": 3}], [{"len": "four"}], [{"len": 4}, {"len": "4"}]) == [{}] * 4
    assert not said, "nothing is logged that could surprise"
    *_, late = steps_of(run, [{"len": 5}, {"len": "four"}, {}])
    assert (late["reward_extra/len/count"], late["reward_extra/len/mean"]) == (1.0, 5.0)
    _, second, third = steps_of(RewardMetrics(), [{"len": "three"}, {}], [{"len": 3}], [{}])
    assert second["reward_extra/len/mean"] == 3.0
    assert third["reward_extra/len/coverage"] == 0.0


rewards = st.dictionaries(st.sampled_from("abc"), st.floats(-9, 9) | st.booleans() | st.none(), max_size=3)


@given(st.lists(st.lists(st.tuples(st.sampled_from(["x", "y"]), rewards), min_size=1, max_size=6), max_size=4))
def test_every_step_is_what_the_plainest_computation_finds_and_no_series_has_a_hole(steps):
    run, begun = RewardMetrics("all"), set()
    for step in steps:
        rows, sources = [row for _, row in step], [source for source, _ in step]
        found = run.step(assemble_reward_extra_info(rows), sources, len(rows))
        series = {name.rpartition("/")[0] for name in found}
        assert begun <= series
        begun |= series
        for key in {key for row in rows for key in row}:
            values = [float(row[key]) for row in rows if row.get(key) is not None]
            if values:
                assert found[f"reward_extra/{key}/count"] == len(values)
                assert found[f"reward_extra/{key}/coverage"] == pytest.approx(len(values) / len(rows))
                assert found[f"reward_extra/{key}/mean"] == pytest.approx(np.mean(values))
                assert found[f"reward_extra/{key}/std"] == pytest.approx(np.std(values), abs=1e-7)
        assert run.logged(run.take()) == found


@given(
    st.lists(st.lists(st.tuples(st.sampled_from(["x", "y"]), rewards), min_size=1, max_size=6), min_size=1, max_size=4)
)
def test_several_steps_logged_as_one_are_one_step_of_all_their_samples(steps):
    def step(run, rows):
        columns = assemble_reward_extra_info([row for _, row in rows])
        return run.step(columns, [source for source, _ in rows], len(rows))

    several, one = RewardMetrics(), RewardMetrics()
    taken = [several.take() for rows in steps if step(several, rows) is not None]
    expected = step(one, [row for rows in steps for row in rows])
    total = several.logged(sum(taken, Step()))
    assert expected.keys() == total.keys()
    for name, value in expected.items():
        assert total[name] == pytest.approx(value, abs=1e-6)


def test_several_steps_weigh_the_shares_of_text_by_who_has_the_key_also_before_a_value_was_known():
    run = RewardMetrics(texts=["judge"])
    taken = []
    for texts in (["good"] * 3, ["bad", None], [None]):
        steps_of(run, [{} if text is None else {"judge": text} for text in texts])
        taken.append(run.take())
    assert run.logged(sum(taken, Step())) == {
        "reward_extra/judge/count": 4.0,
        "reward_extra/judge/coverage": pytest.approx(4 / 6),
        "reward_extra/judge/share/good": 0.75,
        "reward_extra/judge/share/bad": 0.25,
    }
