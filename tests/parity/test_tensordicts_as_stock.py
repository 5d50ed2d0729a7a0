"""The TensorDict helpers that join: verl's own result for batches of one schema, whatever the values are."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sites import covers
from tensordict import TensorDict
from values import values_of_a_family
from verl.utils import tensordict_utils as tu

from verl_ext import plugin
from verl_ext.schema import same_value

ROWS = 2


@pytest.fixture(scope="module", autouse=True)
def active():
    plugin.activate()


def tensordict(columns, start=0):
    """As `DataProto.to_tensordict` makes it of a finalized batch: a stack of objects per column, names as metadata."""
    rows = len(next(iter(columns.values())))
    data = TensorDict({"prompts": torch.arange(start, start + rows).unsqueeze(1)}, batch_size=rows)
    for key, values in columns.items():
        tu.assign_non_tensor_stack(data, key, list(values))
    tu.assign_non_tensor_data(data, "reward_extra_keys", list(columns))
    return data


def listed(data):
    return {key: value.tolist() for key, value in data.items()}


def alike(ours, stock):
    assert list(ours.keys()) == list(stock.keys())
    assert all(same_value(value, listed(stock)[key]) for key, value in listed(ours).items())


@covers("tensordict_utils", "concat_tensordict")
@settings(max_examples=60)
@given(values_of_a_family(ROWS), values_of_a_family(ROWS))
def test_tensordicts_of_one_schema_are_joined_as_by_verl(values, more):
    parts = [tensordict({"acc": values}), tensordict({"acc": more}, start=ROWS)]
    alike(tu.concat_tensordict(parts), tu.concat_tensordict.__wrapped__(parts))


@covers("tensordict_utils", "union_tensor_dict")
@settings(max_examples=60)
@given(values_of_a_family(ROWS), st.booleans())
def test_tensordicts_of_which_one_has_rewards_are_united_as_by_verl(values, turned):
    plain = TensorDict({"old_log_probs": torch.zeros(ROWS, 1)}, batch_size=ROWS)

    def united(union):
        parts = [tensordict({"acc": values}), plain.copy()]
        return union(*(reversed(parts) if turned else parts))

    alike(united(tu.union_tensor_dict), united(tu.union_tensor_dict.__wrapped__))


def test_tensordicts_of_two_schemas_are_joined_with_none_where_a_key_is_missing():
    parts = [tensordict({"acc": [1.0]}), tensordict({"acc": [0.5], "pred": ["x"]}, start=1)]
    with pytest.raises(KeyError):
        tu.concat_tensordict.__wrapped__(parts)
    joined = tu.concat_tensordict(parts)
    assert joined["pred"] == [None, "x"]
    assert joined["acc"] == [1.0, 0.5]
    assert tu.get_non_tensor_data(joined, "reward_extra_keys", None) == ["acc", "pred"]
    assert "pred" not in parts[0].keys()


def test_tensordicts_with_other_reward_keys_are_united():
    def parts():
        return [tensordict({"acc": [1.0]}), tensordict({"judge": [0.5]})]

    with pytest.raises(AssertionError):
        tu.union_tensor_dict.__wrapped__(*parts())
    united = tu.union_tensor_dict(*parts())
    assert (united["acc"], united["judge"]) == ([1.0], [0.5])
    assert tu.get_non_tensor_data(united, "reward_extra_keys", None) == ["acc", "judge"]


def test_a_column_with_other_values_is_refused_as_by_verl():
    parts = [tensordict({"acc": [1.0]}), tensordict({"acc": [2.0], "judge": [1]})]
    for union in (tu.union_tensor_dict, tu.union_tensor_dict.__wrapped__):
        with pytest.raises(AssertionError, match="acc in tensor_dict1"):
            union(*(part.copy() for part in parts))


def test_tensordicts_without_rewards_are_verls_own_business():
    parts = [TensorDict({"x": torch.tensor(np.arange(2))}, batch_size=2) for _ in range(2)]
    assert tu.concat_tensordict(parts)["x"].tolist() == [0, 1, 0, 1]
