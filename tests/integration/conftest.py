"""All of these tests run on Ray."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _on_ray(ray_session):
    pass
