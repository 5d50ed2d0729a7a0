"""Clusters that were started elsewhere, and of several nodes: what reaches the workers there, and what comes back."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import ray
from clusters import LOADING

DRIVERS = Path(__file__).with_name("clusters.py")
BY_VARIABLE = {"VERL_USE_EXTERNAL_MODULES": "verl_ext.autoload"}

pytestmark = pytest.mark.ray


def run(scenario, model_dir, **environment):
    """What a driver prints, run in a process of its own: this one is connected to another Ray."""
    inherited = {name: value for name, value in os.environ.items() if name not in LOADING}
    inherited["PYTHONPATH"] = os.pathsep.join(filter(None, [str(DRIVERS.parents[1]), inherited.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(DRIVERS), scenario, str(model_dir)],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def variables(model_dir):
    return run("variables", model_dir, **BY_VARIABLE)


@pytest.fixture(scope="module")
def nodes(model_dir):
    return run("nodes", model_dir, **BY_VARIABLE)


@pytest.fixture(scope="module")
def doctor(model_dir):
    return run("doctor", model_dir, **BY_VARIABLE)


@pytest.fixture(scope="module")
def store(model_dir):
    return run("store", model_dir, **BY_VARIABLE)


def keys_of(columns):
    return [key for key, _, _ in columns]


EVERY_KEY = ["acc", "score", "judge", "steps", "format_reward", "detail"]


def test_workers_of_a_cluster_that_never_saw_the_variable_load_the_plugin_since_it_travels_in_verls_environment(
    variables,
):
    assert keys_of(variables["told"]) == EVERY_KEY


def test_without_that_they_do_not_and_the_first_batch_names_their_node_and_the_line_to_add(variables):
    name, message = variables["not told"]
    assert name == "PluginMissingError"
    assert "2 of 2 workers do not run verl-ext's patch site 'reward_loop': worker 0 on node" in message
    assert "VERL_USE_EXTERNAL_MODULES=verl_ext.autoload" in message


@pytest.mark.parametrize("path", ["reward loop", "agent loop"])
def test_workers_spread_over_four_nodes_give_what_one_node_gives(path, nodes, variables):
    assert nodes["nodes"][path] == 4
    columns = nodes[path]
    assert keys_of(columns) == EVERY_KEY
    one_node = {key: (dtype, values) for key, dtype, values in variables["told"]}
    for key, dtype, values in columns:
        assert (dtype, values[:8]) == one_node[key]
        assert len(values) == 16


@pytest.mark.parametrize("path", ["reward loop", "agent loop"])
def test_a_node_that_dies_in_the_midst_of_a_batch_is_rays_own_error_and_the_next_batch_is_right(path, nodes):
    name, message = nodes[f"{path}, a node dies"]
    # Which of Ray's errors it is depends on how far Ray is in finding out; the agent loop's is met in a worker.
    cause = name.removeprefix("RayTaskError(").removesuffix(")")
    assert issubclass(getattr(ray.exceptions, cause, Exception), ray.exceptions.RayError), message
    assert nodes[f"{path}, on the nodes left"] == nodes[path]


@pytest.mark.parametrize("path", ["reward loop", "agent loop"])
def test_batches_larger_than_the_object_store_arrive_and_the_next_one_is_right(path, store, variables):
    assert store[path] == [10_000_000] * 12
    told = {key: values for key, _, values in variables["told"]}
    assert {key: values[:8] for key, _, values in store[f"{path}, afterwards"]} == told


def test_the_doctor_asks_a_fresh_worker_on_each_node(doctor):
    covered, told = doctor["whole"]
    assert covered, told
    assert "Ray worker on" in told
    assert "Every path of this verl is covered." in told


def test_the_doctor_finds_the_node_that_does_not_load_the_plugin(doctor):
    covered, told = doctor["broken"]
    assert not covered
    assert "loaded, and disabled by VERL_EXT_DISABLE=1" in " ".join(told.split())
    assert "unset VERL_EXT_DISABLE" in told
    assert all(len(line) <= 80 for line in told.splitlines())
    processes = doctor["json"]["processes"]
    assert sorted(process["covered"] for process in processes) == [False, True, True]
    assert all(process["versions"]["verl"] == version("verl") for process in processes)
