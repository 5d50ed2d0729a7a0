"""Python code in a process of its own, in a second: a fork of one that has imported what verl imports, but not verl.

To import verl takes ten seconds, of which nine go to the libraries that it imports. Which patches are applied, and by
which variables, is decided when verl is imported: in the fork, as in any process.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LIBRARIES = (
    *("numpy", "pandas", "pyarrow", "datasets", "PIL", "pydantic", "fastapi", "uvicorn", "hydra", "ray"),
    *("torch", "torch._dynamo", "torch.distributed.fsdp", "tensordict", "transformers", "accelerate", "transfer_queue"),
)
PATIENCE = 300
"""Seconds after which a process is ended by SIGALRM."""

FORKING = f"""
import contextlib, gc, importlib, json, os, signal, sys

for library in {LIBRARIES}:
    with contextlib.suppress(ImportError):
        importlib.import_module(library)
assert not any(name.partition(".")[0] in ("verl", "verl_ext") for name in sys.modules)
gc.freeze()
for line in sys.stdin:
    code, environment, directory, out, err = json.loads(line)
    if not os.fork():
        break
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
else:
    sys.exit()

signal.alarm({PATIENCE})
os.environ.clear()
os.environ.update(environment)
os.chdir(directory)
for descriptor, path in enumerate((os.devnull, out, err)):
    opened = os.open(path, os.O_RDWR | os.O_CREAT)
    os.dup2(opened, descriptor)
    os.close(opened)
exec(compile(code, "<string>", "exec"), {{"__name__": "__main__"}})
"""


def run(code, *, env, cwd="."):
    """`code` run by a Python with these variables: as `subprocess.run` with `-c` returns it."""
    forking = _forking()
    with tempfile.TemporaryDirectory() as directory:
        out, err = (Path(directory, name) for name in ("out", "err"))
        request = [code, dict(env), os.path.abspath(cwd), str(out), str(err)]
        forking.stdin.write(json.dumps(request) + "\n")
        forking.stdin.flush()
        exit_code = int(forking.stdout.readline())
        return subprocess.CompletedProcess(code, exit_code, out.read_text(), err.read_text())


def verl_ext(*arguments, env, cwd=".", first=""):
    """The command `verl-ext` with these arguments, after the code `first`."""
    command = f"sys.argv = ['verl-ext', *{list(arguments)!r}]; from verl_ext.__main__ import main; main()"
    return run(f"import sys; {first}\n{command}", env=env, cwd=cwd)


@functools.cache
def _forking():
    forking = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(forking.communicate)
    return forking
