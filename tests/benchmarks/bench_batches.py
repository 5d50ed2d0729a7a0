"""Batches: `concat` of raw chunks, merging of finalized ones, and the way of a column from process to process."""

from __future__ import annotations

import pickle
from functools import partial

import cloudpickle
import numpy as np
import pytest
from inputs import make_rows

from verl_ext import SparseDataProto, SparseNonTensor
from verl_ext.column import join_columns

RAW = "reward_extra_info"
ROWS = 16_384


def batch(rows: np.ndarray) -> SparseDataProto:
    return SparseDataProto(non_tensor_batch={RAW: rows})


@pytest.mark.parametrize("chunks", [8, 64, 256, 1024])
@pytest.mark.parametrize("rows", [ROWS, 262_144])
def bench_joining_raw_columns(rows, chunks, times, table):
    column = SparseNonTensor(make_rows(rows, 4, 3))
    parts = np.split(column, chunks)
    plain = [part.view(np.ndarray) for part in parts]
    assert join_columns(parts).tolist() == np.concatenate(plain).tolist()
    took = times(partial(join_columns, parts), rounds=30, plain=partial(np.concatenate, plain))
    where = f"{rows:,} rows, {chunks:,} chunks"
    table.add("concat of columns / of plain arrays", where, *microseconds(took, "plain"), "<= 1.1")


@pytest.mark.parametrize("rows", [ROWS, 262_144])
def bench_concat_is_linear(rows, times, table):
    chunks = [batch(part) for part in np.split(SparseNonTensor(make_rows(rows, 4, 3)), 1024)]
    few = [batch(part) for part in np.split(SparseNonTensor(make_rows(ROWS // 4, 4, 3)), 256)]
    took = times(partial(SparseDataProto.concat, chunks), rounds=9, few=partial(SparseDataProto.concat, few))
    where = f"{rows:,} rows in 1,024 batches / {ROWS // 4:,} in 256"
    ratio = took["ours"] / took["few"] / max(1024 / 256, 1 if rows == ROWS else rows / ROWS * 4)
    table.add("concat of batches, time per row or chunk", where, *microseconds(took, "few")[:2], ratio)


@pytest.mark.parametrize("chunks", [8, 64])
@pytest.mark.parametrize("values", ["numbers", "text", "mixed"])
def bench_merging_finalized_chunks(values, chunks, times, table):
    column = SparseNonTensor(make_rows(ROWS, 4, 12, values))
    parts = [batch(part).finalize() for part in np.split(column, chunks)]
    whole, merged = batch(column).finalize(), SparseDataProto.concat(parts)
    for name, values_of_name in whole.non_tensor_batch.items():
        assert merged.non_tensor_batch[name].dtype == values_of_name.dtype
        assert merged.non_tensor_batch[name].tolist() == values_of_name.tolist()
    took = times(partial(SparseDataProto.concat, parts), whole=lambda: batch(column).finalize())
    where = f"{ROWS:,} rows, 4 schemas, 12 keys, {values}, {chunks} chunks"
    table.add("merging finalized chunks / finalizing all", where, *microseconds(took, "whole"), "<= 1.5")


@pytest.mark.parametrize("way", ["pickle", "cloudpickle", "ray"])
def bench_transport(way, times, table):
    rows = make_rows(ROWS, 4, 12)
    column, plain = SparseNonTensor(rows), np.fromiter(rows, object)
    if way == "ray":
        import ray
        from ray._private.worker import global_worker

        from verl_ext.demo import rig

        with rig.local_ray():
            took = times(lambda: ray.get(ray.put(column)), rounds=9, plain=lambda: ray.get(ray.put(plain)))
            serialize = global_worker.get_serialization_context().serialize
            sizes = [serialize(one).total_bytes for one in (column, plain)]
    else:
        dumps = {"pickle": pickle.dumps, "cloudpickle": cloudpickle.dumps}[way]
        there_and_back = lambda one: pickle.loads(dumps(one, protocol=5))  # noqa: E731, S301
        assert there_and_back(column).tolist() == there_and_back(plain).tolist() == rows
        took = times(partial(there_and_back, column), plain=partial(there_and_back, plain))
        sizes = [len(dumps(one, protocol=5)) for one in (column, plain)]
    where = f"{ROWS:,} rows, 4 schemas, 12 keys, mixed"
    table.add(f"{way} there and back / plain array, time", where, *microseconds(took, "plain"), "<= 1.05")
    table.add(f"{way} / plain array, bytes", where, *(f"{size:,} B" for size in sizes), sizes[0] / sizes[1], "<= 1.05")


def microseconds(took: dict[str, float], peer: str) -> tuple[str, str, float]:
    ours, theirs = took["ours"], took[peer]
    return f"{1e6 * ours:,.0f} µs", f"{1e6 * theirs:,.0f} µs", ours / theirs
