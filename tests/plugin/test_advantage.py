"""GDPO's components: complete ones untouched, missing ones refused or filled, and never a NaN."""

import logging
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from verl_ext import MissingRewardError, assemble_reward_extra_info, plugin
from verl_ext.plugin import _site
from verl_ext.plugin.advantage import components


@pytest.fixture(autouse=True)
def fresh_warnings(monkeypatch, caplog):
    monkeypatch.setattr(_site, "_warned", set())
    caplog.set_level(logging.WARNING, logger="verl_ext")


@pytest.fixture
def gdpo():
    """A function from columns and fill values to GDPO's advantages of four samples of two prompts, `(4, 2)`."""
    plugin.activate()
    core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")

    def advantages(columns, fill=None, positional=False):
        root = OmegaConf.create({"algorithm": {"gdpo_reward_keys": ["acc", "form"]}, "verl_ext": {"fill": fill or {}}})
        mask = torch.ones(4, 2)
        batch = {"prompts": torch.zeros(4, 1), "attention_mask": torch.ones(4, 3, dtype=torch.int64)}
        columns = {"data_source": np.array(["a", "a", "b", "b"], dtype=object), **columns}
        function = core_algos.get_adv_estimator_fn("gdpo")
        index = np.array(["u", "u", "v", "v"], dtype=object)
        if positional:
            return function(mask, mask, index, 1e-6, True, root.algorithm, columns, batch)[0]
        return function(
            token_level_rewards=mask,
            response_mask=mask,
            index=index,
            config=root.algorithm,
            non_tensor_batch=columns,
            batch=batch,
        )[0]

    return advantages


def on_stock(columns):
    """verl's own advantages of the same samples, with the plugin off."""
    from verl.trainer.ppo import core_algos

    plugin.deactivate()
    try:
        mask = torch.ones(4, 2)
        return core_algos.get_adv_estimator_fn("gdpo")(
            token_level_rewards=mask,
            response_mask=mask,
            index=np.array(["u", "u", "v", "v"], dtype=object),
            config=OmegaConf.create({"gdpo_reward_keys": ["acc", "form"]}),
            non_tensor_batch=columns,
            batch={"prompts": torch.zeros(4, 1), "attention_mask": torch.ones(4, 3, dtype=torch.int64)},
        )[0]
    finally:
        plugin.activate()


ACC = np.array([1.0, 0.0, 1.0, 0.0])
SPARSE = np.array([1.0, 0.0, None, 0.5], dtype=object)


def test_complete_components_give_verls_own_advantages_bit_for_bit(gdpo):
    columns = {"acc": ACC, "form": ACC[::-1].copy()}
    assert torch.equal(gdpo(columns), on_stock(columns))


@pytest.mark.parametrize("positional", [False, True])
def test_a_component_that_some_samples_lack_is_refused_or_filled_however_verl_is_called(positional, gdpo):
    columns = {"acc": ACC, "form": SPARSE}
    with pytest.raises(MissingRewardError, match=r"1 of 4 samples lack the reward component 'form' \(b 1 of 2\)"):
        gdpo(columns, positional=positional)
    filled = gdpo(columns, {"form": 0.25}, positional=positional)
    expected = gdpo({"acc": ACC, "form": np.array([1.0, 0.0, 0.25, 0.5])})
    assert torch.equal(filled, expected)
    assert columns["form"] is SPARSE
    assert SPARSE[2] is None


def test_without_the_plugin_the_missing_value_is_nan_in_the_advantages_of_the_whole_batch(gdpo):
    assert on_stock({"acc": ACC, "form": SPARSE}).isnan().all()


def test_a_nan_that_a_scorer_returned_is_refused_too(gdpo):
    with pytest.raises(MissingRewardError, match="'form' is nan in row 2"):
        gdpo({"acc": ACC, "form": np.array([1.0, 0.0, np.nan, 0.5])}, {"form": 0.0})


class Grade:
    """A number by `__float__` alone."""

    def __init__(self, value):
        self.value = value

    def __float__(self):
        return self.value


TRAINABLE = {
    "Decimal": [Decimal("0.1"), Decimal(1), Decimal("-2.5"), Decimal(0)],
    "Fraction": [Fraction(1, 3), Fraction(2), Fraction(0), Fraction(-1, 7)],
    "0-d arrays": [np.array(value) for value in (0.1, 1.0, 0.5, 0.0)],
    "0-d tensors beside 0": [torch.tensor(0.1), 0, torch.tensor(-0.5), 0],
    "objects with __float__": [Grade(value) for value in (0.1, 1.0, 0.5, 0.0)],
    "text": ["0.1", " 1e-3 ", "-2", "1_0"],
    "bytes": [b"0.1", b"1", b"-2", b"3"],
    "integers beyond int64": [10**30, 1, -(10**20), 3],
    "elapsed times of one unit": [np.timedelta64(value, "s") for value in (1, 2, 0, 4)],
    "elapsed times of two units": [np.timedelta64(1, "s"), np.timedelta64(5, "ms"), np.timedelta64(0, "s")] * 2,
}


