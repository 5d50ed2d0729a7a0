"""Batches with columns of whatever a scorer returns, through verl's own `DataProto` and through ours.

Reward keys that every row has: what stock verl makes of them is right but for the values that NumPy bends. A call that
stock verl refuses may succeed with us, and never ends in another bare error.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from on_stock import on_stock
from sites import covers
from strategies import alike, objects
from tensordict import TensorDict
from values import FAMILIES, each_family, values_of_a_family
from verl.protocol import DataProto

from verl_ext import VerlExtError, assemble_reward_extra_info, plugin
from verl_ext.column import RAW_COLUMN, SparseNonTensor
from verl_ext.protocol import COLUMNS_MARK, REWARD_KEYS, SparseDataProto

pytestmark = pytest.mark.filterwarnings("ignore")  # NumPy's, of what it makes of such values

EXAMPLES = settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.too_slow])
ROWS = 4

CLASSES = st.sampled_from([SparseDataProto, DataProto])


@pytest.fixture(autouse=True)
def active_plugin():
    plugin.activate()


# --- batches -----------------------------------------------------------------------------------------------------


def rewards_of(family: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Reward dicts that all have the same keys: `acc`, whose values are of this family, and maybe another."""
    other = st.none() | values_of_a_family(ROWS)
    pairs = st.tuples(st.lists(FAMILIES[family], min_size=ROWS, max_size=ROWS), other)
    return pairs.map(
        lambda pair: [
            {"acc": pair[0][row], **({} if pair[1] is None else {"pred": pair[1][row]})} for row in range(ROWS)
        ]
    )


