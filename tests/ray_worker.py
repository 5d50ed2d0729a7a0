"""In the place of Ray's `setup_worker.py`, which starts a worker process: asks for a fork, and ends as it ends.

`python ray_worker.py SETUP_WORKER SOCKET ARGUMENTS...`; imports next to nothing.
"""

import json
import os
import socket
import sys

out, err = (f"/proc/{os.getpid()}/fd/{number}" for number in (1, 2))
_, setup_worker, path, *arguments = sys.argv
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(path)
    request = {
        "code": None,
        "arguments": [setup_worker, *arguments],
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "out": out,
        "err": err,
        "seconds": 0,
    }
    connection.sendall(json.dumps(request).encode() + b"\n")
    sys.exit(int(connection.makefile().readline() or 1))
