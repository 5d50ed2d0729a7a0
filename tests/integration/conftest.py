"""One local Ray for the session, verl's configuration on a CPU, and the plugin off for the length of a `with`."""

from contextlib import contextmanager

import pytest

from verl_ext import plugin
from verl_ext.demo import rig
from verl_ext.demo.data import read_rows


@pytest.fixture(scope="session", autouse=True)
def ray_session():
    with rig.local_ray():
        yield


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    return rig.build_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def rows():
    """The demo's rows: gsm8k, math_dapo and MATH in turn, with right, wrong and unparsable answers."""
    return read_rows()


@pytest.fixture
def stock():
    """`with stock():` runs verl's own code in this process; workers act as stock without the manager's mark."""

    @contextmanager
    def off():
        plugin.deactivate()
        try:
            yield
        finally:
            plugin.activate()

    return off