def as_stock_does(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """The columns as verl's managers make them."""
    return {key: np.array([row[key] for row in rows]) for key in rows[0]}


def batch_of(columns: dict[str, np.ndarray], first: int = 0, cls: type[DataProto] = DataProto) -> DataProto:
    numbers = torch.arange(first, first + len(next(iter(columns.values()))))
    return cls(
        batch=TensorDict({"number": numbers, "rm_scores": numbers[:, None] / 2}, batch_size=len(numbers)),
        non_tensor_batch={"uid": objects(f"u{number}" for number in numbers), **columns},
        meta_info={"step": 7, REWARD_KEYS: [key for key in columns if key != RAW_COLUMN]},
    )


def pieces(batch: DataProto, at: int, cls: type[DataProto]) -> list[DataProto]:
    """The rows of a batch in two, of another class."""
    return [
        cls(part.batch, part.non_tensor_batch, dict(part.meta_info)) for part in (batch[:at], batch[at:]) if len(part)
    ]


def same_column(one: np.ndarray, other: np.ndarray) -> bool:
    """Bit for bit: one dtype, one shape; the same objects, or equal ones of one type."""
    if (type(one), one.dtype, one.shape) != (type(other), other.dtype, other.shape):
        return False
    if one.dtype != object:
        return one.tolist() == other.tolist() or one.tobytes() == other.tobytes()
    pairs = zip(one.ravel().tolist(), other.ravel().tolist(), strict=True)
    return all(a is b or (type(a) is type(b) and alike(a, b)) for a, b in pairs)


def assert_same(ours: DataProto, stock: DataProto) -> None:
    assert list(ours.non_tensor_batch) == list(stock.non_tensor_batch)
    for name, column in stock.non_tensor_batch.items():
        assert same_column(ours.non_tensor_batch[name], column), (name, ours.non_tensor_batch[name], column)
    assert list(ours.batch.keys()) == list(stock.batch.keys())
    assert all(torch.equal(ours.batch[name], tensor) for name, tensor in stock.batch.items())
    assert list(ours.meta_info.items()) == list(stock.meta_info.items())


def values_in(column: np.ndarray) -> list[Any]:
    """One per row; numbers and text as Python's, which NumPy has of any kind."""
    return column.tolist() if column.ndim == 1 and column.dtype.kind not in "mM" else list(column)


def outcome(run: Any) -> tuple[Any, Exception | None]:
    try:
        return run(), None
    except Exception as error:
        return None, error


# --- concat ------------------------------------------------------------------------------------------------------


@covers("protocol", "DataProto.concat")
@each_family()
@EXAMPLES
@given(data=st.data())
def test_chunks_of_finalized_rows_are_joined_to_the_columns_that_verl_makes_of_them(family, data):
    rows = data.draw(rewards_of(family), label="rows")
    at = data.draw(st.integers(0, ROWS), label="at")
    whole = batch_of(assemble_reward_extra_info(rows))
    with on_stock():
        stock = DataProto.concat(pieces(whole, at, DataProto))
    cls = data.draw(CLASSES, label="cls")
    ours = DataProto.concat(pieces(whole, at, cls))
    assert type(ours) is cls
    assert_same(ours, stock)


@covers("protocol", "DataProto.concat")
@each_family()
@EXAMPLES
@given(data=st.data())
def test_chunks_of_stock_workers_are_joined_as_on_stock_or_by_the_rules_for_the_values_in_them(family, data):
    rows = data.draw(rewards_of(family), label="rows")
    at = data.draw(st.integers(1, ROWS - 1), label="at")
    cls = data.draw(CLASSES, label="cls")
    parts, error = outcome(lambda: [as_stock_does(part) for part in (rows[:at], rows[at:])])
    if error is not None:
        return  # a worker of stock verl's has failed
    with on_stock():
        stock, _ = outcome(lambda: DataProto.concat([batch_of(parts[0]), batch_of(parts[1], at)]))
    ours = DataProto.concat([batch_of(parts[0], cls=cls), batch_of(parts[1], at)])
    for key in rows[0]:
        found, values = ours.non_tensor_batch[key], [value for part in parts for value in values_in(part[key])]
        columns = [part[key] for part in parts]
        alike_columns = len({(column.dtype, column.shape[1:]) for column in columns}) == 1
        joined = stock.non_tensor_batch[key] if stock else np.concatenate(columns) if alike_columns else None
        as_on_stock = joined is not None and same_column(found, joined)
        by_the_rules = assemble_reward_extra_info([{key: value} for value in values])[key]
        as_they_are = found.dtype == by_the_rules.dtype == object and all(map(alike, found, values))
        assert as_on_stock or as_they_are or same_column(found, by_the_rules)
    if stock is not None:
        assert list(ours.non_tensor_batch) == list(stock.non_tensor_batch)
        assert list(ours.meta_info.items()) == list(stock.meta_info.items())


# --- union -------------------------------------------------------------------------------------------------------


@covers("protocol", "DataProto.union")
@each_family()
@EXAMPLES
@given(data=st.data())
def test_a_union_is_that_of_verl_wherever_verl_makes_one(family, data):
    """Beside columns of the same names, with these values or others, in these dtypes or as objects."""
    rows = data.draw(rewards_of(family), label="rows")
    reward_on_the_left = data.draw(st.booleans(), label="reward_on_the_left")
    copied = data.draw(st.booleans(), label="copied")
    cls = data.draw(CLASSES, label="cls")
    columns = assemble_reward_extra_info(rows)
    beside: dict[str, np.ndarray] = {}
    for key, column in columns.items():
        how = data.draw(st.sampled_from(["absent", "the same", "as objects", "of the next row"]), label=key)
        if how != "absent":
            values = {
                "the same": column.copy(),
                "as objects": objects(list(column)),
                "of the next row": column[[1, 2, 3, 0]],
            }
            beside[key] = values[how]

    def united(cls: type[DataProto]) -> DataProto:
        scored = batch_of({key: column.copy() if copied else column for key, column in columns.items()}, cls=cls)
        prompts = batch_of({"data_source": objects("abcd"), **beside})
        del prompts.batch["rm_scores"]
        del prompts.meta_info[REWARD_KEYS]
        return scored.union(prompts) if reward_on_the_left else prompts.union(scored)

    with on_stock():
        stock, _ = outcome(lambda: united(DataProto))
    ours, error = outcome(lambda: united(cls))
    if stock is not None:
        assert error is None, error
        assert_same(ours, stock)
    else:
        assert error is None or isinstance(error, VerlExtError)


# --- mini-batches ------------------------------------------------------------------------------------------------


@covers("protocol", "DataProto.make_iterator")
@each_family()
@EXAMPLES
@given(data=st.data())
def test_mini_batches_beside_a_raw_column_are_those_that_verl_makes(family, data):
    rows = data.draw(rewards_of(family), label="rows")
    size = data.draw(st.sampled_from([1, 2]), label="size")
    seed = data.draw(st.sampled_from([None, 3]), label="seed")
    cls = data.draw(CLASSES, label="cls")
    columns = assemble_reward_extra_info(rows)

    def mini_batches(cls: type[DataProto], raw: np.ndarray) -> list[DataProto]:
        batch = batch_of({**columns, RAW_COLUMN: raw}, cls=cls)
        return list(batch.make_iterator(size, 2, seed, {"shuffle": seed is not None}))

    with on_stock():
        stock, error = outcome(lambda: mini_batches(DataProto, objects(rows)))
    ours, ours_error = outcome(lambda: mini_batches(cls, SparseNonTensor(rows)))
    assert type(ours_error) is type(error)
    for one, other in itertools.zip_longest(ours or (), stock or ()):
        assert type(one.non_tensor_batch[RAW_COLUMN]) is SparseNonTensor
        one.non_tensor_batch[RAW_COLUMN] = one.non_tensor_batch[RAW_COLUMN].view(np.ndarray)
        assert_same(one, other)


# --- TensorDicts -------------------------------------------------------------------------------------------------


@covers("protocol", "DataProto.to_tensordict", "DataProto.from_tensordict")
@each_family()
@EXAMPLES
@given(data=st.data())
def test_a_tensordict_holds_what_verls_holds_and_a_batch_without_raw_columns_comes_back_the_same(family, data):
    rows = data.draw(rewards_of(family), label="rows")
    cls = data.draw(CLASSES, label="cls")
    columns = assemble_reward_extra_info(rows)

    def there_and_back(cls: type[DataProto]) -> tuple[Any, DataProto]:
        made = batch_of(columns, cls=cls).to_tensordict()
        return made, DataProto.from_tensordict(made)

    with on_stock():
        stock, error = outcome(lambda: there_and_back(DataProto))
    ours, ours_error = outcome(lambda: there_and_back(cls))
    assert type(ours_error) is type(error)
    if stock is not None:
        assert list(ours[0].keys()) == list(stock[0].keys())
        assert_same(ours[1], stock[1])


@covers("protocol", "DataProto.to_tensordict", "DataProto.from_tensordict")
@each_family()
@EXAMPLES
@given(data=st.data())
def test_a_tensordict_with_a_raw_column_holds_the_rows_and_every_other_value_one_per_row(family, data):
    rows = data.draw(rewards_of(family), label="rows")
    cls = data.draw(CLASSES, label="cls")
    columns = assemble_reward_extra_info(rows)
    with on_stock():
        stock, error = outcome(lambda: batch_of({**columns, RAW_COLUMN: objects(rows)}).to_tensordict())
    ours, ours_error = outcome(
        lambda: batch_of({**columns, RAW_COLUMN: SparseNonTensor(rows)}, cls=cls).to_tensordict()
    )
    assert type(ours_error) is type(error)
    if stock is not None:
        assert [key for key in ours.keys() if key != COLUMNS_MARK] == list(stock.keys())
        back = DataProto.from_tensordict(ours)
        assert back.non_tensor_batch[RAW_COLUMN].tolist() == rows or all(
            map(alike, back.non_tensor_batch[RAW_COLUMN].tolist(), rows)
        )
        for key, column in columns.items():
            assert back.non_tensor_batch[key].shape == (len(rows),)
            assert all(a is b or alike(a, b) for a, b in zip(back.non_tensor_batch[key], column, strict=True))
