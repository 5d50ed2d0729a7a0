"""verl's modules with the plugin, whatever a test has turned off."""

from importlib import import_module

import pytest
from held import HELD

from verl_ext import plugin


@pytest.fixture
def taught_verl(monkeypatch):
    """Every module that a site is for, taught; and taught again after the test, whatever it did."""
    monkeypatch.delenv(plugin.DISABLE, raising=False)
    for module in HELD.values():
        import_module(module)
    plugin.activate()
    yield
    monkeypatch.undo()
    plugin.deactivate()
    plugin.activate()
