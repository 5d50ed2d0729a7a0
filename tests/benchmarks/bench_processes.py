"""Whole processes: what the plugin adds to `import verl`, and to verl's managers on real Ray, uniform batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import IO, Any

IMPORTS = 5
ROUNDS = 12
OFF = {"VERL_EXT_DISABLE": "1"}


def bench_import_of_verl(table):
    took: dict[str, list[float]] = {"on": [], "off": []}
    for _ in range(IMPORTS):
        for leg in took:
            script = "from time import perf_counter as t; a = t(); import verl; print(t() - a)"
            env = {**os.environ, **(OFF if leg == "off" else {})}
            output = subprocess.run([sys.executable, "-c", script], env=env, check=True, capture_output=True, text=True)
            took[leg].append(1e3 * float(output.stdout.split()[-1]))
    on, off = min(took["on"]), min(took["off"])
    where = f"the least of {IMPORTS}; the difference is {on - off:+.1f} ms"
    table.add("import verl, plugin on / VERL_EXT_DISABLE=1", where, f"{on:.0f} ms", f"{off:.0f} ms", on / off)


def bench_managers_on_real_ray(table):
    with ExitStack() as stack:
        legs = {name: stack.enter_context(_leg(env)) for name, env in {"on": {}, "off": OFF}.items()}
        took: dict[str, dict[str, list[float]]] = {name: {} for name in legs}
        for _ in range(ROUNDS):
            for name, leg in legs.items():
                for path, seconds in _round(leg).items():
                    took[name].setdefault(path, []).append(1e3 * seconds)
    for path in took["on"]:
        on, off = (sorted(took[name][path][2:]) for name in ("on", "off"))  # the first rounds warm up
        spread = f"spread on {on[0]:.0f} to {on[-1]:.0f} ms, off {off[0]:.0f} to {off[-1]:.0f} ms"
        table.add(
            f"{path}, plugin on / off",
            f"uniform batch, {len(on)} rounds; {spread}",
            f"{median(on):.0f} ms",
            f"{median(off):.0f} ms",
            median(on) / median(off),
        )


@contextmanager
def _leg(env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    leg = subprocess.Popen(
        [sys.executable, Path(__file__).with_name("leg.py")],
        env={**os.environ, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        _answer(leg)
        yield leg
    finally:
        _pipe(leg.stdin).close()
        leg.wait(60)


def _round(leg: subprocess.Popen[str]) -> Any:
    _pipe(leg.stdin).write("again\n")
    _pipe(leg.stdin).flush()
    return _answer(leg)


def _answer(leg: subprocess.Popen[str]) -> Any:
    for line in _pipe(leg.stdout):  # verl prints, too
        if line.startswith("leg: "):
            return json.loads(line.removeprefix("leg: "))
    raise RuntimeError("the leg ended")


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
