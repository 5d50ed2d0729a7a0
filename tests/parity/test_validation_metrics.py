"""`process_validation_metrics` on whatever a scorer returns: verl's own function beside ours."""

import inspect
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from on_stock import on_stock
from sites import covers
from values import FAMILIES, each_family, values_of_a_family

from verl_ext import plugin
from verl_ext.plugin import _run, _site

pytestmark = pytest.mark.filterwarnings("ignore")  # NumPy's, of what it makes of such values

SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def a_new_run(monkeypatch):
    """As if nothing had been validated or warned of before; and verl's bootstrap, but it draws ten times, not 1,000."""
    plugin.activate()
    from verl.trainer.ppo import metric_utils

    bootstrap = metric_utils.bootstrap_metric
    monkeypatch.setattr(metric_utils, "bootstrap_metric", lambda **given: bootstrap(**{**given, "n_bootstrap": 10}))
    monkeypatch.setattr(_site, "_warned", set())
    _run.of(SimpleNamespace(config=None))


@pytest.fixture
def ours():
    from verl.trainer.ppo import metric_utils

    return metric_utils.process_validation_metrics


@pytest.fixture
def stock(ours):
    return ours.__wrapped__


def flat(result):
    """By data source, key and metric, the number with all its digits."""
    return {
        (source, key, name): repr(float(value))
        for source, by_key in result.items()
        for key, metrics in by_key.items()
        for name, value in metrics.items()
    }


def numbers_of(stock, sources, uids, infos, **more):
    """What stock logs of each key by itself: of a key that raises, nothing, and of the votes for it, none."""
    found = {}
    for key, values in infos.items():
        with suppress(Exception):
            found.update(flat(stock(sources, uids, {key: values}, **more)))
    return found


@st.composite
def layouts(draw):
    """Data sources and prompts of samples, in any order: `(rows,)` each."""
    prompts = draw(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 4)), min_size=1, max_size=3))
    rows = [(source, f"p{number}") for number, (source, responses) in enumerate(prompts) for _ in range(responses)]
    rows = draw(st.permutations(rows))
    return [source for source, _ in rows], [uid for _, uid in rows]


@covers("metrics", "process_validation_metrics")
@each_family()
@given(layout=layouts(), key=st.sampled_from(["acc", "pred", "score", 3]), data=st.data())
@settings(SETTINGS, max_examples=5)
def test_where_verl_gives_a_number_so_do_we_and_the_same(family, layout, key, data, ours, stock):
    sources, uids = layout
    rows = len(sources)
    infos = {
        "reward": data.draw(st.lists(st.floats(-1, 1), min_size=rows, max_size=rows)),
        "acc": data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)),
        "pred": data.draw(values_of_a_family(rows)),
        key: data.draw(st.lists(FAMILIES[family], min_size=rows, max_size=rows)),
    }
    sessions = data.draw(st.sampled_from([{}, started(sources, uids, 0), started(sources, uids, 1)]))
    found = ours(sources, uids, infos, **sessions)
    mine = without_explicit_none(flat(found), sources, infos)
    try:
        theirs = flat(stock(sources, uids, infos, **sessions))
    except Exception:
        theirs = numbers_of(stock, sources, uids, infos, **sessions)
        assert mine.items() >= without_explicit_none(theirs, sources, infos).items()
    else:
        assert mine == without_explicit_none(theirs, sources, infos)
        assert found["a"]["no such key"]["mean@1"] == 0.0  # verl's dict has it so


def without_explicit_none(metrics, sources, infos):
    """Without the series of keys that have an explicit `None` in the data source, in which we differ on purpose."""
    differ = {
        (source, key)
        for key, values in infos.items()
        for source, value in zip(sources, values, strict=True)
        if value is None
    }
    differ |= {(source, "acc_success_only") for source, key in differ if key == "acc"}
    return {series: value for series, value in metrics.items() if series[:2] not in differ}


def started(sources, uids, failed):
    """So many sessions of each prompt as have left a sample, and `failed` more; verl before 0.9.1 does not count."""
    from verl.trainer.ppo import metric_utils

    if "expected_acc_counts" not in inspect.signature(metric_utils.process_validation_metrics).parameters:
        return {}
    prompts = list(zip(sources, uids, strict=True))
    return {"expected_acc_counts": {prompt: prompts.count(prompt) + failed for prompt in prompts}}


@covers("metrics", "process_validation_metrics")
@each_family()
@given(layout=layouts(), data=st.data())
@settings(SETTINGS, max_examples=3)
def test_a_key_that_some_samples_lack_is_averaged_over_those_that_have_it_by_numpys_mean(family, layout, data, ours):
    sources, uids = layout
    rows = len(sources)
    lacks = data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
    drawn = data.draw(st.lists(FAMILIES[family], min_size=rows, max_size=rows))
    values = [None if lack else value for lack, value in zip(lacks, drawn, strict=True)]
    found = ours(sources, uids, {"acc": values})
    for source in dict.fromkeys(sources):
        prompts = {}
        for place, uid, value in zip(sources, uids, values, strict=True):
            if place == source:
                prompts.setdefault(uid, []).append(value)
        if not any(value is None for responses in prompts.values() for value in responses):
            continue  # the property above
        try:
            means = by_number_of_responses(prompts)
        except Exception:
            assert "acc" not in found[source]
            continue
        metrics = found[source].get("acc", {})
        assert {name: repr(value) for name, value in metrics.items() if name.startswith("mean@")} == {
            f"mean@{responses}": repr(float(np.mean(of_prompts))) for responses, of_prompts in means.items()
        }
        if means:
            for responses in {len(values) for values in prompts.values()}:
                shares = [
                    sum(value is not None for value in values) / responses
                    for values in prompts.values()
                    if len(values) == responses
                ]
                assert metrics[f"coverage@{responses}"] == np.mean(shares)


def by_number_of_responses(prompts):
    """The mean of each prompt's values that are there, as verl takes it; where one is text there is none."""
    means = {}
    for responses in prompts.values():
        there = [value for value in responses if value is not None]
        if there and not any(isinstance(value, str) for value in there):
            means.setdefault(len(responses), []).append(float(np.mean(there)))
    return means


TRAINERS = ["verl.trainer.ppo.ray_trainer:RayPPOTrainer", "verl.trainer.ppo.v1.trainer_base:PPOTrainer"]


@pytest.mark.parametrize("trainer", TRAINERS)
@given(data=st.data())
@settings(SETTINGS, max_examples=15)
def test_what_the_trainers_log_of_it_has_the_names_and_numbers_of_stock(trainer, data):
    module, _, name = trainer.partition(":")
    update = getattr(pytest.importorskip(module), name)._val_metrics_update
    sources, uids = data.draw(layouts())
    rows = len(sources)
    infos = {
        "reward": data.draw(st.lists(st.floats(-1, 1), min_size=rows, max_size=rows)),
        "acc": data.draw(values_of_a_family(rows).filter(lambda values: all(value is not None for value in values))),
        "pred": data.draw(st.lists(FAMILIES["text and numbers"], min_size=rows, max_size=rows)),
    }
    given = (None, sources, uids, infos, [])
    try:
        with on_stock():
            theirs = update(*given)
    except Exception:
        theirs = {}
    ours = update(*given)
    assert {name: repr(float(ours[name])) for name in theirs} == {name: repr(float(theirs[name])) for name in theirs}
    assert not theirs or ours.keys() == theirs.keys()