@pytest.mark.parametrize("values", TRAINABLE.values(), ids=TRAINABLE)
def test_what_verl_makes_a_finite_number_of_is_trained_on_to_the_same_advantages(values, gdpo):
    values = values[:4]
    ours = assemble_reward_extra_info([{"form": value} for value in values])
    assert torch.equal(gdpo({"acc": ACC, **ours}), on_stock({"acc": ACC, "form": np.array(values)}))


@pytest.mark.parametrize("values", TRAINABLE.values(), ids=TRAINABLE)
def test_such_a_component_that_some_samples_lack_is_filled(values, gdpo):
    rows = [{"form": value} for value in values[:3]]
    ours = assemble_reward_extra_info([*rows, {}])["form"]
    filled = np.asarray(np.array(values[:3]), dtype=np.float32).tolist()
    expected = gdpo({"acc": ACC, "form": np.array([*filled, 0.25])})
    assert torch.equal(gdpo({"acc": ACC, "form": ours}, {"form": 0.25}), expected)


REFUSED = {
    "NaN": [1.0, float("nan")],
    "infinite": [1.0, float("inf")],
    "infinite in float32": [1.0, -1e39],
    "beyond any float": [1, 10**400],
    "NaN as text": ["1", "nan"],
    "text": ["1", "[INVALID]"],
    "dicts": [{}, {"acc": 1.0}],
    "NaT": [np.timedelta64(1, "s"), np.timedelta64("NaT")],
}


@pytest.mark.parametrize("values", REFUSED.values(), ids=REFUSED)
def test_what_is_no_finite_number_to_verl_is_refused_by_row_and_source(values, gdpo):
    ours = assemble_reward_extra_info([{"form": value} for value in [values[0]] * 2 + [values[1]] * 2])
    row = 0 if isinstance(values[0], dict) else 2
    with pytest.raises(
        MissingRewardError, match=rf"'form' is .* in row {row} \(data source '{'aabb'[row]}'\): it must be"
    ):
        gdpo({"acc": ACC, **ours}, {"form": 0.0})


@pytest.mark.parametrize("vector", [[1.0], [1.0, 2.0], np.ones(2), torch.ones(1)], ids=str)
def test_a_vector_is_refused_by_name_where_stock_verl_ends_in_torch(vector, gdpo):
    values = [vector] * 4
    with pytest.raises(RuntimeError, match="shape mismatch"):
        on_stock({"acc": ACC, "form": np.array(values)})
    with pytest.raises(MissingRewardError, match=r"'form' is .* in row 0 "):
        gdpo({"acc": ACC, **assemble_reward_extra_info([{"form": value} for value in values])})


@pytest.mark.parametrize("left_out", ["config", "non_tensor_batch", "batch"])
def test_without_what_names_the_components_verl_trains_on_the_sum_of_rewards(left_out, stock):
    from verl.trainer.ppo import core_algos

    rewards = torch.tensor([[0.0, 1.0], [0.0, 0.5], [1.0, 0.0], [0.0, 0.0]])
    given = {
        "config": OmegaConf.create({"gdpo_reward_keys": ["form"]}),
        "non_tensor_batch": {"form": SPARSE},
        "batch": {"prompts": torch.zeros(4, 1), "attention_mask": torch.ones(4, 3, dtype=torch.int64)},
    }
    del given[left_out]

    def advantages():
        index = np.array(["u", "u", "v", "v"], dtype=object)
        return core_algos.compute_gdpo_outcome_advantage(rewards, torch.ones(4, 2), index, **given)[0]

    plugin.activate()
    ours = advantages()
    with stock():
        assert torch.equal(ours, advantages())
    assert ours.isfinite().all()


def test_a_component_that_never_came_trains_with_its_fill_value_and_is_named_once(gdpo, caplog):
    for _ in range(2):
        assert torch.equal(
            gdpo({"acc": ACC}, {"form": 0.5}), gdpo({"acc": ACC, "form": np.array([0.5, 0.5, 0.5, 0.5])})
        )
    assert [record.getMessage().count("'form'") for record in caplog.records] == [1]


def test_a_component_that_never_came_without_a_fill_value_is_refused():
    algorithm = OmegaConf.create({"gdpo_reward_keys": ["form"]})
    with pytest.raises(MissingRewardError, match="4 of 4 samples lack the reward component 'form'"):
        components(algorithm, {"acc": ACC})
