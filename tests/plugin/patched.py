"""What is looked at of verl's patched functions, in this process and in others; imported there, so without pytest."""

import json
import os
import subprocess
import sys
import textwrap
from functools import reduce
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import processes
from held import HELD

from verl_ext import plugin
from verl_ext.plugin import SITES
from verl_ext.plugin._site import taught_by

WITH_ENTRY_POINTS = tuple(map(int, version("verl").split(".")[:2])) >= (0, 9)

OF_SOME_VERSIONS = {
    "AgentLoopWorker._compute_score",
    "AgentLoopOutput.as_dict",
    "RayPPOTrainer._init_dump_executor",
    "RayPPOTrainer._write_generations",
    "RayPPOTrainer._dump_generations",
    *(["run_ppo"] if "main_ppo_sync" not in HELD else []),
}
"""Targets that are taught only where a verl has the fault, or the function: they have tests of their own."""

ABSENT = dict.fromkeys(SITES.keys() - HELD.keys(), "waiting")

TARGETS = [
    (name, patch.target)
    for name in HELD
    for patch in import_module(f"verl_ext.plugin.{name}").site._patches
    if patch.target not in OF_SOME_VERSIONS
]

NEEDED = {name for name, _ in TARGETS}
ALL_ACTIVE = {name: "active" if name in NEEDED else "not needed" for name in HELD} | ABSENT
ALL_OFF = dict.fromkeys(SITES, "disabled")


def states():
    return {site.name: site.state.value for site in plugin.status()}


def standing(module, target):
    """What stands at a dotted name: a function, or a static or class method."""
    *path, name = target.split(".")
    return vars(reduce(getattr, path, module)).get(name)


def function_at(name, target):
    found = standing(sys.modules[SITES[name]], target)
    return getattr(found, "__func__", found)


def marks():
    """By site, the marks on all of verl's functions that it teaches and that are imported."""
    imported = [(name, target) for name, target in TARGETS if SITES[name] in sys.modules]
    return {name: {taught_by(function_at(site, target)) for site, target in imported if site == name} for name in HELD}


TAUGHT = {name: {name} & NEEDED for name in HELD}
STOCK = {name: {None for _ in {name} & NEEDED} for name in HELD}


def in_new_python(code, *, env):
    """`code` run by a Python that has imported nothing yet."""
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)


def in_new_process(code, path=(), start=processes.run, **environment):
    """What `code` leaves in `result`, from a process of its own with no setting of verl's plugins but `environment`."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("VERL_EXT", "VERL_USE_EXTERNAL"))
    }
    prelude = f"import sys, logging, json; sys.path[:0] = {[*map(str, path)]!r}; result = None\n"
    code = prelude + textwrap.dedent(code) + "\nprint(json.dumps(result))"
    done = start(code, env={**inherited, **environment})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


HERE = Path(__file__).parents[:2]


LOOK = """
def look():
    from patched import marks, states
    return [states(), {name: [*found] for name, found in marks().items()}]
"""


def seen(states, marks):
    """As `look` tells it, by JSON."""
    return [states, {name: [*found] for name, found in marks.items()}]


def who_teaches_concat():
    """Asked of a child process."""
    import verl

    return taught_by(verl.DataProto.concat)
