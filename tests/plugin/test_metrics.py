"""`process_validation_metrics`: verl's own numbers where all samples have a key, and the rest beside them."""

import inspect
import logging
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from verl_ext import plugin
from verl_ext.plugin import _site


@pytest.fixture(scope="module")
def ours():
    plugin.activate()
    from verl.trainer.ppo import metric_utils

    return lambda *args, **kwargs: metric_utils.process_validation_metrics(*args, **kwargs)


@pytest.fixture(scope="module")
def stock(ours):
    from verl.trainer.ppo import metric_utils

    return metric_utils.process_validation_metrics.__wrapped__


@pytest.fixture(autouse=True)
def fresh_warnings(monkeypatch):
    monkeypatch.setattr(_site, "_warned", set())


def plain(result):
    return {source: {key: dict(metrics) for key, metrics in by_key.items()} for source, by_key in result.items()}


NUMBERS = st.one_of(st.booleans(), st.integers(-5, 5), st.floats(-2, 2), st.just(float("nan")))


@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_keys_that_every_sample_has_are_verls_own_numbers_bit_for_bit(data, ours, stock):
    prompts = data.draw(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 3)), min_size=1, max_size=3))
    sources = [source for source, count in prompts for _ in range(count)]
    uids = [f"p{number}" for number, (_, count) in enumerate(prompts) for _ in range(count)]
    rows = len(sources)
    dense = {
        "acc": data.draw(st.lists(NUMBERS, min_size=rows, max_size=rows)),
        "pred": data.draw(st.lists(st.sampled_from(["x", "y"]), min_size=rows, max_size=rows)),
    }
    sparse = {"late": [None, *[1.0] * (rows - 1)], "odd": [{"a": 1}] * rows}
    expected = plain(stock(sources, uids, dense))
    assert repr(plain(ours(sources, uids, dense))) == repr(expected)
    beside = plain(ours(sources, uids, {**dense, **sparse}))
    for source, by_key in expected.items():
        assert repr(beside[source]["acc"]) == repr(by_key["acc"])


def test_a_sparse_key_is_averaged_over_those_that_have_it_and_named_by_the_number_of_responses(ours):
    metrics = ours(["s"] * 4, ["u", "u", "v", "v"], {"acc": [1, 1, 0, None]})["s"]["acc"]
    assert metrics["mean@2"] == 0.5
    assert not [name for name in metrics if "@1" in name]
    assert metrics["std@2"] == 0.0
    assert metrics["best@2/mean"] == 0.5


def test_best_worst_and_majority_draw_from_the_values_that_are_there(ours):
    values = [0.0, None, 1.0, None, 1.0, None, None, None]
    preds = ["a", "b", "c", "d", "c", None, "e", "f"]
    metrics = ours(["s"] * 8, ["u"] * 8, {"acc": values, "pred": preds})["s"]["acc"]
    assert metrics["mean@8"] == pytest.approx(2 / 3)
    assert metrics["std@8"] == pytest.approx(np.std([0.0, 1.0, 1.0]))
    assert [name for name in metrics if name.startswith("best") and name.endswith("mean")] == [
        f"best@{size}/mean" for size in (2, 4, 8)
    ]
    assert metrics["best@8/mean"] > 0.95 > 0.05 > metrics["worst@8/mean"]
    assert metrics["maj@8/mean"] > 0.5


def test_a_data_source_where_nobody_has_the_key_has_no_entry(ours):
    result = ours(["a", "a", "b"], ["u", "u", "v"], {"reward": [1, 0, 1], "score": [None, None, 1.0]})
    assert list(result["a"]) == ["reward"]
    assert result["b"]["score"] == {"mean@1": 1.0}


@pytest.mark.parametrize(
    "values",
    [
        [42, "none"],
        ["none", 42],
        [[1], [2]],
        [{"a": 1}, 1.0],
        [1.0, [1]],
        [1.0, b"x"],
        [1j, 1j],
        [None, (1,)],
        [10**400, None],
        [10**308, 10**308],
        [np.timedelta64(3, "s")] * 2,
        [np.timedelta64(3), None],
        [Fraction(1, 2), 1],
    ],
    ids=repr,
)
def test_a_key_that_is_no_number_everywhere_is_left_out_with_one_warning(values, ours, caplog):
    caplog.set_level(logging.WARNING, logger="verl_ext")
    for _ in range(2):
        result = ours(["s"] * 2, ["u"] * 2, {"acc": [1.0, 0.0], "odd": values})
        assert list(result["s"]) == ["acc"]
    assert [record.getMessage().count("'odd'") for record in caplog.records] == [1]


def test_text_is_left_out_without_a_word_as_on_stock_verl(ours, caplog):
    caplog.set_level(logging.WARNING, logger="verl_ext")
    result = ours(["s"] * 3, ["u"] * 3, {"acc": [1.0] * 3, "pred": ["a", "b", "c"], "note": [None, "x", None]})
    assert list(result["s"]) == ["acc"]
    assert not caplog.records


def test_a_missing_value_is_never_nan_and_a_nan_stays_one(ours):
    assert ours(["s"] * 2, ["u", "v"], {"acc": [None, 0.5]})["s"]["acc"]["mean@1"] == 0.5
    assert math.isnan(ours(["s"] * 2, ["u", "v"], {"acc": [float("nan"), 0.5]})["s"]["acc"]["mean@1"])


def test_a_failed_session_counts_as_zero_and_a_scored_one_without_the_key_does_not(ours, stock):
    if "expected_acc_counts" not in inspect.signature(stock).parameters:
        pytest.skip("verl before 0.9.1 does not count failed sessions")
    failed = ours(["s"] * 3, ["u"] * 3, {"acc": [1, 1, 1]}, expected_acc_counts={("s", "u"): 4})
    assert failed["s"]["acc"]["mean@4"] == 0.75
    scored = ours(["s"] * 4, ["u"] * 4, {"acc": [1, 1, None, 1]}, expected_acc_counts={("s", "u"): 4})
    assert scored["s"]["acc"]["mean@4"] == 1.0
    both = ours(["s"] * 3, ["u"] * 3, {"acc": [1, None, 1]}, expected_acc_counts={("s", "u"): 4})
    assert both["s"]["acc"]["mean@4"] == pytest.approx(2 / 3)
    lost = ours(["s"] * 2, ["u"] * 2, {"acc": [1, None]}, expected_acc_counts={("s", "u"): 2, ("s", "v"): 2})
    assert lost["s"]["acc"]["mean@2"] == 0.5
