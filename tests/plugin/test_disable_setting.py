"""`VERL_EXT_DISABLE`: the plugin as a whole, single sites, and names that no site has."""

import logging

import pytest
from held import HELD
from patched import ALL_ACTIVE, ALL_OFF, STOCK, TAUGHT, marks, states

from verl_ext import plugin
from verl_ext.plugin import SITES

NEED_PROTOCOL = [name for name in ("agent_loop", "fully_async") if name in HELD]


@pytest.mark.parametrize("setting", ["", "0", "false", "No", " off "])
def test_these_settings_of_verl_ext_disable_leave_the_plugin_on(setting, taught_verl, monkeypatch):
    plugin.deactivate()
    monkeypatch.setenv(plugin.DISABLE, setting)
    plugin.activate()
    assert states() == ALL_ACTIVE
    assert marks() == TAUGHT


@pytest.mark.parametrize("setting", ["1", "true", "YES", "on", " all "])
def test_these_settings_of_verl_ext_disable_turn_every_site_off(setting, taught_verl, monkeypatch):
    plugin.deactivate()
    monkeypatch.setenv(plugin.DISABLE, setting)
    plugin.activate()
    assert states() == ALL_OFF
    assert marks() == STOCK
    assert {report.detail for report in plugin.status()} == {f"VERL_EXT_DISABLE={setting}"}


@pytest.mark.parametrize("setting", ["reward_loop", " Reward_Loop ,"])
def test_verl_ext_disable_turns_single_sites_off_by_name(setting, taught_verl, monkeypatch):
    plugin.deactivate()
    monkeypatch.setenv(plugin.DISABLE, setting)
    plugin.activate()
    assert states() == {**ALL_ACTIVE, "reward_loop": "disabled"}
    assert marks() == {**TAUGHT, "reward_loop": {None}}


def test_an_unknown_name_in_verl_ext_disable_is_a_warning_that_lists_the_sites(taught_verl, monkeypatch, caplog):
    plugin.deactivate()
    monkeypatch.setenv(plugin.DISABLE, "nonsense,protocol")
    plugin.activate()
    assert states() == {**ALL_ACTIVE, "protocol": "disabled", **dict.fromkeys(NEED_PROTOCOL, "disabled")}
    warning = next(record for record in caplog.records if record.levelno == logging.WARNING)
    assert "['nonsense']" in warning.getMessage()
    assert all(name in warning.getMessage() for name in SITES)
