"""Workers in this process behind handles that look like Ray's: what goes in and out is pickled, as between processes.

A double for Ray's actors, and for nothing else. What only a process of its own shows is in `test_processes.py`.
"""

import asyncio
import threading
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import ray
from ray import cloudpickle

_loop = asyncio.new_event_loop()
_thread = threading.Thread(target=_loop.run_forever, name="actors", daemon=True)
_thread.start()
_handles = []


class Handle:
    """The handle of a worker that lives on an event loop of its own, as an async actor does."""

    def __init__(self, make):
        async def construct():
            return make()

        self._worker = asyncio.run_coroutine_threadsafe(construct(), _loop).result()
        self._number = len(_handles)
        _handles.append(self)

    def __getattr__(self, name):
        if name.startswith("__") and name != "__ray_call__":
            raise AttributeError(name)
        return SimpleNamespace(remote=lambda *args: Reply(self._call(name, *args)))

    def __reduce__(self):
        return _handles.__getitem__, (self._number,)  # a worker holds handles of others

    async def _call(self, name, *args):
        if name == "__ray_call__":
            function, *rest = args
            return function(self._worker, *rest)
        answer = await getattr(self._worker, name)(*cloudpickle.loads(cloudpickle.dumps(args)))
        return cloudpickle.loads(cloudpickle.dumps(answer))


class Reply:
    """What a remote call returns: `await` it, or `ray.get` it."""

    def __init__(self, coroutine):
        self._future = asyncio.run_coroutine_threadsafe(coroutine, _loop)

    def __await__(self):
        return asyncio.wrap_future(self._future).__await__()

    def get(self, timeout=None):
        return self._future.result(timeout)


@contextmanager
def ray_knows_replies():
    """While the block runs, `ray.get` takes replies, too."""
    get = ray.get

    def ours(refs, *args, **kwargs):
        if isinstance(refs, Reply):
            return refs.get(kwargs.get("timeout"))
        if isinstance(refs, list) and refs and isinstance(refs[0], Reply):
            return [reply.get(kwargs.get("timeout")) for reply in refs]
        return get(refs, *args, **kwargs)

    with mock.patch.object(ray, "get", ours):
        yield
