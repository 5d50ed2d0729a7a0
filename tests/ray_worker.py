"""Asks `forking.py` for a fork; and so `main`, in the place of Ray's `setup_worker.py`, which starts a worker process.

Imports next to nothing: Ray starts it for each worker.
"""

import json
import os
import socket
import sys


def exit_code(path, *, arguments, code=None, environment, directory, out, err, seconds=0):
    """How a fork ends that runs `code`, or else the file `arguments[0]`.

    Args:
        path: the socket at which to ask.
        arguments: `sys.argv`.
        code: Python, as text.
        environment: its variables.
        directory: where it runs.
        out: the file that it prints to.
        err: the file that its errors go to.
        seconds: after which it is ended by SIGALRM; 0: never.
    """
    request = {
        "arguments": arguments,
        "code": code,
        "environment": environment,
        "directory": directory,
        "out": out,
        "err": err,
        "seconds": seconds,
    }
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(json.dumps(request).encode() + b"\n")
        return int(connection.makefile().readline())


def main(setup_worker, path):
    """Run Ray's `setup_worker` in a fork, with the arguments of this process, and end as it ends."""
    out, err = (f"/proc/{os.getpid()}/fd/{number}" for number in (1, 2))
    arguments = [setup_worker, *sys.argv[1:]]
    sys.exit(
        exit_code(path, arguments=arguments, environment=dict(os.environ), directory=os.getcwd(), out=out, err=err)
    )
