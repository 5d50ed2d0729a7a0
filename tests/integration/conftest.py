"""One local Ray for the session, a model directory and the demo's rows."""

import pytest

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
