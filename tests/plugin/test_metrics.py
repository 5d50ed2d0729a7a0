"""`process_validation_metrics`: verl's own numbers where all samples have a key, and the rest beside them."""

import asyncio
import inspect
import logging
import math
import re
from collections import defaultdict
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from verl import DataProto

from verl_ext import plugin
from verl_ext.plugin import _run, _site
from verl_ext.plugin import metrics as metrics_site


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
    _run.of(SimpleNamespace(config=None))


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
        [[1], [2, 3]],
        [{"a": 1}, 1.0],
        [1.0, [1]],
        [1.0, b"x"],
        [1j, 1j],
        [None, {"a": 1}],
        [10**400, None],
        [np.timedelta64(3, "s")] * 2,
        [np.timedelta64(3, "s"), None],
        [Fraction(1, 2), 1],
        [object(), 1],
        [torch.empty((), device="meta")] * 2,
    ],
    ids=repr,
)
def test_a_key_that_verl_cannot_average_is_left_out_with_one_warning_and_takes_no_other_along(values, ours, caplog):
    caplog.set_level(logging.WARNING, logger="verl_ext")
    for _ in range(2):
        result = ours(["s"] * 2, ["u"] * 2, {"acc": [1.0, 0.0], "odd": values, "late": [None, 1.0]})
        assert list(result["s"]) == ["acc", "late"]
    assert [record.getMessage().count("'odd'") for record in caplog.records] == [1]
    assert "of data source 's'" in caplog.records[0].getMessage()


@pytest.mark.parametrize("first", [["none", 42], [42, "none"]])
def test_prompts_that_have_text_are_left_out_whether_it_comes_first_or_not(first, ours, caplog):
    infos = {"pred": [*first, 1, 2], "late": [*first, 1, None]}
    metrics = ours(["s"] * 4, ["u", "u", "v", "v"], infos)["s"]
    assert metrics["pred"]["mean@2"] == 1.5
    assert (metrics["late"]["mean@2"], metrics["late"]["coverage@2"]) == (1.0, 0.75)
    said = [record.getMessage() for record in caplog.records if record.name == "verl_ext"]
    assert len(said) == 2
    assert "'pred' of data source 's' is text in some samples; prompts that have text are left out" in said[0]


def test_the_warning_says_what_the_values_own_arithmetic_raised_even_where_that_cannot_be_printed(ours, caplog):
    class UnprintableError(Exception):
        def __repr__(self):
            raise RuntimeError

    class Odd:
        def __add__(self, other):
            raise UnprintableError

    ours(["s"] * 2, ["u"] * 2, {"odd": [Odd(), Odd()], "nested": [{"a": 1}, {}]})
    odd, nested = [record.getMessage() for record in caplog.records if record.name == "verl_ext"]
    assert "'odd' of data source 's' cannot be averaged (<UnprintableError whose repr raised RuntimeError>)" in odd
    assert "'nested' of data source 's' cannot be averaged (TypeError(" in nested
    assert nested.endswith("it is left out")


@pytest.mark.parametrize(
    "acc",
    [
        [torch.tensor(1.0), 0, torch.tensor(0.5), 0],
        [np.array(1.0), np.array(0.0), np.array(0.5), np.array(0.0)],
        [torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([0.5]), torch.tensor([0.0])],
        [[1.0, 2.0], [0.0, 0.0], [0.5, 1.0], [0.0, 1.0]],
        [(1, 2), (0, 0), (3, 4), (1, 0)],
        [Decimal(1), Decimal(0), Decimal("0.5"), Decimal(0)],
        [10**301, 10**300, 1, 2],
    ],
    ids=lambda acc: f"{type(acc[0]).__name__} {np.shape(acc[0])}",
)
def test_the_headline_stays_acc_where_its_values_are_numbers_only_to_verl(acc, ours, stock):
    sources, uids = ["s"] * 4, ["u", "u", "v", "v"]
    expected = plain(stock(sources, uids, {"acc": acc}))
    found = plain(ours(sources, uids, {"acc": acc, "pred": ["a", "b", "a", "a"], "note": [{}, 1, "x", None]}))
    assert found["s"]["acc"].items() >= expected["s"]["acc"].items()
    named = [name for name in found["s"]["acc"] if name.startswith("maj@")]
    assert bool(named) == (np.ndim(acc[1]) == 0 or len(acc[1]) == 1), "a majority is of one number"


