"""What tests of any folder share: the plugin off for the length of a `with`, one Ray, a model's files, rows."""

from contextlib import contextmanager
from functools import cache

import pytest

from verl_ext import plugin
from verl_ext.demo import rig
from verl_ext.demo.data import read_rows


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Where processes share the tests, one of them gets all files that need Ray: they share worker processes."""
    from xdist.scheduler import LoadScopeScheduling

    @cache
    def needs_ray(file):
        return "mark.ray" in (config.rootpath / file).read_text()

    class OneForRay(LoadScopeScheduling):
        def _split_scope(self, test):
            return "ray" if needs_ray(test.partition("::")[0]) else test

    return OneForRay(config, log)


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


@pytest.fixture(scope="session")
def ray_session():
    """One local Ray for the session, where managers share worker processes."""
    import actors  # which imports Ray: not for tests that need none of this
    import processes

    with processes.forked_workers(), rig.local_ray(), actors.shared():
        yield


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    """A tokenizer, and the configuration of a model without weights."""
    return rig.build_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def rows():
    """The demo's rows: gsm8k, math_dapo and MATH in turn, with right, wrong and unparsable answers."""
    return read_rows()
