"""Teaches `run_ppo` to run what a site teaches: the trainer's module of verl 0.8, and not a copy of it.

`python -m verl.trainer.main_ppo_sync` is that module under the name `__main__`, as which nobody imports it; and Ray
would send the classes that are defined there to its workers by value, where they meet no plugin either.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from os.path import realpath
from typing import Any

from verl_ext.plugin._site import Function, PatchSite

PROGRAM = "verl.trainer.main_ppo_sync"

site = PatchSite(
    name="main_ppo",
    module="verl.trainer.main_ppo",
    purpose=f"`python -m {PROGRAM}` runs as on stock verl",
)


def _program() -> str | None:
    """The file of the trainer that is a program, in verl 0.8; `None` in another verl."""
    spec = find_spec(PROGRAM)
    return spec.origin if spec is not None else None


@site.wraps("run_ppo", "config", "task_runner_class", needed=lambda _: _program() is not None)
def _run_ppo(stock: Function) -> Function:
    def run_ppo(config: Any, task_runner_class: Any = None) -> Any:
        main, program = sys.modules["__main__"], _program()
        is_program = program is not None and realpath(getattr(main, "__file__", None) or "") == realpath(program)
        if is_program and task_runner_class is main.TaskRunner:
            task_runner_class = import_module(PROGRAM).TaskRunner
        return stock(config, task_runner_class)

    return run_ppo
