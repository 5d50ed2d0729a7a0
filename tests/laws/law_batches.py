"""Batches of generated rows in every form that a worker may hand over, and what the laws compare."""

from __future__ import annotations

import copy
import itertools
from functools import partial

import numpy as np
import strategies
import torch
from hypothesis import assume
from hypothesis import strategies as st
from oracle import keys_of
from strategies import ANY_KEYS, alike, objects, pieces
from tensordict import TensorDict
from verl.protocol import DataProto

from verl_ext.column import SparseNonTensor
from verl_ext.protocol import SparseDataProto

RAW, REWARD_KEYS = "reward_extra_info", "reward_extra_keys"
reward_rows = partial(strategies.reward_rows, keys=ANY_KEYS)
uniform_rows = partial(strategies.uniform_rows, keys=ANY_KEYS)


def raw_batch(rows: list, first: int = 0, scores: bool = True) -> SparseDataProto:
    """A batch as an agent-loop worker makes it, for the samples from number `first` on; its rewards still dicts."""
    numbers = torch.arange(first, first + len(rows))
    tensors = {"responses": numbers[:, None].expand(-1, 2).contiguous(), "rm_scores": numbers[:, None] / 2}
    if not scores:
        del tensors["rm_scores"]
    return SparseDataProto(
        batch=TensorDict(tensors, batch_size=len(rows)),
        non_tensor_batch={
            "uid": objects([f"sample-{number}" for number in numbers.tolist()]),
            "__num_turns__": numbers.numpy().astype(np.int32),
            RAW: SparseNonTensor(rows),
        },
        meta_info={"temperature": 1.0},
    )


FORMS = ("raw", "finalized", "finalized, dicts dropped", "plain", "plain, dicts dropped", "raw in a plain batch")


def in_form(batch: SparseDataProto, form: str) -> DataProto:
    """A raw batch as a worker of another kind would hand it over; a plain one carries aligned columns and no class."""
    if form.startswith("raw"):
        return batch if form == "raw" else as_plain(batch)
    batch.finalize(keep_raw="dropped" not in form)
    return as_plain(batch) if form.startswith("plain") else batch


def as_plain(batch: DataProto) -> DataProto:
    return DataProto(batch=batch.batch, non_tensor_batch=batch.non_tensor_batch, meta_info=batch.meta_info)


@st.composite
def forms_for(draw: st.DrawFn, cut: list[int], scores: bool) -> list[str]:
    """A form for each chunk, so that the batches are one of ours (else verl's own code runs), and so that something
    still names the reward columns: `reward_extra_keys`, which only batches with scores have, or the dicts."""
    forms = draw(st.lists(st.sampled_from(FORMS), min_size=len(cut), max_size=len(cut)))
    assume(not all(form.startswith("plain") for form in forms))
    assume(scores or any("dropped" not in form for form, rows in zip(forms, cut, strict=True) if rows))
    return forms


def chunks_of(rows: list, cut: list[int], forms: list[str], scores: bool = True) -> list[DataProto]:
    starts = itertools.accumulate(cut, initial=0)
    return [
        in_form(raw_batch(piece, start, scores), form)
        for start, piece, form in zip(starts, pieces(rows, cut), forms, strict=False)
    ]


def reward_columns(batch: DataProto) -> dict[str, np.ndarray]:
    return {name: batch.non_tensor_batch[name] for name in batch.non_tensor_batch if name in ANY_KEYS}


