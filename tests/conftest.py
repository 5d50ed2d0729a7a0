"""The plugin off for the length of a `with`, for every test that shows what stock verl does."""

from contextlib import contextmanager

import pytest

from verl_ext import plugin


@pytest.fixture
def stock():
    """`with stock():` runs verl's own code in this process; workers act as stock without the managers' mark."""

    @contextmanager
    def off():
        plugin.deactivate()
        try:
            yield
        finally:
            plugin.activate()

    return off
