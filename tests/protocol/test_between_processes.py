"""Batches on their way to other processes: verl's serialization, the disk, futures on real Ray, `all_gather`."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from batches import BOTH, ROWS, assert_holds, bare, batch_of, columns_of, everything, finalized, plain
from verl import DataProto
from verl import protocol as verl_protocol
from verl.protocol import DataProtoFuture

from verl_ext.column import RAW_COLUMN


def through_disk(batch: DataProto, folder: Path) -> DataProto:
    batch.save_to_disk(folder / "batch.pkl")
    return DataProto.load_from_disk(folder / "batch.pkl")


@BOTH
@pytest.mark.parametrize(
    ("method", "rows", "tensors"),
    [
        (None, ROWS, True),
        (None, ROWS, False),
        (None, [], True),
        (None, [], False),
        ("numpy", ROWS, True),
        ("numpy", ROWS, False),
        ("numpy", [], False),  # (verl's "numpy" method cannot read tensors of 0 rows)
    ],
)
def test_both_serialization_methods_and_the_disk_keep_the_column(
    cls: type[DataProto], method: str | None, rows: Any, tensors: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("VERL_DATAPROTO_SERIALIZATION_METHOD", raising=False)
    if method is not None:
        monkeypatch.setenv("VERL_DATAPROTO_SERIALIZATION_METHOD", method)
    batch = batch_of(cls, rows, tensors=tensors)
    results = [pickle.loads(pickle.dumps(batch)), through_disk(batch, tmp_path)]  # noqa: S301
    assert all(type(result) is cls for result in results)
    assert_holds(results, everything(len(rows)) * 2, rows)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
@BOTH
def test_a_future_of_remote_chunks_gives_the_whole_batch_and_its_chunks(cls: type[DataProto]) -> None:
    future = DataProtoFuture.concat([ray.put(chunk) for chunk in batch_of(cls).chunk(2)])
    assert_holds([future.get()], everything(4), ROWS)
    assert_holds([part.get() for part in future.chunk(4)], everything(4), ROWS)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
@BOTH
def test_a_future_takes_chunks_of_unequal_schemas_and_states(cls: type[DataProto]) -> None:
    chunks = [finalized([{"acc": 1.0}]), batch_of(cls, [{"pred": "42"}], first=1)]
    batch = DataProtoFuture.concat([ray.put(chunk) for chunk in chunks]).get()
    assert columns_of(batch)["acc"] == ("object", [1.0, None])
    assert columns_of(batch)["pred"] == ("object", [None, "42"])


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session", "stock_verl")
def test_a_future_on_stock_verl_loses_a_bare_subclass_and_refuses_unequal_schemas() -> None:
    chunks = batch_of(DataProto, column=bare).chunk(2)
    whole = DataProtoFuture.concat(list(map(ray.put, chunks))).get()
    assert type(whole.non_tensor_batch[RAW_COLUMN]) is np.ndarray
    chunks = [plain(["u0"], acc=[1.0]), plain(["u1"], pred=["42"])]
    with pytest.raises(AssertionError, match="keys of the first dictionary"):
        DataProtoFuture.concat(list(map(ray.put, chunks))).get()


@pytest.fixture
def process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A real gloo group of one process. The device id is a double: verl asks for an accelerator's, a CPU has none."""

    def device_id_double() -> str:
        return "cpu"

    monkeypatch.setattr(verl_protocol, "get_device_id", device_id_double)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


@BOTH
@pytest.mark.parametrize("rows", [ROWS, []], ids=["4 rows", "0 rows"])
def test_all_gather_keeps_the_column(cls: type[DataProto], rows: Any, process_group: Any) -> None:
    batch = batch_of(cls, rows)
    verl_protocol.all_gather_data_proto(batch, process_group)
    assert_holds([batch], everything(len(rows)), rows)


@pytest.mark.usefixtures("stock_verl")
def test_all_gather_loses_a_bare_subclass(process_group: Any) -> None:
    batch = batch_of(DataProto, column=bare)
    verl_protocol.all_gather_data_proto(batch, process_group)
    assert_holds([batch], everything(4), ROWS, column=np.ndarray)
