"""The settings in verl's own configuration, in each form through Hydra, and what a fill value does."""

import math

import numpy as np
import pytest
from omegaconf import OmegaConf

from verl_ext import MissingRewardError, SettingsError
from verl_ext.demo import rig
from verl_ext.settings import Settings, training_values


@pytest.fixture(scope="module")
def composed(tmp_path_factory):
    model_dir = rig.build_model_dir(tmp_path_factory.mktemp("model"))
    return lambda *overrides: rig.compose_config(model_dir, overrides)


FORMS = {
    "+verl_ext.fill.format_reward=0.0": {"format_reward": 0.0},
    "+verl_ext.fill.format_reward=-1": {"format_reward": -1.0},
    "+verl_ext.fill={reward/jpeg: 0.0}": {"reward/jpeg": 0.0},
    "+verl_ext.fill={tool.calls: 1.5, acc: 0}": {"tool.calls": 1.5, "acc": 0.0},
    "+verl_ext={fill: {reward/jpeg: 2}}": {"reward/jpeg": 2.0},
}


@pytest.mark.parametrize("override", FORMS)
def test_each_form_of_a_fill_value_arrives_through_hydra(override, composed):
    assert Settings.of(composed(override)).fill == FORMS[override]


def test_a_fill_value_arrives_from_yaml():
    config = OmegaConf.create("verl_ext:\n  fill:\n    reward/jpeg: 0.0\n    tool.calls: 3\n")
    assert Settings.of(config).fill == {"reward/jpeg": 0.0, "tool.calls": 3.0}


def test_the_settings_are_found_from_any_part_of_the_configuration(composed):
    assert Settings.of(composed("+verl_ext.fill.acc=0.5").algorithm).fill == {"acc": 0.5}


def test_a_configuration_without_a_section_has_no_settings(composed):
    assert Settings.of(composed()) == Settings()
    assert Settings.of(object()) == Settings()


WRONG = {
    "+verl_ext.fil.acc=0.0": r"unknown option verl_ext\.fil; there are: verl_ext\.fill",
    "+verl_ext.fill=0.0": r"verl_ext\.fill is 0\.0; it must be a number for each key",
    "+verl_ext.fill.acc=none": r"verl_ext\.fill for 'acc' is 'none'; it must be a finite number",
    "+verl_ext.fill.acc=null": r"verl_ext\.fill for 'acc' is None",
    "+verl_ext.fill.acc=true": r"verl_ext\.fill for 'acc' is True",
    "+verl_ext.fill.acc=nan": r"verl_ext\.fill for 'acc' is nan",
    "+verl_ext.fill.acc=inf": r"verl_ext\.fill for 'acc' is inf",
    "+verl_ext.fill.acc=[0.0]": r"verl_ext\.fill for 'acc' is \[0\.0\]",
    "+verl_ext.fill.tool.calls=0": r"verl_ext\.fill\.tool is .*'\+verl_ext\.fill=\{tool\.calls: 0\.0\}'",
    "+verl_ext.fill.acc='???'": r"verl_ext cannot be read: .*acc",
    "+verl_ext.metrics='${nowhere}'": r"verl_ext cannot be read: .*nowhere",
    "+verl_ext='???'": r"verl_ext is '\?\?\?'",
    "+verl_ext='${nowhere}'": r"verl_ext cannot be read: .*nowhere",
    "+verl_ext='${oc.env:VERL_EXT_TEST_NOTHING}'": r"verl_ext cannot be read: .*Environment variable",
    "+verl_ext=3": r"verl_ext is 3; it must hold options",
}


@pytest.mark.parametrize("override", WRONG)
def test_a_wrong_setting_is_refused_by_name(override, composed):
    with pytest.raises(SettingsError, match=WRONG[override]):
        Settings.of(composed(override))


def test_a_complete_column_is_trained_on_as_it_is():
    for column in (np.array([1.0, 0.0]), np.array([True, False]), np.array([1, 2**53 + 1], dtype=object)):
        assert training_values("acc", column, 2, Settings({"acc": 9.0}), None) is column


def test_a_missing_value_is_filled_and_only_that():
    column = np.array([1.5, None, 0], dtype=object)
    filled = training_values("acc", column, 3, Settings({"acc": -1.0}), ["a", "b", "c"])
    assert filled.dtype == np.float64
    assert filled.tolist() == [1.5, -1.0, 0.0]
    assert column.tolist() == [1.5, None, 0]


def test_a_column_that_no_sample_has_is_filled_throughout():
    assert training_values("acc", None, 2, Settings({"acc": 0.25}), None).tolist() == [0.25, 0.25]


def test_a_missing_value_without_a_fill_names_the_component_the_counts_the_sources_and_the_setting():
    column = np.array([1.0, None, None], dtype=object)
    with pytest.raises(MissingRewardError) as caught:
        training_values("format_reward", column, 3, Settings(), ["gsm8k", "gsm8k", "math"])
    message = str(caught.value)
    assert "2 of 3 samples lack the reward component 'format_reward' (gsm8k 1 of 2, math 1 of 1)" in message
    assert "+verl_ext.fill.format_reward=0.0" in message
    with pytest.raises(MissingRewardError, match=r"'\+verl_ext\.fill=\{reward/jpeg: 0\.0\}'"):
        training_values("reward/jpeg", None, 1, Settings(), None)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), "1.0", [1.0], np.float32("nan")])
def test_a_value_that_is_no_finite_number_is_refused_with_its_row_even_with_a_fill(value):
    column = np.empty(2, dtype=object)
    column[:] = [1.0, None]
    column[1] = value
    with pytest.raises(MissingRewardError, match=r"'acc' is .* in row 1 \(data source 'math'\)"):
        training_values("acc", column, 2, Settings({"acc": 0.0}), ["gsm8k", "math"])


@pytest.mark.parametrize("nan", [math.nan, np.float32("nan")])
def test_a_nan_is_filled_only_where_it_counts_as_missing(nan):
    column = np.array([1.0, nan], dtype=object)
    assert training_values("acc", column, 2, Settings({"acc": 0.5}, nan="missing"), None).tolist() == [1.0, 0.5]
    with pytest.raises(MissingRewardError, match=r"1 of 2 samples lack the reward component 'acc'\. Return it"):
        training_values("acc", column, 2, Settings(nan="missing"), None)
    with pytest.raises(MissingRewardError, match=r"'acc' is .*nan.* in row 1: it must"):
        training_values("acc", column, 2, Settings({"acc": 0.5}), None)


@pytest.mark.parametrize("value", [1e39, -1e39, 10**39, 10**400, float("inf")])
def test_a_component_or_a_fill_that_float32_cannot_hold_is_refused(value):
    column = np.array([value, 1.0], dtype=object)
    with pytest.raises(MissingRewardError, match="must be a finite number to train on, in float32"):
        training_values("acc", column, 2, Settings(), None)
    with pytest.raises(SettingsError, match="finite number"):
        Settings.of({"verl_ext": {"fill": {"acc": value}}})


def test_a_number_and_its_text_are_one_key():
    with pytest.raises(SettingsError, match="two of its keys are one as text"):
        Settings.of(OmegaConf.create({"verl_ext": {"fill": {1: 2, "1": 3}}}))


def test_an_elapsed_time_is_no_component_to_train_on():
    with pytest.raises(MissingRewardError, match=r"'took' is np\.timedelta64"):
        training_values("took", np.array([np.timedelta64(3, "s"), None], object), 2, Settings({"took": 0.0}), None)
