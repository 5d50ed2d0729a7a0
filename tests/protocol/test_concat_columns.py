"""The columns that `concat` makes: what a chunk lacks, which dtype comes out, and columns that are no rewards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from batches import STATES, columns_of, finalized, scored, snapshot
from strategies import objects
from verl import DataProto

from verl_ext.column import SparseNonTensor
from verl_ext.protocol import SparseDataProto


def test_a_column_that_a_chunk_lacks_is_none_there_and_multi_modal_inputs_are_empty() -> None:
    pixels = torch.zeros(2)
    whole = SparseDataProto.concat(
        [
            scored([{}, {}], length=np.array([3, 4])),
            scored([{}, {}], first=2, multi_modal_inputs=objects([{"pixels": pixels}, {}])),
            scored([{}], first=4, length=np.array([5])),
        ]
    )
    assert columns_of(whole)["length"] == ("object", [3, 4, None, None, 5])
    inputs = whole.non_tensor_batch["multi_modal_inputs"]
    assert inputs.tolist() == [{}, {}, {"pixels": pixels}, {}, {}]
    inputs[0]["pixels"] = 1
    assert inputs[1] == inputs[4] == {}


def test_a_reward_column_is_decided_anew_from_all_values_even_where_the_dtypes_agree() -> None:
    mixed = finalized([{"acc": 1.0}, {"acc": 0.5}, {}])
    assert columns_of(mixed)["acc"][0] == columns_of(mixed[:1])["acc"][0] == "object"
    assert columns_of(SparseDataProto.concat([mixed[:1], mixed[1:2]]))["acc"] == ("float64", [1.0, 0.5])

    answers = ["x" * 40_000], ["7"] * 100
    chunks = [finalized([{"pred": answer} for answer in part]) for part in answers]
    assert [chunk.non_tensor_batch["pred"].dtype.kind for chunk in chunks] == ["U", "U"]
    column = SparseDataProto.concat(chunks).non_tensor_batch["pred"]
    assert column.dtype == object  # as <U40000 it would take 16 MB
    assert column.tolist() == [*answers[0], *answers[1]]


def test_other_columns_are_concatenated_as_stock_does_where_all_have_them() -> None:
    def chunk(rows: Any, values: Any) -> DataProto:
        return scored(rows, values=values)

    for one, other in [
        (np.array([1, 2], np.int8), np.array([3], np.int64)),
        (np.array([1, 2], np.float32), np.array([3], np.float32)),
        (np.array(["a", "b"]), np.array(["long text"])),
        (objects([1, None]), np.array([2.5])),
        (np.zeros((2, 3)), np.ones((1, 3))),
        (objects([[1], [2, 3]]), objects([[4]])),
    ]:
        column = SparseDataProto.concat([chunk([{}, {}], one), chunk([{}], other)]).non_tensor_batch["values"]
        expected = np.concatenate([one, other])
        assert column.dtype == expected.dtype
        assert column.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("one", "other", "dtype", "values"),
    [
        (np.array([1]), np.array(["a"]), "object", [1, "a"]),
        (np.array([2**63], np.uint64), np.array([-1]), "object", [2**63, -1]),
        (np.array([2**53 + 1]), np.array([0.5]), "object", [2**53 + 1, 0.5]),
        (np.zeros((1, 2)), np.zeros((1, 3)), "object", [[0.0, 0.0], [0.0, 0.0, 0.0]]),
        (np.zeros((1, 2)), np.zeros(1), "object", [[0.0, 0.0], 0.0]),
    ],
    ids=["number and text", "uint64 and int64", "a large integer and a float", "widths", "dimensions"],
)
def test_other_columns_that_numpy_would_bend_or_refuse_keep_their_values(
    one: np.ndarray, other: np.ndarray, dtype: str, values: list[Any]
) -> None:
    whole = SparseDataProto.concat([scored([{}], values=one), scored([{}], first=1, values=other)])
    assert columns_of(whole)["values"] == (dtype, values)


@pytest.mark.parametrize("states", [("raw", "raw"), ("raw", "finalized"), ("finalized", "raw")], ids=" then ".join)
def test_a_plain_list_is_accepted_as_a_column(states: tuple[str, str]) -> None:
    chunks = [STATES[state]([{"acc": 1.0}], first=number) for number, state in enumerate(states)]
    for number, chunk in enumerate(chunks):  # as verl's fully-async `addition_process` sets them
        chunk.non_tensor_batch["processing_times"] = [0.5 + number]
    chunks[1].non_tensor_batch["tool_calls"] = [[1, 2]]
    before = [snapshot(SimpleNamespace(**{**vars(chunk), "non_tensor_batch": {}})) for chunk in chunks]
    whole = DataProto.concat(chunks)
    assert columns_of(whole)["processing_times"] == ("float64", [0.5, 1.5])
    assert columns_of(whole)["tool_calls"] == ("object", [None, [1, 2]])
    assert [chunk.non_tensor_batch["processing_times"] for chunk in chunks] == [[0.5], [1.5]]
    assert [snapshot(SimpleNamespace(**{**vars(chunk), "non_tensor_batch": {}})) for chunk in chunks] == before


@pytest.mark.parametrize("key", ["acc", "format/acc"])
def test_the_columns_of_a_second_raw_column_are_decided_anew_where_their_dicts_are_left(key: str) -> None:
    chunks = []
    for first, value in enumerate((np.int8(1), np.int16(300))):
        chunk = scored([{}], first=first)
        chunk.non_tensor_batch["judge"] = SparseNonTensor([{key: value}])
        chunks.append(chunk.finalize())
    column = SparseDataProto.concat(chunks).non_tensor_batch[f"judge/{key}"]
    assert (column.dtype, column.tolist()) == (np.int64, [1, 300])  # stock's concat would leave int16
