"""Every test here runs with the plugin, or says that it runs on stock verl."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from verl_ext import plugin

pytest.register_assert_rewrite("batches")


@pytest.fixture(autouse=True)
def active_plugin() -> Iterator[None]:
    plugin.activate()
    assert plugin.site_is_active("protocol")
    yield
    plugin.activate()


@pytest.fixture
def stock_verl(active_plugin: None) -> Iterator[None]:
    """verl's own functions, for the length of a test."""
    plugin.deactivate()
    yield
    plugin.activate()
