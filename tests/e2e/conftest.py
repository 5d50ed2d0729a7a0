"""One local Ray for the session, and one pair of managers for this package."""

import pytest

from verl_ext.demo import rig
from verl_ext.demo.data import read_rows


@pytest.fixture(scope="session")
def ray_session():
    with rig.local_ray():
        yield


@pytest.fixture(scope="package")
def rows():
    """The demo's rows: gsm8k, math_dapo and MATH in turn, with right, wrong and unparsable answers."""
    return read_rows()


@pytest.fixture(scope="package")
def shared(ray_session, rows, tmp_path_factory):
    """The managers; gone after this package, since the names of the reward loop's workers are fixed."""
    from . import legacy  # which imports verl: not for tests that need none of this

    with legacy.managers(rig.build_model_dir(tmp_path_factory.mktemp("model")), rows) as managers:
        yield managers
