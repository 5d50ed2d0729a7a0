"""What only a process of its own shows: workers on real Ray that are asked without the mark of verl's manager."""

import pytest
import ray
from verl import DataProto
from verl.trainer import constants_ppo

from . import actors, surroundings, workers
from .surroundings import DAPO, GSM8K, assert_whole, loaded, lost, outcome, prompts, rows_of
from .workers import PromptByPrompt, Scores

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def ray_session(ray_session):
    for module in (actors, surroundings, workers):
        ray.cloudpickle.register_pickle_by_value(module)


class OnItsOwn(PromptByPrompt):
    """The worker as an actor, which needs no reward worker beside it."""

    def __init__(self, config, client):
        super().__init__(config, client, None, [Scores()])

    def sites(self):
        from verl_ext import plugin

        return [report.name for report in plugin.status() if report.stands]


def started(verl):
    """An actor, in the environment that verl's own `main_ppo` gives to its workers from this process."""
    ray.cloudpickle.register_pickle_by_value(__import__(__name__, fromlist=["_"]))
    env = constants_ppo.get_ppo_ray_runtime_env()["env_vars"]
    return ray.remote(OnItsOwn).options(runtime_env={"env_vars": env}).remote(verl.config, verl.client)


@pytest.fixture(scope="module")
def worker(ray_session, verl):
    """A worker whose driver has the plugin."""
    worker = started(verl)
    yield worker
    ray.kill(worker)


def asked_prompt_by_prompt(worker, *groups):
    parts = []
    for number, infos in enumerate(groups):
        rows = rows_of(infos, number * len(infos))
        output = ray.get(worker.generate_for_prompt.remote(prompts(rows)))
        output.meta_info.pop("metrics")
        parts.append(loaded(rows).union(output))
    return DataProto.concat(parts)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [([GSM8K, DAPO], [DAPO, GSM8K]), ([GSM8K, GSM8K], [DAPO, DAPO])], ids=str)
def test_a_worker_that_puts_its_samples_together_outside_generate_sequences_loses_nothing(groups, worker):
    assert_whole(asked_prompt_by_prompt(worker, *groups), [info for infos in groups for info in infos])


@pytest.mark.parametrize("infos", [[GSM8K, DAPO], [DAPO, GSM8K]], ids=["the short schema first", "the long one first"])
def test_a_worker_that_is_called_directly_loses_nothing(infos, worker):
    assert_whole(ray.get(worker.generate_sequences.remote(prompts(rows_of(infos)))), infos)


@pytest.mark.slow
def test_a_driver_without_the_plugin_sees_pure_stock_from_workers_that_have_it(ray_session, verl, stock):
    with stock():
        worker = started(verl)
        try:
            assert "agent_loop" in ray.get(worker.sites.remote())
            output = ray.get(worker.generate_sequences.remote(prompts(rows_of([GSM8K, DAPO]))))
            assert {key for _, key, _ in lost(output, [GSM8K, DAPO])} == {"score", "pred"}
            assert type(output) is DataProto
            other = outcome(lambda: ray.get(worker.generate_sequences.remote(prompts(rows_of([DAPO, GSM8K])))))
            assert isinstance(other, KeyError)
            mixed = outcome(lambda: asked_prompt_by_prompt(worker, [GSM8K, GSM8K], [DAPO, DAPO]))
            assert isinstance(mixed, AssertionError)
        finally:
            ray.kill(worker)
