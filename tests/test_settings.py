"""The settings in verl's own configuration, in each form through Hydra, and what a fill value does."""

import math

import numpy as np
import pytest
from marks import slow_after
from omegaconf import OmegaConf

from verl_ext import MissingRewardError, SettingsError
from verl_ext.demo import rig
from verl_ext.settings import Settings, Use, training_values


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


@pytest.mark.parametrize("override", slow_after(2, FORMS))
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


@pytest.mark.parametrize("override", slow_after(3, WRONG))
def test_a_wrong_setting_is_refused_by_name(override, composed):
    with pytest.raises(SettingsError, match=WRONG[override]):
        Settings.of(composed(override))


NUMBERS = Use(lambda values: np.array([float(value) for value in values]), "a number")


def values_of(column, settings=None, sources=None, key="acc", use=NUMBERS):
    return training_values(key, column, settings or Settings(), sources, use)


def test_a_complete_column_is_what_its_use_makes_of_it():
    column = np.array([1, 2**53 + 1], dtype=object)
    calls = []

    def numbers(values):
        calls.append(values)
        return np.array([7.0, 8.0])

    assert values_of(column, Settings({"acc": 9.0}), use=Use(numbers, "")).tolist() == [7.0, 8.0]
    assert calls == [[1, 2**53 + 1]]


def test_a_missing_value_is_filled_and_only_that():
    column = np.array([1.5, None, 0], dtype=object)
    assert values_of(column, Settings({"acc": -1.0}), ["a", "b", "c"]).tolist() == [1.5, -1.0, 0.0]
    assert column.tolist() == [1.5, None, 0]


def test_the_fill_value_is_in_the_dtype_of_the_use():
    use = Use(lambda values: np.array(values, np.float32), "a number")
    filled = values_of([0.1, None], Settings({"acc": 0.1}), use=use)
    assert (filled.dtype, filled[0]) == (np.float32, filled[1])


def test_a_column_that_no_sample_has_is_filled_throughout():
    assert values_of([None, None], Settings({"acc": 0.25})).tolist() == [0.25, 0.25]


def test_a_missing_value_without_a_fill_names_the_component_the_counts_the_sources_and_the_setting():
    column = np.array([1.0, None, None], dtype=object)
    with pytest.raises(MissingRewardError) as caught:
        values_of(column, sources=["gsm8k", "gsm8k", "math"], key="format_reward")
    message = str(caught.value)
    assert "2 of 3 samples lack the reward component 'format_reward' (gsm8k 1 of 2, math 1 of 1)" in message
    assert "+verl_ext.fill.format_reward=0.0" in message
    with pytest.raises(MissingRewardError, match=r"'\+verl_ext\.fill=\{reward/jpeg: 0\.0\}'"):
        values_of([None], key="reward/jpeg")


@pytest.mark.parametrize("value", ["x", [1.0], {}, object()])
def test_a_value_that_is_no_number_is_refused_with_its_row_even_with_a_fill(value):
    column = [1.0, value, None]
    with pytest.raises(MissingRewardError, match=r"'acc' is .* in row 1 \(data source 'math'\): it must be a number$"):
        values_of(column, Settings({"acc": 0.0}), ["gsm8k", "math", "math"])


def test_a_value_whose_own_float_raises_is_refused_by_name():
    class Broken:
        def __float__(self):
            raise SystemError("no")

    with pytest.raises(MissingRewardError, match=r"'acc' is .* in row 0: it must be a number"):
        values_of([Broken(), 1.0])


def test_values_that_are_numbers_one_by_one_but_not_together_are_numbers():
    def numbers(values):
        if len(values) > 1:
            raise ValueError
        return np.array(values, dtype=np.float64)

    assert values_of([1.0, 2.0, None], Settings({"acc": 0.5}), use=Use(numbers, "")).tolist() == [1.0, 2.0, 0.5]


@pytest.mark.parametrize("nan", [math.nan, np.float32("nan")])
def test_a_nan_is_filled_only_where_it_counts_as_missing(nan):
    column = np.array([1.0, nan], dtype=object)
    assert values_of(column, Settings({"acc": 0.5}, nan="missing")).tolist() == [1.0, 0.5]
    with pytest.raises(MissingRewardError, match=r"1 of 2 samples lack the reward component 'acc'\. Return it"):
        values_of(column, Settings(nan="missing"))
    assert math.isnan(values_of(column, Settings({"acc": 0.5}))[1])


@pytest.mark.parametrize("value", [1e39, -1e39, 10**39, 10**400, float("inf")])
def test_a_fill_that_float32_cannot_hold_is_refused(value):
    with pytest.raises(SettingsError, match="finite number"):
        Settings.of({"verl_ext": {"fill": {"acc": value}}})


def test_a_number_and_its_text_are_one_key():
    with pytest.raises(SettingsError, match="two of its keys are one as text"):
        Settings.of(OmegaConf.create({"verl_ext": {"fill": {1: 2, "1": 3}}}))