def assert_same_columns(columns: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """The same keys in the same order, the same dtypes, values alike."""
    assert list(columns) == list(expected)
    for key, column in columns.items():
        assert type(column) is np.ndarray
        assert (key, column.dtype, column.shape) == (key, expected[key].dtype, expected[key].shape)
        assert all(map(alike, column, expected[key])), f"{key!r}: {column!r} is not {expected[key]!r}"


def assert_same_samples(batch: DataProto, expected: DataProto) -> None:
    """The same tensors and the same columns that have nothing to do with rewards."""
    assert sorted(batch.batch.keys()) == sorted(expected.batch.keys())
    for name, tensor in batch.batch.items():
        assert tensor.dtype == expected.batch[name].dtype
        assert torch.equal(tensor, expected.batch[name])
    for name in ("uid", "__num_turns__"):
        assert batch.non_tensor_batch[name].dtype == expected.non_tensor_batch[name].dtype
        assert batch.non_tensor_batch[name].tolist() == expected.non_tensor_batch[name].tolist()


def assert_nothing_lost(batch: DataProto, rows: list) -> None:
    columns = reward_columns(batch)
    assert len(batch) == len(rows)
    assert list(columns) == keys_of(rows)
    for key, column in columns.items():
        for number, row in enumerate(rows):
            if row and key in row:
                assert alike(column[number], row[key]), f"row {number} of {key!r}: {column[number]!r} is not {row!r}"
            else:
                assert column[number] is None, f"row {number} of {key!r} came from nowhere: {column[number]!r}"


def assert_bit_for_bit(batch: DataProto, stock: DataProto) -> None:
    assert list(batch.non_tensor_batch) == list(stock.non_tensor_batch)
    for name, column in batch.non_tensor_batch.items():
        expected = stock.non_tensor_batch[name]
        assert type(column) is type(expected) is np.ndarray
        assert (name, column.dtype, column.shape) == (name, expected.dtype, expected.shape)
        if column.dtype == object:
            assert all(map(is_as_good_as, column.flat, expected.flat)), name
        else:
            assert column.tobytes() == expected.tobytes(), name
    assert repr(list(batch.meta_info.items())) == repr(list(stock.meta_info.items()))
    assert (batch.batch is None) == (stock.batch is None)
    if batch.batch is not None:
        assert list(batch.batch.keys()) == list(stock.batch.keys())
        for name, tensor in batch.batch.items():
            assert tensor.dtype == stock.batch[name].dtype
            assert torch.equal(tensor, stock.batch[name])


def is_as_good_as(one: object, other: object) -> bool:
    return one is other or (type(one) is type(other) and alike(one, other))


class Snapshot:
    """A batch as it was: the objects themselves, and copies of whatever could have been changed inside them."""

    def __init__(self, batch: DataProto) -> None:
        self.batch = batch
        self.parts = (batch.batch, batch.non_tensor_batch, batch.meta_info)
        self.tensors = {name: tensor.clone() for name, tensor in batch.batch.items()}
        self.columns = dict(batch.non_tensor_batch)
        self.values = {name: self.values_of(column) for name, column in self.columns.items()}
        self.meta_info = copy.deepcopy(batch.meta_info)

    @staticmethod
    def values_of(column: np.ndarray) -> list:
        return [dict(value) if isinstance(value, dict) else value for value in column.ravel().tolist()]

    def assert_unchanged(self) -> None:
        tensors, columns, meta_info = self.parts
        assert self.batch.batch is tensors
        assert self.batch.non_tensor_batch is columns
        assert self.batch.meta_info is meta_info
        assert list(tensors.keys()) == list(self.tensors)
        assert all(torch.equal(tensors[name], tensor) for name, tensor in self.tensors.items())
        assert list(columns) == list(self.columns)
        for name, column in columns.items():
            assert column is self.columns[name]
            assert alike(self.values_of(column), self.values[name])
        assert list(meta_info.items()) == list(self.meta_info.items())


def prompts_of(batch: DataProto, **more: np.ndarray | torch.Tensor) -> DataProto:
    """The batch that the trainer holds already, and unites with what comes back from the workers."""
    tensors = {name: value for name, value in more.items() if isinstance(value, torch.Tensor)}
    columns = {name: value for name, value in more.items() if isinstance(value, np.ndarray)}
    return DataProto(
        batch=TensorDict({"input_ids": torch.zeros(len(batch), 2), **tensors}, batch_size=len(batch)),
        non_tensor_batch={"uid": batch.non_tensor_batch["uid"].copy(), **columns},
        meta_info={"temperature": 1.0},
    )


NAMES = ("judge", "a/b", "judge/", "/")
"""Of raw columns beside verl's own: a key of theirs flattens to `<column>/<key>`."""


def flat(batch: DataProto, column: str) -> dict[object, np.ndarray]:
    """What another raw column was flattened to, by its keys."""
    names = {f"{column}/{key}" if isinstance(key, str) else (column, key): key for key in ANY_KEYS}
    return {names[name]: values for name, values in batch.non_tensor_batch.items() if name in names}
