"""Drivers of clusters that were started elsewhere: each scenario runs in a process of its own and prints JSON.

Four raylets on this machine stand for four machines (`ray.cluster_utils.Cluster`); the rest is verl's own.
"""

import copy
import json
import os
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import ray
from actors import release
from ray.cluster_utils import Cluster

SCORERS = Path(__file__).with_name("scorers.py")
LOADING = ("VERL_USE_EXTERNAL_MODULES", "VERL_USE_EXTERNAL_PLUGINS", "VERL_EXT_DISABLE")


def start(nodes, **environment):
    """A cluster whose processes see `environment`, and nothing else by which verl loads plugins."""
    ours = {name: os.environ.pop(name) for name in LOADING if name in os.environ}
    os.environ.update(environment)
    quick = {"health_check_period_ms": 500, "health_check_failure_threshold": 4}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 8, "_system_config": quick})
    for _ in range(nodes - 1):
        cluster.add_node(num_cpus=8)
    cluster.wait_for_nodes()
    for name in environment:
        del os.environ[name]
    os.environ.update(ours)
    return cluster


@contextmanager
def connected(cluster):
    """As verl's `main_ppo` connects: with its environment for workers."""
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    ray.init(cluster.address, runtime_env=get_ppo_ray_runtime_env(), log_to_driver=False, logging_level="ERROR")
    try:
        yield
    finally:
        ray.shutdown()


def plain(batch):
    """The reward columns of a batch as JSON holds them, their dtypes and their order."""
    keys = batch.meta_info["reward_extra_keys"]
    columns = batch.non_tensor_batch
    return [[key, str(columns[key].dtype), columns[key].tolist()] for key in keys]


def custom(function):
    return [f"reward.custom_reward_function.path='{SCORERS}'", f"reward.custom_reward_function.name={function}"]


def outcome(call, *args):
    """What a call returned, as `plain` has it, or its error by name."""
    try:
        return plain(call(*args))
    except Exception as error:
        return [type(error).__name__, str(error)]


def variables(model_dir):
    """A cluster whose processes load no plugin unless they are told: with our forwarding, and without."""
    from verl_ext.demo import rig
    from verl_ext.demo.data import read_rows

    without = start(1, VERL_USE_EXTERNAL_PLUGINS="none")
    import verl_ext.plugin
    import verl_ext.plugin.runtime_env

    rows = read_rows()[:8]
    results = {}
    config = rig.compose_config(model_dir, [*custom("conditional_keys"), "reward.num_workers=2"])
    for told in ("told", "not told"):
        if told == "not told":
            import verl.trainer.constants_ppo  # noqa: F401

            verl_ext.plugin.runtime_env.site.undo()
        with connected(without):
            manager = rig.reward_loop_manager(config)
            results[told] = outcome(manager.compute_rm_score, rig.scored_batch(rows, config))
            release(manager)
    without.shutdown()
    return results


