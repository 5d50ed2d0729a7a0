"""The worker processes that all tests of the v1 trainer run on, and its two ways: stock verl, and with the plugin."""

from functools import partial

import pytest


@pytest.fixture(scope="package")
def processes(ray_session, model_dir):
    """TransferQueue and the worker processes: without the plugin, and with it."""
    import transfer_queue as tq

    from e2e_v1 import v1

    config = v1.v1_config(model_dir)
    v1.open_queue(config)
    both = {
        plugin: v1.Workers(config, plugin=plugin, agent_loop_workers=count) for plugin, count in ((False, 1), (True, 2))
    }
    yield {plugin: workers.wait() for plugin, workers in both.items()}
    for workers in both.values():
        workers.close()
    tq.close()


@pytest.fixture
def stock(processes, model_dir, tmp_path):
    """A function from rows and overrides to a `Run` on stock verl."""
    from e2e_v1 import v1

    return partial(v1.run, workers=processes[False], model_dir=model_dir, root=tmp_path)


@pytest.fixture
def ours(processes, model_dir, tmp_path):
    """The same with the plugin."""
    from e2e_v1 import v1

    return partial(v1.run, workers=processes[True], model_dir=model_dir, root=tmp_path)
