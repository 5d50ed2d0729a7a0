"""A child process, and the group that it leads, end with a block of code."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ended(process: subprocess.Popen[Any], by: signal.Signals, patience: float) -> Iterator[None]:
    """Whatever ends the block ends the process: by a signal on which it ends its Ray, too, else by force.

    Args:
        process: the leader of a process group.
        by: what it is sent first.
        patience: seconds that it has then; a second Ctrl-C waits no longer.
    """
    try:
        yield
    finally:
        if process.poll() is None:
            process.send_signal(by)
            try:
                process.wait(patience)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                os.killpg(process.pid, signal.SIGKILL)
