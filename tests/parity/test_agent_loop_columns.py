"""The agent loop's batch of uniform rows: what verl's own worker makes of them, its manager hands on with us."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from agent_loops_in_process import generated
from differences import COLUMNS
from hypothesis import given, settings
from hypothesis import strategies as st
from on_stock import on_stock
from sites import covers
from stock_columns import is_stocks, stock_column_of
from strategies import alike
from values import FAMILIES

from verl_ext import plugin

ROWS = 3
BATCHES = st.fixed_dictionaries(
    {name: st.lists(values, min_size=ROWS, max_size=ROWS) for name, values in FAMILIES.items()}
)
"""The values of a batch's rows, by key: each key has those of another family."""

pytestmark = pytest.mark.filterwarnings("ignore")  # NumPy's, of what it makes of such values


@pytest.fixture(scope="module", autouse=True)
def active():
    plugin.activate()


def planned(columns):
    return [(dict(zip(columns, values, strict=True)), {}) for values in zip(*columns.values(), strict=True)]


@covers("agent_loop", "AgentLoopWorker._postprocess")
@settings(max_examples=20, deadline=None)
@given(BATCHES)
def test_the_manager_hands_on_the_batch_that_verls_worker_makes(columns):
    carried = {key: values for key, values in columns.items() if stock_column_of(values) is not None}
    with on_stock():
        stock = generated(planned(carried))
    ours = generated(planned(carried))

    assert list(ours.batch.keys()) == list(stock.batch.keys())
    for name, tensor in stock.batch.items():
        assert ours.batch[name].dtype == tensor.dtype
        assert torch.equal(ours.batch[name], tensor)
    assert ours.meta_info == stock.meta_info
    assert ours.meta_info["reward_extra_keys"] == list(carried)

    keys = list(ours.non_tensor_batch)
    assert sorted(keys) == sorted(stock.non_tensor_batch)
    fields = keys.index("multi_modal_inputs")  # behind it, verl has the extra fields, in the order of a set
    assert keys[:fields] == list(stock.non_tensor_batch)[:fields] == ["__num_turns__", *carried]
    for key, column in ours.non_tensor_batch.items():
        assert type(column) is np.ndarray
        if key in carried and any(difference.applies(carried[key]) for difference in COLUMNS):
            assert all(map(alike, column, carried[key])), key
        else:
            assert is_stocks(column, stock.non_tensor_batch[key]), key


@settings(max_examples=20, deadline=None)
@given(BATCHES, st.sampled_from([1, ROWS]))
def test_every_value_arrives_also_where_verls_worker_raises_and_however_many_workers_there_are(columns, workers):
    batch = generated(planned(columns), workers=workers)
    for key, values in columns.items():
        assert all(map(alike, batch.non_tensor_batch[key], values)), key
