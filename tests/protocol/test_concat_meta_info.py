"""What `concat` makes of tensors and `meta_info`: merged by value, or refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from batches import finalized, scored

from verl_ext.column import RAW_COLUMN
from verl_ext.errors import BatchMismatchError
from verl_ext.protocol import SparseDataProto


def test_a_tensor_that_a_chunk_lacks_is_a_named_error() -> None:
    chunks = [scored([{}]) for _ in range(12)]
    for chunk in chunks[1:]:
        chunk.pop(["rm_scores"])
    with pytest.raises(
        BatchMismatchError, match=r"'rm_scores' is missing in batch\(es\) 1, 2, 3, 4, 5, 6, 7, 8, \.\.\."
    ):
        SparseDataProto.concat(chunks)
    with pytest.raises(BatchMismatchError, match=r"'rm_scores' is missing in batch\(es\) 1, 2, 3, 4, 5, 6, 7, 8 \("):
        SparseDataProto.concat(chunks[:9])
    with pytest.raises(BatchMismatchError, match=r"1, 2, 3, 4, 5, 6, 7, 8, \.\.\. \("):
        SparseDataProto.concat(chunks[:10])  # of nine batches, eight are named
    hint = (
        r"\(counting from 0\)\. Tensors have no fill value: make every worker return it "
        r"\(is a score None for some samples\?\)$"
    )
    with pytest.raises(BatchMismatchError, match=hint):
        SparseDataProto.concat(chunks)
    with pytest.raises(
        BatchMismatchError, match=r"'number' is missing in batch\(es\) 0 \(counting from 0\).* return it$"
    ):
        SparseDataProto.concat([scored([{}], tensors=False), scored([{}])])


def test_batches_without_tensors_join_raw_beside_finalized() -> None:
    chunks = [scored([{"acc": 1}], tensors=False), finalized([{"acc": 0.5, "pred": "7"}], first=1, tensors=False)]
    batch = SparseDataProto.concat(chunks)
    assert batch.batch is None
    assert batch.non_tensor_batch["acc"].tolist() == [1.0, 0.5]
    assert batch.non_tensor_batch["pred"].tolist() == [None, "7"]


def test_a_batch_whose_tensors_were_all_popped_joins_one_that_never_had_any() -> None:
    popped = scored([{}])
    popped.pop(["number", "rm_scores"])
    for chunks in ([popped, scored([{}], tensors=False)], [scored([{}], tensors=False), popped]):
        assert SparseDataProto.concat(chunks).non_tensor_batch[RAW_COLUMN].tolist() == [{}, {}]


def test_contradicting_meta_info_is_refused_by_its_key_and_both_values() -> None:
    chunks = [scored([{}]), scored([{}])]
    chunks[1].meta_info["step"] = 8
    with pytest.raises(BatchMismatchError, match=r"meta_info\['step'\] is 7 in one batch and 8 in another"):
        SparseDataProto.concat(chunks)
    chunks[1].meta_info["step"] = "\x1b" + "x" * 1_000_000
    with pytest.raises(BatchMismatchError) as caught:
        SparseDataProto.concat(chunks)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_meta_info_merges_by_value_and_keeps_the_order_of_first_appearance() -> None:
    chunks = [scored([{}]), scored([{}])]
    chunks[0].meta_info.update(nan=float("nan"), array=np.arange(3), only=1)
    chunks[1].meta_info.update(last=2, nan=float("nan"), array=np.arange(3))
    merged = SparseDataProto.concat(chunks).meta_info
    assert list(merged) == ["step", "nan", "array", "only", "last"]
    assert (merged["only"], merged["last"]) == (1, 2)


def test_metrics_with_unequal_keys_align_and_equal_ones_are_as_on_stock() -> None:
    chunks = [scored([{}]) for _ in range(4)]
    for chunk, metrics in zip(chunks, ({"loss": 1.0}, [{"loss": 2.0, "kl": 0.1}, {"kl": 0.2}], None, []), strict=True):
        chunk.meta_info["metrics"] = metrics
    assert SparseDataProto.concat(chunks).meta_info["metrics"] == {
        "loss": [1.0, 2.0, None],
        "kl": [None, 0.1, 0.2],
    }
    assert "metrics" not in SparseDataProto.concat(chunks[2:]).meta_info


def test_reward_extra_keys_merge_by_ordered_union() -> None:
    chunks = [finalized([{"b": 1, "a": 1}]), finalized([{"c": 1, "a": 1}]), finalized([{"a": 1}])]
    assert SparseDataProto.concat(chunks).meta_info["reward_extra_keys"] == ["b", "a", "c"]
    assert chunks[0].meta_info["reward_extra_keys"] == ["b", "a"]
