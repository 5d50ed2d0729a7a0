"""A stand-in for TransferQueue, which needs Ray: samples by key in a dict, packed as its own storage packs them."""

from contextlib import contextmanager
from unittest import mock

import transfer_queue
from tensordict import TensorDict
from transfer_queue.storage.managers.simple_storage_manager import AsyncSimpleStorageManager

from verl_ext.plugin import State, trainer_v1


class QueueInMemory:
    """By partition and key, the fields of a sample; without what TransferQueue keeps beside them."""

    def __init__(self):
        self.partitions = {}

    def kv_batch_put(self, keys, partition_id, fields=None, tags=None):
        for row, key in enumerate(keys):
            sample = self.partitions.setdefault(partition_id, {}).setdefault(key, {})
            sample.update({} if fields is None else {name: values[row] for name, values in fields.items()})

    def kv_batch_get(self, keys, partition_id, select_fields=None):
        samples = [self.partitions[partition_id][key] for key in keys]
        wanted = [select_fields] if isinstance(select_fields, str) else select_fields
        names = [name for name in samples[0] if wanted is None or name in wanted]
        pack = AsyncSimpleStorageManager._pack_field_values
        packed = {name: pack([sample[name] for sample in samples]) for name in names}
        return TensorDict(packed, batch_size=len(samples) if packed else 0)

    def kv_clear(self, keys, partition_id):
        for key in keys:
            del self.partitions[partition_id][key]

    @contextmanager
    def in_place(self):
        """For the length of a `with`, verl's trainer talks to this queue; through our patch, where that acts."""
        get = self.kv_batch_get if trainer_v1.site.state is not State.ACTIVE else _patched(self.kv_batch_get)
        with mock.patch.multiple(
            transfer_queue, kv_batch_put=self.kv_batch_put, kv_batch_get=get, kv_clear=self.kv_clear
        ):
            yield self


def _patched(function):
    (patch,) = [patch for patch in trainer_v1.site._patches if patch.target == "tq.kv_batch_get"]
    return patch.teach(function)
