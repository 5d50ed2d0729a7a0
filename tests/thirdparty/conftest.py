"""The surroundings that all these tests share; nearly all of them do without Ray."""

import logging

import pytest


@pytest.fixture(scope="package")
def verl(model_dir):
    """verl's managers and workers in this process."""
    from .actors import ray_knows_replies
    from .surroundings import Surroundings

    with ray_knows_replies():
        yield Surroundings(model_dir)


@pytest.fixture(autouse=True)
def no_run(monkeypatch):
    """No trainer has been made in this process yet."""
    from verl_ext.plugin import _run
    from verl_ext.settings import Settings

    monkeypatch.setattr(_run, "_run", _run.Run(Settings()))


@pytest.fixture
def warned(caplog, monkeypatch):
    """A function that returns the plugin's warnings, as if none had been given in this process before."""
    from verl_ext.plugin import _site

    monkeypatch.setattr(_site, "_warned", set())
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records if record.name.startswith("verl_ext")]
