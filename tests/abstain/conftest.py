"""Every test here runs with the plugin, in a run of its own, as if no warning had been given before."""

import logging

import pytest

from verl_ext import plugin
from verl_ext.plugin import _run, _site
from verl_ext.settings import Settings

pytest.register_assert_rewrite("abstained")


@pytest.fixture(autouse=True)
def active_plugin():
    plugin.activate()


@pytest.fixture(autouse=True)
def warnings(monkeypatch, caplog):
    """A function to the plugin's warnings so far."""
    monkeypatch.setattr(_site, "_warned", set())
    caplog.set_level(logging.WARNING, logger="verl_ext")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "verl_ext"]


@pytest.fixture
def current_run(monkeypatch):
    """A function from settings to the run that they make, which is the current one for the length of the test."""

    def begin(**settings):
        run = _run.Run(Settings(**settings))
        monkeypatch.setattr(_run, "_run", run)
        return run

    return begin
