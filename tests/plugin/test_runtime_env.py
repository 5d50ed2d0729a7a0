"""Which variables verl's environment for Ray workers carries, with the plugin and on stock verl."""

import os
from importlib.metadata import version

import pytest
from verl.trainer import constants_ppo

import verl_ext
from verl_ext.plugin import runtime_env

WITH_ENTRY_POINTS = tuple(map(int, version("verl").split(".")[:2])) >= (0, 9)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("VERL_EXT_", "VERL_USE_EXTERNAL"))]:
        monkeypatch.delenv(name)


def variables():
    return constants_ppo.get_ppo_ray_runtime_env()["env_vars"]


def test_the_variables_that_load_plugins_and_all_of_our_own_travel_to_the_workers(monkeypatch, stock):
    ours = {
        "VERL_USE_EXTERNAL_MODULES": "mine,verl_ext.autoload",
        "VERL_USE_EXTERNAL_PLUGINS": "verl_ext",
        "VERL_EXT_DISABLE": "metrics",
        "VERL_EXT_OF_TOMORROW": "1",
    }
    for name, value in ours.items():
        monkeypatch.setenv(name, value)
    found = variables()
    assert found.items() >= ours.items()
    with stock():
        verls_own = variables()
    assert not ours.keys() & verls_own.keys()
    assert found.pop("VERL_EXT_DRIVER") == verl_ext.__version__, "so workers know that the driver runs the plugin"
    assert {name: value for name, value in found.items() if name not in ours} == verls_own


def test_a_verl_without_entry_points_is_told_even_where_the_driver_imported_the_plugin_itself(monkeypatch):
    found = variables()
    assert found.get(runtime_env.MODULES) == (None if WITH_ENTRY_POINTS else "verl_ext.autoload")
    monkeypatch.setenv(runtime_env.MODULES, "mine")
    assert variables()[runtime_env.MODULES] == ("mine" if WITH_ENTRY_POINTS else "mine,verl_ext.autoload")


def test_the_rest_of_verls_environment_is_verls(stock):
    ours = constants_ppo.get_ppo_ray_runtime_env()
    with stock():
        theirs = constants_ppo.get_ppo_ray_runtime_env()
    assert {**ours, "env_vars": None} == {**theirs, "env_vars": None}


def test_who_imported_the_function_by_name_gets_the_taught_one():
    from verl.trainer import main_ppo

    assert main_ppo.get_ppo_ray_runtime_env is constants_ppo.get_ppo_ray_runtime_env
