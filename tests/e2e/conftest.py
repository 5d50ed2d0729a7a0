"""One pair of managers for this package."""

import pytest


@pytest.fixture(scope="package")
def shared(ray_session, rows, model_dir):
    """The managers."""
    from . import legacy  # which imports verl: not for tests that need none of this

    with legacy.managers(model_dir, rows) as managers:
        yield managers
