"""How the driver's share of a batch grows with the number of workers and rows: the figures of docs/scale.md."""

from __future__ import annotations

import gc
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from inputs import make_rows
from tensordict import TensorDict
from verl import DataProto

from verl_ext import SparseDataProto, SparseNonTensor, assemble_reward_extra_info, plugin
from verl_ext.plugin._workers import marked

LENGTH = 64
"""Tokens of a response: what a real one has more, stock verl and verl-ext move alike."""

SIZES = [(131_072, 8), (131_072, 64), (131_072, 512), (131_072, 1024), (16_384, 512), (1_048_576, 1024)]


def tensors(rows):
    shape = (rows, LENGTH)
    held = {"responses": torch.zeros(shape, dtype=torch.int64), "rm_scores": torch.zeros(shape)}
    return TensorDict(held, batch_size=rows)


def as_workers_return(rows, chunks):
    """What workers of verl-ext hand to the manager: raw columns."""
    columns = np.split(SparseNonTensor(rows), chunks)
    return [SparseDataProto(tensors(len(part)), {"reward_extra_info": part}, {"metrics": []}) for part in columns]


def as_stock_workers_return(rows, chunks):
    """What stock workers hand to the manager: columns of one schema, and the dicts beside them."""
    parts = np.split(np.fromiter(rows, dtype=object), chunks)
    infos = {"metrics": [], "reward_extra_keys": list(rows[0])}
    return [
        DataProto(tensors(len(part)), {**assemble_reward_extra_info(part.tolist()), "reward_extra_info": part}, infos)
        for part in parts
    ]


@pytest.mark.parametrize(("rows", "chunks"), SIZES)
def bench_the_drivers_share(rows, chunks, times, table):
    ours = as_workers_return(make_rows(rows, 4, 12), chunks)
    theirs = as_stock_workers_return(make_rows(rows, 1, 12), chunks)
    plugin.deactivate()  # the peer is stock verl's own `concat`
    gc.collect()
    took = times(lambda: SparseDataProto.concat(ours).finalize(), rounds=3, stock=partial(DataProto.concat, theirs))
    plugin.activate()
    milliseconds = (f"{1e3 * seconds:,.0f} ms" for seconds in (took["ours"], took["stock"]))
    where = f"{rows:,} rows, {chunks:,} chunks, 12 keys"
    ratio = took["ours"] / took["stock"]
    target = "<= 3" if rows == 131_072 else ""
    table.add("concat and finalize, 4 schemas / stock's concat, 1 schema", where, *milliseconds, ratio, target)


def bench_what_a_mark_adds_to_a_request(table):
    batch = DataProto(TensorDict({"responses": torch.zeros(16, LENGTH)}, batch_size=16), {}, {"global_steps": 1})
    sizes = [len(pickle.dumps(one)) for one in (marked(batch), batch)]
    table.add("a marked request / stock's, bytes", "16 rows", *(f"{size:,} B" for size in sizes), sizes[0] / sizes[1])
