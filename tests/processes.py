"""Python in processes of their own, each in a second: forks of one that has imported what verl imports, but not verl.

To import verl takes ten seconds, of which nine go to the libraries that it imports. Which patches are applied, and by
which variables, is decided when verl is imported: in the fork, as in any process.
"""

import atexit
import contextlib
import functools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import ray_worker

HERE = Path(__file__).parent
PATIENCE = 300
"""Seconds after which a process is ended by SIGALRM."""


def run(code, *, env, cwd="."):
    """`code` run by a Python with these variables: as `subprocess.run` with `-c` returns it."""
    with tempfile.TemporaryDirectory() as directory:
        out, err = (Path(directory, name) for name in ("out", "err"))
        ended = ray_worker.exit_code(
            forking(),
            arguments=["-c"],
            code=code,
            environment=dict(env),
            directory=os.path.abspath(cwd),
            out=str(out),
            err=str(err),
            seconds=PATIENCE,
        )
        return subprocess.CompletedProcess(code, ended, out.read_text(), err.read_text())


def verl_ext(*arguments, env, cwd=".", first=""):
    """The command `verl-ext` with these arguments, after the code `first`."""
    command = f"sys.argv = ['verl-ext', *{list(arguments)!r}]; from verl_ext.__main__ import main; main()"
    return run(f"import sys; {first}\n{command}", env=env, cwd=cwd)


@contextlib.contextmanager
def forked_workers():
    """Within the block, a Ray that this process starts gets forks for its worker processes."""
    from ray._private.parameter import RayParams

    rays = RayParams.update_if_absent

    def update_if_absent(self, **parameters):
        if "setup_worker_path" in parameters:
            starter = Path(forking()).with_name("setup_worker.py")
            setup = parameters["setup_worker_path"], forking()
            starter.write_text(
                f"import sys\nsys.path.insert(0, {str(HERE)!r})\nimport ray_worker\nray_worker.main(*{setup!r})\n"
            )
            parameters["setup_worker_path"] = str(starter)
        rays(self, **parameters)

    none_before_they_are_asked_for = mock.patch.dict(os.environ, RAY_prestart_worker_first_driver="0")
    with none_before_they_are_asked_for, mock.patch.object(RayParams, "update_if_absent", update_if_absent):
        yield


@functools.cache
def forking():
    """The socket of the process that forks, which ends with this one."""
    directory = tempfile.TemporaryDirectory(prefix="verl-ext-")
    path = Path(directory.name, "socket")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # each fork has its own
    command = [sys.executable, "-W", "ignore", str(HERE / "forking.py"), str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)

    def end():
        process.communicate()
        directory.cleanup()

    atexit.register(end)
    deadline = time.monotonic() + PATIENCE
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return str(path)