def test_the_keys_of_verls_own_dapo_manager_that_logs_the_overlong_penalty_are_averaged(ours):
    dapo = pytest.importorskip("verl.experimental.reward_loop.reward_manager.dapo")
    buffer = {"enable": True, "len": 4, "penalty_factor": 1.0, "log": True}
    config = OmegaConf.create({"reward": {"reward_kwargs": {"overlong_buffer_cfg": buffer, "max_resp_len": 8}}})

    async def rewards(*lengths):
        tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: "4")  # a stand-in
        manager = dapo.DAPORewardManager(config, tokenizer, lambda **_: 1.0)
        return [(await manager.run_single(answer(length)))["reward_extra_info"] for length in lengths]

    rows = asyncio.run(rewards(6, 3, 5, 2))
    assert [type(row["overlong_reward"]) for row in rows] == [torch.Tensor, int, torch.Tensor, int]
    infos = {key: [row[key] for row in rows] for key in rows[0]}
    metrics = ours(["s"] * 4, ["u", "u", "v", "v"], infos)["s"]
    assert list(metrics) == ["acc", "overlong_reward", "overlong"]
    assert metrics["overlong_reward"]["mean@2"] == -0.1875
    assert metrics["overlong"]["mean@2"] == 0.5


def answer(length):
    """A sample with a response of so many tokens."""
    return DataProto.from_dict(
        tensors={
            "responses": torch.ones(1, 8, dtype=torch.long),
            "attention_mask": (torch.arange(10) < length + 2).long().unsqueeze(0),
        },
        non_tensors={
            "data_source": np.array(["s"], dtype=object),
            "reward_model": np.array([{"ground_truth": "4"}], dtype=object),
        },
    )


@pytest.mark.parametrize(
    ("pred", "votes"),
    [
        (["[INVALID]", 42, 42, "[INVALID]"], True),
        ([42, "42", 42.0, True], True),
        ([1, 2, 3, 4], True),
        ([Fraction(1, 2), Decimal(1), 1, (1, 2)], True),
        ([None, 42, 42, 42], False),
        ([[1], 42, 42, 42], False),
    ],
)
def test_whatever_the_predictions_are_verl_counts_them_as_votes(pred, votes, ours, stock):
    sources, uids, acc = ["s"] * 4, ["u"] * 4, [0.0, 1.0, 1.0, 0.5]
    found = ours(sources, uids, {"acc": acc, "pred": pred})["s"]["acc"]
    if votes:
        texts = [str(pred.index(prediction)) for prediction in pred]  # equal predictions are one vote
        assert found == stock(sources, uids, {"acc": acc, "pred": texts})["s"]["acc"]
        assert "maj@4/mean" in found
    elif "expected_acc_counts" in inspect.signature(stock).parameters:  # verl before counts None as a vote
        assert found == stock(sources, uids, {"acc": acc})["s"]["acc"]


def test_predictions_that_some_samples_lack_are_votes_in_the_prompts_where_all_have_one(ours, stock):
    if "expected_acc_counts" not in inspect.signature(stock).parameters:
        pytest.skip("verl before 0.9.1 counts None as a vote")
    acc, pred, uids = [0.0, 1.0, 1.0, 0.5], [7, "x", None, 7], ["u", "u", "v", "v"]
    found = ours(["s"] * 4, uids, {"acc": acc, "pred": pred})["s"]["acc"]
    alone = stock(["s"] * 2, ["u"] * 2, {"acc": acc[:2], "pred": ["a", "b"]})["s"]["acc"]
    assert found["maj@2/mean"] == alone["maj@2/mean"]


