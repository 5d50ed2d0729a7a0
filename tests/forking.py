"""A process that has imported what verl imports, but not verl, and forks itself for whoever asks at its socket.

`python forking.py SOCKET`, until its standard input ends. A request is a line of JSON: what to run, by which arguments,
with which variables, where. The answer is the exit code; who hangs up before that has the fork killed.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import shlex
import signal
import socket
import sys

LIBRARIES = (
    *("numpy", "pandas", "pyarrow", "datasets", "PIL", "pydantic", "fastapi", "uvicorn", "hydra"),
    *("uvloop", "grpc", "zmq", "aiohttp"),
    *("torch", "torch._dynamo", "torch.distributed.fsdp", "tensordict", "transformers", "accelerate", "peft"),
)
"""Not Ray, nor what imports it: it reads the variables when it is imported."""


def main():
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(library)
    if found := [name for name in sys.modules if name.partition(".")[0] in ("ray", "verl", "verl_ext")]:
        sys.exit(f"{found} would be set up once for all forks")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[1])
        listener.listen(64)
        gc.freeze()
        request = asked(listener)
    if request is not None:
        run(request)


def asked(listener):
    """In each fork that is to run something, the request for it; `None` in the end, in no fork."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who watch
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            request = json.loads(connection.makefile().readline())
            fork = os.fork()
            if not fork:
                connection.close()
                return request
            watch(fork, connection)
        connection.close()
    return None


def watch(fork, connection):
    """End with the fork, and say how it ended; end it where nobody is there any more to be told."""
    ended = os.pidfd_open(fork)
    if ended not in select.select([ended, connection], [], [])[0]:  # its request is read, so it has hung up
        os.kill(fork, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(f"{code}\n".encode())
    os._exit(0)


def run(request):
    """Run the text `request["code"]`, or else the file `request["arguments"][0]`, as Python would from the start."""
    signal.alarm(request["seconds"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    for descriptor, path in enumerate((os.devnull, request["out"], request["err"])):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.execvp = in_this_process
    if request["code"] is None:
        run_file(request["arguments"])
    else:
        sys.argv = request["arguments"]
        sys.path[:] = ["", *on_path()]
        exec(compile(request["code"], "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102  whoever asks is a test


def run_file(arguments):
    sys.argv = arguments
    sys.path[:] = [os.path.dirname(arguments[0]), *on_path()]
    runpy.run_path(arguments[0], run_name="__main__")


def on_path(installed=tuple(sys.path[1:])):
    """What is on the import path of a Python that starts with the variables of now."""
    return [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *installed]


def in_this_process(file, args, execvp=os.execvp):
    """In the place of `os.execvp`: what it would start anew as `python file`, goes on in this fork.

    Ray's `setup_worker.py` so starts `default_worker.py`, in the variables of the worker's `runtime_env`.
    """
    words = shlex.split(args[2]) if args[:2] == ["bash", "-c"] else []
    if words[:2] != ["exec", sys.executable]:
        return execvp(file, args)
    run_file(words[2:])
    sys.exit()


if __name__ == "__main__":
    main()
