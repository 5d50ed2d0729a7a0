"""GDPO's components: complete ones untouched, missing ones refused or filled, and never a NaN."""

import logging

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from verl_ext import MissingRewardError, plugin
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
