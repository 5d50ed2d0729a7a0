"""Which batches are ours, how they are made, what verl prints of them, and which class comes back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from batches import BOTH, ROWS, batch_of, plain
from strategies import objects
from verl import DataProto

from verl_ext.column import RAW_COLUMN, SparseNonTensor
from verl_ext.protocol import SparseDataProto, as_sparse, is_ours


@BOTH
@pytest.mark.parametrize("rows", [ROWS, []], ids=["4 rows", "0 rows"])
def test_what_verl_prints_about_a_batch_knows_the_column(
    cls: type[DataProto], rows: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = batch_of(cls, rows)
    batch.print_size("rollout")
    assert capsys.readouterr().out.startswith("rollout, Size of tensordict: ")
    assert f"  {RAW_COLUMN}: ndarray({len(rows)},) (object)" in batch.get_data_info().splitlines()


@BOTH
def test_a_batch_can_be_made_by_verls_constructors(cls: type[DataProto]) -> None:
    for batch in (
        cls.from_dict(tensors={"number": torch.arange(4)}, non_tensors={RAW_COLUMN: SparseNonTensor(ROWS)}),
        cls.from_single_dict({"number": torch.arange(4), RAW_COLUMN: SparseNonTensor(ROWS)}),
    ):
        assert type(batch) is cls
        assert type(batch.non_tensor_batch[RAW_COLUMN]) is SparseNonTensor


def test_a_batch_is_ours_by_what_it_holds_or_by_its_class() -> None:
    assert is_ours(SparseDataProto())
    assert is_ours(batch_of(DataProto))
    assert is_ours(batch_of(DataProto, column=objects))
    assert is_ours(DataProto(meta_info={"reward_extra_keys": []}))
    assert not is_ours(plain(["u0"], metrics=[{"acc": 1.0}]))
    assert not is_ours([{}])


def test_as_sparse_shares_what_a_batch_holds() -> None:
    plain_batch = batch_of(DataProto)
    ours = as_sparse(plain_batch)
    assert type(ours) is SparseDataProto
    assert ours.non_tensor_batch is plain_batch.non_tensor_batch
    assert ours.meta_info is plain_batch.meta_info
    assert as_sparse(ours) is ours


def test_a_subclass_of_ours_stays_itself() -> None:
    class Mine(SparseDataProto):
        pass

    batch = batch_of(Mine)
    assert type(DataProto.concat([batch_of(), batch])) is SparseDataProto
    assert type(DataProto.concat([batch_of(DataProto), batch])) is Mine
    assert type(batch.pop(["number"])) is Mine
    assert {type(mini_batch) for mini_batch in batch_of(Mine).make_iterator(2, 1)} == {Mine}
