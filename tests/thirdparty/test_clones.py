"""Clones of verl between two releases: a function that is not there yet, or not any more, and which verl is meant."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import verl

from verl_ext import plugin
from verl_ext.plugin import SITES, PatchSite, State

DOCTOR = [sys.executable, "-m", "verl_ext", "doctor", "--json"]


def without(site, *targets):
    """A site of ours, applied to a copy of verl's module whose classes lack these functions; the site."""
    module = ModuleType(site.module)
    vars(module).update(vars(import_module(site.module)))
    for patch in site._patches:
        *path, name = patch.target.split(".")
        if not path or not hasattr(module, path[0]) or not isinstance(getattr(module, path[0]), type):
            continue
        owner = getattr(module, path[0])
        if owner.__module__ == site.module and not hasattr(owner, "_copy"):
            copied = type(owner.__name__, owner.__bases__, {**_own(owner), "_copy": True})
            setattr(module, path[0], copied)
    for target in targets:
        *path, name = target.split(".")
        delattr(getattr(module, path[0]) if path else module, name)
    applied = PatchSite(site.name, site.module, site.purpose, State.WAITING, _patches=list(site._patches))
    applied.apply(module)
    state, detail = applied.state, applied.detail
    applied.undo()  # what the module shares with others, such as TransferQueue, is as it was
    applied.state, applied.detail = state, detail
    return applied


def _own(owner):
    return {name: value for name, value in vars(owner).items() if name not in ("__dict__", "__weakref__")}


GONE = [
    # site, function, since when verl has it
    ("replay_buffer", "ReplayBuffer._dapo_filtered_keys", "c88e875dd, 2026-07-23: no group filter before"),
    ("trainer_v1", "PPOTrainer._write_generations", "657cfa5ee, 2026-05-18: dumps at once before"),
    ("main_ppo_sync", "PPOTrainer._write_generations", "657cfa5ee, 2026-05-18: dumps at once before"),
    ("trainer_v1", "PPOTrainer._compute_reward_colocate", "no reward model on the trainer's GPUs before"),
]


@pytest.mark.parametrize(("name", "target", "since"), GONE)
def test_a_function_that_is_not_there_is_not_needed_and_the_rest_of_the_site_is_applied(name, target, since, stock):
    pytest.importorskip(SITES[name], reason="this verl has no such module")
    site = import_module(f"verl_ext.plugin.{name}").site
    with stock():
        applied = without(site, target)
    assert applied.state is not State.UNKNOWN, applied.detail
    others = [patch.target for patch in site._patches if patch.target != target]
    assert applied.state is (State.ACTIVE if others else State.NOT_NEEDED)
    assert all(other in applied.detail for other in others)


LOSES_VALUES = [
    ("protocol", "DataProto.concat"),
    ("reward_loop", "RewardLoopManager.compute_rm_score"),
    ("agent_loop", "AgentLoopWorker._postprocess"),
]


@pytest.mark.parametrize(("name", "target"), LOSES_VALUES)
def test_a_function_that_is_not_there_and_without_which_values_are_lost_is_unknown_and_loud(name, target, stock):
    site = import_module(f"verl_ext.plugin.{name}").site
    with stock():
        applied = without(site, target)
    assert applied.state is State.UNKNOWN
    assert target in applied.detail


def test_the_fully_async_manager_is_found_where_clones_before_2026_04_29_have_it(tmp_path):
    """Until 3c5f6e049 it stood in `fully_async_policy.agent_loop.agent_loop`, with the same method."""
    moved = (
        "import importlib, sys, types\n"
        "import verl.experimental.fully_async_policy as package\n"
        "from verl_ext import plugin\n"
        "plugin.deactivate()\n"
        "now = importlib.import_module('verl.experimental.fully_async_policy.fully_async_rollouter')\n"
        "manager = now.FullyAsyncAgentLoopManager\n"
        "del now.FullyAsyncAgentLoopManager\n"
        "name = package.__name__ + '.agent_loop'\n"
        "for module in (name, name + '.agent_loop'):\n"
        "    made = sys.modules[module] = types.ModuleType(module)\n"
        "    made.FullyAsyncAgentLoopManager = manager\n"
        "manager.__module__ = name + '.agent_loop'\n"
        "plugin.activate()\n"
        "print([str(s.state.value) for s in plugin.status() if s.name.startswith('fully_async')])\n"
    )
    pytest.importorskip("verl.experimental.fully_async_policy.fully_async_rollouter")
    run = subprocess.run([sys.executable, "-c", moved], capture_output=True, text=True, timeout=300)
    assert run.stdout.splitlines()[-1] == "['not needed', 'active']", run.stdout + run.stderr[-2000:]


def test_the_doctor_examines_the_clone_that_it_is_started_in_and_says_its_version_and_place(tmp_path):
    """`python -m` sees it before the installed verl, whose metadata say another version."""
    clone = tmp_path / "verl"
    (clone / "version").mkdir(parents=True)
    (clone / "version" / "version").write_text("0.10.0.dev\n")
    for entry in Path(verl.__file__).parent.iterdir():
        if entry.name not in ("version", "__pycache__"):
            (clone / entry.name).symlink_to(entry)
    run = subprocess.run(DOCTOR, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert isinstance(json.loads(run.stdout), dict)
    assert "0.10.0.dev" in run.stdout
    assert str(clone) in run.stdout


def test_every_site_of_the_installed_verl_is_known():
    unknown = [(report.name, report.detail) for report in plugin.status() if report.state is State.UNKNOWN]
    assert unknown == []