def nodes(model_dir):
    """Four nodes: the reward loop and the agent loop over them, and a node that dies in the midst of a batch."""
    from verl_ext.demo import rig
    from verl_ext.demo.data import read_rows

    cluster = start(4)
    rows = read_rows()[:16]

    def configured(scorer, workers):
        counts = [f"reward.num_workers={workers}", f"actor_rollout_ref.rollout.agent.num_workers={workers}"]
        return rig.compose_config(model_dir, [*custom(scorer), *counts])

    config, slow = configured("conditional_keys", 4), configured("slow_keys", 2)
    results = {}
    with connected(cluster):
        client = rig.RecordedClient(rows, config)
        rewards = rig.reward_loop_manager(config)
        loops = rig.agent_loop_manager(config, client, rewards.reward_loop_workers)
        workers = {"reward loop": rewards.reward_loop_workers, "agent loop": loops.agent_loop_workers}
        results["nodes"] = {path: len({*ray.get([node_of(w) for w in these])}) for path, these in workers.items()}
        results["reward loop"] = outcome(rewards.compute_rm_score, rig.scored_batch(rows, config))
        results["agent loop"] = outcome(loops.generate_sequences, rig.prompt_batch(rows))
        release(loops)
        release(rewards)

        for path in ("reward loop", "agent loop"):
            manager = rewards = rig.reward_loop_manager(slow)
            call, workers, batch = rewards.compute_rm_score, rewards.reward_loop_workers, rig.scored_batch(rows, slow)
            if path == "agent loop":
                manager = rig.agent_loop_manager(slow, client, rewards.reward_loop_workers)
                call, workers, batch = manager.generate_sequences, manager.agent_loop_workers, rig.prompt_batch(rows)
            places = ray.get([node_of(worker) for worker in workers])
            dying = next(node for node in cluster.worker_nodes if node.node_id in places)
            threading.Timer(2.0, cluster.remove_node, [dying], {"allow_graceful": False}).start()
            results[f"{path}, a node dies"] = outcome(call, batch)
            release(manager)
            release(rewards)
            until_gone(dying.node_id)

        config = configured("conditional_keys", 2)
        rewards = rig.reward_loop_manager(config)
        loops = rig.agent_loop_manager(config, client, rewards.reward_loop_workers)
        results["reward loop, on the nodes left"] = outcome(rewards.compute_rm_score, rig.scored_batch(rows, config))
        results["agent loop, on the nodes left"] = outcome(loops.generate_sequences, rig.prompt_batch(rows))
    cluster.shutdown()
    return results


def until_gone(node_id):
    """Wait until Ray has noticed that a node is dead: verl spreads its workers over those that Ray calls alive."""
    deadline = time.monotonic() + 60
    while any(node["NodeID"] == node_id and node["Alive"] for node in ray.nodes()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"Ray still calls the node {node_id} alive")
        time.sleep(0.2)


def node_of(worker):
    return worker.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())


def doctor(_):
    """What the doctor says of a cluster of which one node loads no plugins."""
    from verl_ext.doctor import Diagnosis, examine, examine_nodes, told

    cluster = start(1)
    found = Diagnosis((examine(), *examine_nodes(cluster.address)))
    whole = [found.covered, told(found)]
    os.environ["VERL_EXT_DISABLE"] = "1"  # as on a machine with another image
    cluster.add_node(num_cpus=1)
    del os.environ["VERL_EXT_DISABLE"]
    found = Diagnosis((examine(), *examine_nodes(cluster.address)))
    cluster.shutdown()
    return {"whole": whole, "broken": [found.covered, told(found)], "json": found.as_json()}


def store(model_dir):
    """An object store of 80 MB that spills nothing, and batches that reply with 120 MB of text."""
    from verl_ext.demo import rig
    from verl_ext.demo.data import read_rows

    ray.init(
        address="local",
        num_cpus=8,
        object_store_memory=80 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _system_config={"automatic_object_spilling_enabled": False},
    )
    config = rig.compose_config(model_dir, [*custom("as_told"), "actor_rollout_ref.rollout.agent.num_workers=2"])
    rows = read_rows()[:12]
    large = copy.deepcopy(rows)
    for row in large:
        row["extra_info"]["wrong"] = "returns 10 MB of text"
    rewards = rig.reward_loop_manager(config)
    loops = rig.agent_loop_manager(config, rig.RecordedClient(rows, config), rewards.reward_loop_workers)
    calls = {
        "reward loop": lambda rows: rewards.compute_rm_score(rig.scored_batch(rows, config)),
        "agent loop": lambda rows: loops.generate_sequences(rig.prompt_batch(rows)),
    }
    results = {}
    for path, call in calls.items():
        results[path] = [len(text) for text in call(large).non_tensor_batch["text"]]
        results[f"{path}, afterwards"] = outcome(call, rows)
    ray.shutdown()
    return results


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]))))