def test_an_explicit_none_is_a_missing_value_named_by_all_responses_and_with_its_coverage(ours, stock):
    given = ["s"] * 3, ["u"] * 3, {"judge": [1.0, None, 0.0]}
    found = ours(*given)["s"]["judge"]
    assert (found["mean@3"], found["std@3"], found["coverage@3"]) == (0.5, 0.5, 2 / 3)
    assert not any("@2" in name and not name.startswith(("best", "worst")) for name in found)
    if "expected_acc_counts" in inspect.signature(stock).parameters:  # verl before takes the mean of None: TypeError
        assert stock(*given)["s"]["judge"]["mean@2"] == 0.5


# --- names -------------------------------------------------------------------------------------------------------


def test_keys_that_are_no_text_are_averaged_as_on_stock(ours, stock):
    given = ["s"] * 2, ["u"] * 2, {3: [1.0, 0.0], None: [1, 2], True: [0.5, 0.5], ("a", 1): [1.0, 1.0]}
    assert plain(ours(*given)) == plain(stock(*given))


@pytest.mark.parametrize(
    ("sources", "infos", "named"),
    [
        (["a", "a/b"], {"b/c": [1.0, None], "c": [None, 2.0]}, {"a/b/c": 2.0, "a/b/c #": 1.0}),
        (["a/b", "a"], {"b/acc": [None, 2.0], "acc": [1.0, None]}, {"a/b/acc": 1.0, "a/b/acc #": 2.0}),
        (["a/b", "a"], {"acc": [1.0, None], "b/acc": [None, 2.0]}, {"a/b/acc": 1.0, "a/b/acc #": 2.0}),
        (["a", "a"], {3: [1.0, 1.0], "3": [2.0, 2.0]}, {"a/3": 2.0, "a/3 #": 1.0}),
        (["3", 3], {"c": [1.0, 2.0]}, {"3/c": 2.0, "3/c #": 1.0}),
    ],
)
def test_two_series_that_verl_would_log_as_one_have_two_names_in_every_validation(sources, infos, named, ours):
    run = _run.of(SimpleNamespace(config=None))
    for _ in range(2):
        result = ours(sources, ["u", "v"], infos)
        found = {f"{source}/{key}": metrics["mean@1"] for source in result for key, metrics in result[source].items()}
        assert {re.sub("#.{8}$", "#", name): mean for name, mean in found.items()} == named
        (clash,) = [name for name in found if " #" in name]
        assert clash in run.validated.given.values()


def test_a_series_keeps_its_name_where_another_of_that_name_comes_later(ours):
    _run.of(SimpleNamespace(config=None))
    assert list(ours(["a"], ["u"], {"b/c": [1.0]})["a"]) == ["b/c"]
    result = ours(["a", "a/b"], ["u", "v"], {"b/c": [1.0, None], "c": [None, 2.0]})
    assert list(result["a"]) == ["b/c"]
    assert re.fullmatch("c #.{8}", *result["a/b"])


def test_samples_without_a_data_source_which_pandas_reads_as_nan_are_one_data_source(ours):
    (metrics,) = ours([float("nan"), float("nan")], ["u", "v"], {"acc": [1.0, 0.0]}).values()
    assert metrics["acc"]["mean@1"] == 0.5


def test_nan_that_counts_as_missing_does_so_in_a_tensor_or_an_array_too(ours):
    _run.of(SimpleNamespace(config=OmegaConf.create({"verl_ext": {"nan": "missing"}})))
    values = [1.0, float("nan"), torch.tensor(float("nan")), np.array(float("nan")), np.float32("nan")]
    metrics = ours(["s"] * 5, ["u"] * 5, {"judge": values})["s"]["judge"]
    assert (metrics["mean@5"], metrics["coverage@5"]) == (1.0, 0.2)


def test_what_verl_of_tomorrow_is_called_with_is_handed_on():
    given = {}

    def tomorrow(data_sources, sample_uids, infos_dict, seed=42, **more):
        given.update(more, seed=seed) if data_sources else None
        return defaultdict(lambda: defaultdict(dict))

    taught = metrics_site._process_validation_metrics.teach(tomorrow)
    taught(["s"], ["u"], {"acc": [1.0]}, 7, seen="yes")
    assert given == {"seen": "yes", "seed": 7}


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
