"""`attach_reward_extra_info`: a worker's output with its samples' dicts, one for each sample."""

from __future__ import annotations

import pytest
import torch
from batches import plain, snapshot
from verl import DataProto

from verl_ext.column import MANAGER_FINALIZES, RAW_COLUMN
from verl_ext.errors import RowError
from verl_ext.plugin._site import holding
from verl_ext.protocol import SparseDataProto, attach_reward_extra_info


def test_attaching_reward_dicts_gives_a_raw_batch_and_leaves_the_output_as_it_was() -> None:
    output = plain(["u0", "u1"], multi_modal_inputs=[{}, {}], turn_scores=[[1.0], []])
    before = snapshot(output)
    rows = [{"acc": 1.0}, None]
    with holding(MANAGER_FINALIZES, True):
        batch = attach_reward_extra_info(output, iter(rows))
    assert snapshot(output) == before
    assert type(batch) is SparseDataProto
    assert batch.batch is output.batch
    assert batch.meta_info is output.meta_info
    assert list(batch.non_tensor_batch) == ["uid", RAW_COLUMN, "multi_modal_inputs", "turn_scores"]
    assert batch.non_tensor_batch[RAW_COLUMN].tolist() == rows
    with holding(MANAGER_FINALIZES, True):
        assert list(attach_reward_extra_info(plain(["u0"], a=[1]), [{}]).non_tensor_batch) == ["uid", "a", RAW_COLUMN]
    with pytest.raises(RowError, match="row 1 "):
        attach_reward_extra_info(output, [{}, 5])  # type: ignore[list-item]


@pytest.mark.parametrize("infos", [[], [{"acc": 1.0}], [{}] * 3])
def test_attaching_more_or_fewer_reward_dicts_than_samples_is_a_named_error(infos):
    output = DataProto.from_dict(tensors={"responses": torch.zeros(2, 1)})
    with pytest.raises(RowError, match=rf"{len(infos)} reward dict\(s\) for 2 sample\(s\)"):
        attach_reward_extra_info(output, infos)
    assert output.non_tensor_batch == {}
