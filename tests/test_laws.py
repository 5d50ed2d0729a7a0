"""The laws of the design, as properties over generated rows and splits, on real `DataProto`s.

1. Nothing lost.  2. The split does not matter.  3. Plain stays plain.  5. Errors come before damage.
(Law 4, about worker processes without the plugin, needs Ray: see `integration/`.)
"""

from __future__ import annotations

import copy
import itertools
from functools import partial

import numpy as np
import pytest
import strategies
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from oracle import keys_of
from strategies import ANY_KEYS, alike, cuts, every_cut, objects, pieces, reward_values
from tensordict import TensorDict
from verl.protocol import DataProto, fold_batch_dim

from verl_ext.column import SparseNonTensor
from verl_ext.errors import BatchMismatchError, FieldCollisionError, RowError, UnfinalizedError
from verl_ext.protocol import SparseDataProto, guarded_union

RAW, REWARD_KEYS = "reward_extra_info", "reward_extra_keys"

reward_rows = partial(strategies.reward_rows, keys=ANY_KEYS)
uniform_rows = partial(strategies.uniform_rows, keys=ANY_KEYS)


# --- batches -----------------------------------------------------------------------------------------------------


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


FORMS = ("raw", "finalized", "finalized, dicts dropped", "plain", "plain, dicts dropped")


def in_form(batch: SparseDataProto, form: str) -> DataProto:
    """A raw batch as a worker of another kind would hand it over; a plain one carries aligned columns and no class."""
    if form == "raw":
        return batch
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


# --- what the laws compare ---------------------------------------------------------------------------------------


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


# --- law 1: nothing lost -----------------------------------------------------------------------------------------


@given(reward_rows(), st.booleans())
def test_every_value_that_went_in_comes_out_of_finalize_at_its_row(rows, keep_raw):
    batch = raw_batch(rows).finalize(keep_raw=keep_raw)
    assert_nothing_lost(batch, rows)
    assert batch.meta_info[REWARD_KEYS] == keys_of(rows)
    assert (RAW in batch.non_tensor_batch) == keep_raw
    if keep_raw:
        left = batch.non_tensor_batch[RAW]
        assert type(left) is np.ndarray
        assert all(one is other for one, other in zip(left, rows, strict=True))


@given(reward_rows(), st.booleans(), st.data())
def test_every_value_survives_any_mix_of_raw_finalized_and_plain_chunks(rows, scores, data):
    cut = data.draw(cuts(len(rows)), label="cut")
    forms = data.draw(forms_for(cut, scores), label="forms")
    batch = SparseDataProto.concat(chunks_of(rows, cut, forms, scores))
    assert_nothing_lost(batch.finalize(), rows)
    kept = [
        form in ("raw", "finalized", "plain") for form, length in zip(forms, cut, strict=True) for _ in range(length)
    ]
    for row, is_kept, left in zip(rows, kept, batch.non_tensor_batch.get(RAW, [None] * len(rows)), strict=True):
        assert left is (row if is_kept else None)


def prompts_of(batch: DataProto, **more: np.ndarray | torch.Tensor) -> DataProto:
    """The batch that the trainer holds already, and unites with what comes back from the workers."""
    tensors = {name: value for name, value in more.items() if isinstance(value, torch.Tensor)}
    columns = {name: value for name, value in more.items() if isinstance(value, np.ndarray)}
    return DataProto(
        batch=TensorDict({"input_ids": torch.zeros(len(batch), 2), **tensors}, batch_size=len(batch)),
        non_tensor_batch={"uid": batch.non_tensor_batch["uid"].copy(), **columns},
        meta_info={"temperature": 1.0},
    )


@given(reward_rows(), st.sampled_from(FORMS))
def test_every_value_survives_the_union_with_the_prompts(rows, form):
    scored = in_form(raw_batch(rows), form)
    prompts = prompts_of(scored)
    batch = SparseDataProto(batch=prompts.batch, non_tensor_batch=prompts.non_tensor_batch, meta_info={"step": 3})
    assert batch.union(scored) is batch
    assert_nothing_lost(batch, rows)
    assert_same_samples(batch.select(["responses", "rm_scores"]), scored)
    assert "input_ids" in batch.batch.keys()
    assert batch.meta_info == {"step": 3, "temperature": 1.0, REWARD_KEYS: keys_of(rows)}


@given(reward_rows())
def test_a_value_in_an_object_column_is_the_very_object_unless_it_was_a_numpy_number(rows):
    columns = reward_columns(raw_batch(rows).finalize())
    for key, column in columns.items():
        for row, value in zip(rows, column, strict=True):
            if column.dtype != object or not row or key not in row or value is row[key]:
                continue
            assert type(value) in (bool, int, float, complex, np.longdouble)
            assert isinstance(row[key], np.generic | np.ndarray | torch.Tensor)
            assert row[key].ndim == 0


@given(reward_rows())
def test_no_numpy_number_is_left_in_an_object_column(rows):
    for column in reward_columns(raw_batch(rows).finalize()).values():
        for value in column if column.dtype == object else ():
            number = isinstance(value, np.bool_ | np.number) and not isinstance(value, np.timedelta64)
            assert not number or not alike(value.item(), float(value.real)), "a Python number would have held it"


@example([{"acc": None}, {}, None, {"acc": 1.0}], "acc")
@given(reward_rows(), st.sampled_from(ANY_KEYS))
def test_a_raw_column_tells_a_missing_value_from_an_explicit_none(rows, key):
    column = SparseNonTensor(rows)
    assert column.present(key).tolist() == [row is not None and key in row for row in rows]
    assert column.keys() == keys_of(rows)


NAMES = ("judge", "a/b", "judge/", "/", "")
"""Of raw columns beside verl's own: a key of theirs flattens to `<column>/<key>`."""


def flat(batch: DataProto, column: str) -> dict[object, np.ndarray]:
    """What another raw column was flattened to, by its keys."""
    names = {f"{column}/{key}" if isinstance(key, str) else (column, key): key for key in ANY_KEYS}
    return {names[name]: values for name, values in batch.non_tensor_batch.items() if name in names}


@given(reward_rows(), reward_rows(), st.sampled_from(NAMES))
def test_two_raw_columns_flatten_to_names_that_keep_them_apart(rows, others, name):
    rows, others = rows[: len(others)], others[: len(rows)]
    batch = raw_batch(rows)
    batch.non_tensor_batch[name] = SparseNonTensor(others)
    batch.finalize(keep_raw=False)
    assert_nothing_lost(batch, rows)
    assert batch.meta_info[REWARD_KEYS] == keys_of(rows)
    assert_nothing_lost(DataProto(batch=batch.batch, non_tensor_batch=flat(batch, name)), others)


# --- a reward key that is called as the raw column: laws 1 and 2 --------------------------------------------------

BESIDE_DICTS = f"{RAW}/{RAW}"
"""The column of such a key where the rows' dicts are left behind under its name; else the name is free."""


@st.composite
def rows_of_rows(draw: st.DrawFn) -> list:
    """Rows of which some have a key as the raw column, with dicts that name columns of the batch among the values."""
    rows = [dict(row or {}) for row in draw(reward_rows())] + [{}]
    misleading = st.fixed_dictionaries({"uid": st.integers(), "__num_turns__": st.integers(), "acc": st.floats()})
    for row in draw(st.lists(st.sampled_from(rows), min_size=1)):
        row[RAW] = draw(misleading | reward_values())
    return rows


@given(rows_of_rows(), st.booleans())
def test_a_reward_key_that_is_called_as_the_raw_column_has_a_column_and_every_value_arrives(rows, keep_raw):
    batch = raw_batch(rows).finalize(keep_raw=keep_raw)
    name = BESIDE_DICTS if keep_raw else RAW
    assert batch.meta_info[REWARD_KEYS] == [name if key == RAW else key for key in keys_of(rows)]
    assert all(map(alike, batch.non_tensor_batch[name], [row.get(RAW) for row in rows]))
    if keep_raw:
        assert all(one is other for one, other in zip(batch.non_tensor_batch[RAW], rows, strict=True))


@given(rows_of_rows(), st.data())
def test_its_column_is_the_same_however_the_rows_are_cut_and_finalized(rows, data):
    cut = data.draw(cuts(len(rows)), label="cut")
    forms = data.draw(forms_for(cut, scores=True), label="forms")
    whole = raw_batch(rows).finalize()
    batch = SparseDataProto.concat(chunks_of(rows, cut, forms)).finalize()
    keeps_dicts = any("dropped" not in form and length for form, length in zip(forms, cut, strict=True))
    name = BESIDE_DICTS if keeps_dicts else RAW
    assert_same_columns({RAW: batch.non_tensor_batch[name]}, {RAW: whole.non_tensor_batch[BESIDE_DICTS]})
    assert_same_columns(reward_columns(batch), reward_columns(whole))
    assert_same_samples(batch, whole)
    keys = [RAW if key == name else key for key in batch.meta_info[REWARD_KEYS]]
    assert keys == keys_of(rows)


@given(rows_of_rows(), st.booleans(), st.booleans())
def test_its_column_and_the_dicts_of_another_batch_are_told_apart_by_a_union(rows, keep_raw, swapped):
    scored = raw_batch(rows).finalize(keep_raw=keep_raw)
    with_dicts = prompts_of(scored, **{RAW: objects([{"turns": number} for number in range(len(rows))])})
    if keep_raw:
        del with_dicts.non_tensor_batch[RAW]
    one, other = (as_plain(with_dicts), scored) if not swapped else (scored, with_dicts)
    united = guarded_union(one, other)
    assert all(map(alike, united.non_tensor_batch[BESIDE_DICTS], [row.get(RAW) for row in rows]))
    dicts = rows if keep_raw else [{"turns": number} for number in range(len(rows))]
    assert all(map(alike, united.non_tensor_batch[RAW], dicts))


# --- law 2: the split does not matter ----------------------------------------------------------------------------


@settings(max_examples=2 * settings.default.max_examples)
@given(reward_rows(), st.booleans(), st.data())
def test_however_the_rows_are_cut_and_finalized_the_reward_columns_are_the_same(rows, scores, data):
    cut = data.draw(cuts(len(rows)), label="cut")
    forms = data.draw(forms_for(cut, scores), label="forms")
    whole = raw_batch(rows, scores=scores).finalize()
    batch = SparseDataProto.concat(chunks_of(rows, cut, forms, scores)).finalize()
    assert_same_columns(reward_columns(batch), reward_columns(whole))
    assert_same_samples(batch, whole)
    assert batch.meta_info == whole.meta_info
    assert (REWARD_KEYS in whole.meta_info) == scores


@given(reward_rows(max_rows=3), st.booleans())
def test_finalize_after_concat_is_concat_after_finalize_for_every_cut(rows, keep_raw):
    for cut in every_cut(len(rows), 3):
        later = SparseDataProto.concat(chunks_of(rows, cut, ["raw"] * 3)).finalize(keep_raw=keep_raw)
        sooner = SparseDataProto.concat([b.finalize(keep_raw=keep_raw) for b in chunks_of(rows, cut, ["raw"] * 3)])
        assert_same_columns(reward_columns(later), reward_columns(sooner))
        assert_same_samples(later, sooner)
        assert later.meta_info == sooner.meta_info
        assert later.meta_info[REWARD_KEYS] == keys_of(rows)
        assert set(later.non_tensor_batch) == set(sooner.non_tensor_batch)


@given(reward_rows(), st.sampled_from(NAMES), st.data())
def test_the_split_does_not_matter_to_a_raw_column_of_another_name(rows, name, data):
    def batch_of(piece: list, form: str = "raw") -> DataProto:
        batch = raw_batch([{}] * len(piece))
        batch.non_tensor_batch[name] = SparseNonTensor(piece)
        return in_form(batch, form)

    cut = data.draw(cuts(len(rows)), label="cut")
    forms = data.draw(st.lists(st.sampled_from(["raw", "finalized"]), min_size=len(cut), max_size=len(cut)))
    whole = batch_of(rows).finalize()
    joined = SparseDataProto.concat([batch_of(*part) for part in zip(pieces(rows, cut), forms, strict=True)]).finalize()
    assert_same_columns(flat(joined, name), flat(whole, name))


def test_long_text_in_a_raw_column_with_a_slash_in_its_name_takes_little_memory():
    chunks = [SparseDataProto(non_tensor_batch={"a/b": SparseNonTensor(rows)}) for rows in LONG_BESIDE_SHORT]
    column = SparseDataProto.concat([chunk.finalize() for chunk in chunks]).non_tensor_batch["a/b/text"]
    assert column.dtype == object


LONG_BESIDE_SHORT = [[{"text": "x" * 20_000}], [{"text": "x"}] * 16_384]


@pytest.mark.parametrize("scores", [True, False], ids=["named by reward_extra_keys", "named by the dicts alone"])
@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([np.int8(1), np.int16(300)], np.int64),
        ([np.float16(0.1), np.float32(0.1)], np.float64),
        ([np.float32(0.1), True], np.float64),
        ([2**63, 1], np.uint64),
        ([2**53 + 1, 0.5], object),
        (["7", 7], object),
        ([[1, 2], [3]], object),
        ([b"a", b"b"], object),
        ([np.array(["a"], "U9"), ["b"]], "<U1"),
    ],
)
def test_reward_columns_of_finalized_chunks_are_decided_anew_from_all_values(values, dtype, scores):
    rows = [{"acc": value} for value in values]
    for form in ("finalized", "plain"):
        first, second = chunks_of(rows, [1, 1], ["finalized", form], scores)
        column = SparseDataProto.concat([first, second]).non_tensor_batch["acc"]
        assert column.dtype == dtype
        assert all(map(alike, column, values))


@given(reward_rows(), st.data())
def test_concatenating_in_steps_is_concatenating_at_once(rows, data):
    cut = data.draw(cuts(len(rows)), label="cut")
    forms = data.draw(forms_for(cut, scores=True), label="forms")
    whole = raw_batch(rows).finalize()
    parts = chunks_of(rows, cut, forms)
    grown = SparseDataProto.concat([raw_batch([]), parts[0]])
    for part in parts[1:]:
        grown = SparseDataProto.concat([grown, part])
    grown.finalize()
    assert_same_columns(reward_columns(grown), reward_columns(whole))
    assert_same_samples(grown, whole)
    assert grown.meta_info == whole.meta_info


@given(reward_rows(), st.data())
def test_cutting_a_finalized_batch_and_joining_it_again_changes_nothing(rows, data):
    cut = data.draw(cuts(len(rows)), label="cut")
    whole = raw_batch(rows).finalize()
    ends = list(itertools.accumulate(cut, initial=0))
    parts = [whole[start:end] for start, end in itertools.pairwise(ends)]
    joined = SparseDataProto.concat(parts)
    assert_same_columns(reward_columns(joined), reward_columns(whole))
    assert joined.meta_info == whole.meta_info


@given(reward_rows(), st.sampled_from(FORMS), st.integers(0, 2))
def test_a_chunk_without_rows_changes_nothing_wherever_it_stands(rows, form, place):
    whole = raw_batch(rows).finalize()
    empty = in_form(whole[:0], "plain" if form.startswith("plain") else "raw")
    parts = chunks_of(rows, [len(rows) // 2, len(rows) - len(rows) // 2], ["raw", form])
    parts.insert(place, empty)
    batch = SparseDataProto.concat(parts).finalize()
    assert_same_columns(reward_columns(batch), reward_columns(whole))
    assert_same_samples(batch, whole)
    assert batch.meta_info == whole.meta_info


def test_a_chunk_without_rows_contributes_no_key():
    empty = raw_batch([{"acc": 1.0, "only here": "x"}]).finalize()[:0]
    batch = SparseDataProto.concat([empty, raw_batch([{"acc": 1}])]).finalize()
    assert batch.meta_info[REWARD_KEYS] == ["acc"]
    assert "only here" not in batch.non_tensor_batch
    assert batch.non_tensor_batch["acc"].dtype == np.int64


def test_chunks_without_rows_alone_give_a_batch_without_rows():
    batch = SparseDataProto.concat([raw_batch([]), raw_batch([]).finalize(), as_plain(raw_batch([]).finalize())])
    assert len(batch.finalize()) == 0
    assert reward_columns(batch) == {}


@given(reward_rows(max_rows=4), st.sampled_from(FORMS))
def test_a_plain_list_as_a_column_is_one_value_per_row(rows, form):
    # verl's fully-async `addition_process` makes such columns.
    whole = raw_batch(rows).finalize()
    parts = chunks_of(rows, [len(rows) // 2, len(rows) - len(rows) // 2], ["raw", form])
    for part in parts:
        part.non_tensor_batch["processing_times"] = (part.batch["responses"][:, 0] / 4).tolist()
    batch = SparseDataProto.concat(parts).finalize()
    assert batch.non_tensor_batch["processing_times"].tolist() == [number / 4 for number in range(len(rows))]
    assert_same_columns(reward_columns(batch), reward_columns(whole))


@given(reward_rows(), st.data())
def test_concat_changes_none_of_its_inputs(rows, data):
    cut = data.draw(cuts(len(rows)), label="cut")
    forms = data.draw(forms_for(cut, scores=True), label="forms")
    parts = chunks_of(rows, cut, forms)
    before = [Snapshot(part) for part in parts]
    SparseDataProto.concat(parts).finalize()
    for snapshot in before:
        snapshot.assert_unchanged()


# --- law 3: plain stays plain ------------------------------------------------------------------------------------


def stock_batch(rows: list[dict], first: int = 0) -> DataProto:
    """What stock verl makes of uniform rows: one `np.array` per key of the first row."""
    batch = as_plain(raw_batch(rows, first))
    dicts = batch.non_tensor_batch.pop(RAW)
    columns = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    batch.non_tensor_batch |= {**columns, RAW: objects(dicts.tolist())}
    batch.meta_info[REWARD_KEYS] = list(rows[0])
    return batch


@given(uniform_rows(), st.booleans())
def test_uniform_rows_give_bit_for_bit_what_stock_verl_gives(rows, keep_raw):
    stock = stock_batch(rows)
    if not keep_raw:
        del stock.non_tensor_batch[RAW]
    assert_bit_for_bit(raw_batch(rows).finalize(keep_raw=keep_raw), stock)


@given(uniform_rows(min_rows=2), st.data())
def test_uniform_rows_from_several_workers_give_bit_for_bit_what_stock_verl_gives(rows, data):
    at = data.draw(st.integers(1, len(rows) - 1), label="rows in the first chunk")
    metrics = [{"generate": 0.5}, {"generate": 1.5}]
    whole = stock_batch(rows)
    stock = [whole[:at], whole[at:]]
    raw = [raw_batch(rows[:at]), raw_batch(rows[at:], at)]
    for batches in (stock, raw):
        for batch, entry in zip(batches, metrics, strict=True):
            batch.meta_info = {**batch.meta_info, "metrics": [entry]}
    expected = DataProto.concat(stock)
    assert_bit_for_bit(SparseDataProto.concat(raw).finalize(), reordered(expected))
    finalized = SparseDataProto.concat([batch.finalize() for batch in raw])
    assert_bit_for_bit(finalized, expected)
    assert type(finalized) is SparseDataProto
    assert_bit_for_bit(SparseDataProto.concat([raw[0], stock[1]]), expected)
    assert_bit_for_bit(SparseDataProto.concat([stock[0], raw[1]]), expected)


def reordered(stock: DataProto) -> DataProto:
    """`meta_info` as `finalize` leaves it: the reward keys last, since they come after concat."""
    stock = copy.copy(stock)
    stock.meta_info = {**{k: v for k, v in stock.meta_info.items() if k != REWARD_KEYS}, **stock.meta_info}
    keys = stock.meta_info.pop(REWARD_KEYS)
    stock.meta_info[REWARD_KEYS] = keys
    return stock


@given(uniform_rows(), st.booleans())
def test_a_union_of_uniform_rows_is_bit_for_bit_verls_own_union(rows, raw):
    stock = stock_batch(rows)
    prompts = prompts_of(stock)
    ours = SparseDataProto(
        batch=prompts.batch.copy(), non_tensor_batch=dict(prompts.non_tensor_batch), meta_info=dict(prompts.meta_info)
    )
    assert_bit_for_bit(ours.union(raw_batch(rows) if raw else stock), prompts.union(stock))


@given(uniform_rows(), st.data())
def test_concat_of_plain_batches_is_verls_own_concat(rows, data):
    cut = data.draw(cuts(len(rows)), label="cut")
    whole = stock_batch(rows)
    ends = list(itertools.accumulate(cut, initial=0))
    parts = [whole[start:end] for start, end in itertools.pairwise(ends)]
    batch = SparseDataProto.concat(parts)
    assert type(batch) is DataProto
    assert_bit_for_bit(batch, DataProto.concat(parts))


def test_concat_of_batches_without_rewards_calls_verls_own_code_and_hands_on_its_errors(monkeypatch):
    calls = []
    verls_own = DataProto.concat

    def recorded(data):
        calls.append(data)
        return verls_own(data)

    monkeypatch.setattr(DataProto, "concat", staticmethod(recorded))
    plain = [stock_batch([{}]), stock_batch([{}])]
    for number, batch in enumerate(plain):  # a column of dicts, as some trainers have it, is no reward for that
        del batch.meta_info["reward_extra_keys"], batch.non_tensor_batch["reward_extra_info"]
        batch.non_tensor_batch[f"metrics {number}"] = objects([{"acc": 1.0}])
    with pytest.raises(AssertionError):
        SparseDataProto.concat(plain)
    assert calls == [plain]
    assert len(SparseDataProto.concat([*plain, raw_batch([{}])])) == 3
    assert len(calls) == 1, "a batch with rewards among them makes the call ours"


@given(uniform_rows())
def test_finalize_leaves_a_batch_without_raw_columns_alone(rows):
    stock = stock_batch(rows)
    batch = SparseDataProto(batch=stock.batch, non_tensor_batch=stock.non_tensor_batch, meta_info=stock.meta_info)
    before = Snapshot(batch)
    assert batch.finalize() is batch
    before.assert_unchanged()


# --- law 5: errors come before damage ----------------------------------------------------------------------------


@st.composite
def rows_with(draw: st.DrawFn, taken: list[str]) -> tuple[list, list[str]]:
    """Rows, some of which return keys whose names are taken; and those names."""
    rows = [dict(row or {}) for row in draw(reward_rows())] + [{}]
    names = draw(st.lists(st.sampled_from(taken), min_size=1, max_size=3, unique=True))
    for name in names:
        draw(st.sampled_from(rows))[name] = draw(reward_values())
    return rows, names


TAKEN = {
    "responses": "a tensor",
    "rm_scores": "a tensor",
    "uid": "a column",
    "__num_turns__": "a column",
    "data_source": "a reserved name",
}


def is_repeated(batch: DataProto, rows: list, name: str) -> bool:
    """Whether a reward key has the values of the column of its name: that is no collision."""
    column = batch.non_tensor_batch.get(name, [])
    return len(column) == len(rows) and all(
        row and name in row and alike(row[name], value) for row, value in zip(rows, column, strict=True)
    )


@given(rows_with(list(TAKEN)), st.booleans())
def test_a_refused_finalize_names_every_collision_and_leaves_the_batch_as_it_was(refused, keep_raw):
    rows, names = refused
    batch = raw_batch(rows)
    before = Snapshot(batch)
    names = [name for name in names if not is_repeated(batch, rows, name)]
    assume(names)
    with pytest.raises(FieldCollisionError) as caught:
        batch.finalize(reserved=["data_source", "reward_model"], keep_raw=keep_raw)
    assert set(caught.value.collisions) == set(names)
    for name in names:
        first = next(number for number, row in enumerate(rows) if name in row)
        assert TAKEN[name] in caught.value.collisions[name]
        assert repr(name) in str(caught.value)
        assert f"row {first}" in str(caught.value)
    before.assert_unchanged()


@given(reward_rows(), st.sampled_from(["a/b", "judge/acc"]))
def test_raw_columns_that_flatten_to_one_name_are_refused_and_left_as_they_were(rows, name):
    rows = [*rows, {name: 1.0}]
    batch = raw_batch(rows)
    column, key = name.split("/")
    batch.non_tensor_batch[column] = SparseNonTensor([{key: 2.0}] * len(rows))
    before = Snapshot(batch)
    with pytest.raises(FieldCollisionError, match=name):
        batch.finalize()
    before.assert_unchanged()


@given(reward_rows(), st.data())
def test_a_row_that_was_spoilt_after_it_was_checked_is_refused_and_the_batch_left_as_it_was(rows, data):
    batch = raw_batch([*rows, {}])
    number = data.draw(st.integers(0, len(rows)), label="spoilt row")
    batch.non_tensor_batch[RAW].view(np.ndarray)[number] = "no row"
    before = Snapshot(batch)
    with pytest.raises(RowError, match=f"row {number} "):
        batch.finalize()
    before.assert_unchanged()


@given(reward_rows())
def test_a_folded_batch_cannot_be_finalized_and_is_left_as_it_was(rows):
    batch = fold_batch_dim(raw_batch(rows + rows + [{}, {}]), 2)
    before = Snapshot(batch)
    with pytest.raises(UnfinalizedError, match=RAW):
        batch.finalize()
    before.assert_unchanged()


@given(reward_rows(), st.booleans(), st.booleans())
def test_finalizing_again_changes_nothing(rows, keep_raw, keep_raw_again):
    batch = raw_batch(rows).finalize(keep_raw=keep_raw)
    before = Snapshot(batch)
    assert batch.finalize(keep_raw=keep_raw_again) is batch
    before.assert_unchanged()


@given(reward_rows())
def test_finalize_changes_only_its_own_batch_and_not_those_that_share_its_columns(rows):
    batch = raw_batch(rows)
    before = Snapshot(batch)
    shared = SparseDataProto(batch=batch.batch, non_tensor_batch=batch.non_tensor_batch, meta_info=batch.meta_info)
    shared.finalize()
    before.assert_unchanged()


@given(reward_rows(), reward_rows(), st.sampled_from(FORMS[:3]))
def test_a_refused_concat_leaves_its_inputs_as_they_were(rows, others, form):
    rows, others = [*rows, {}], [*others, {}]
    for spoil, error in SPOILT.items():
        parts = [in_form(raw_batch(rows), form), raw_batch(others, len(rows))]
        spoil(parts)
        before = [Snapshot(part) for part in parts]
        with pytest.raises(error):
            SparseDataProto.concat(parts)
        for snapshot in before:
            snapshot.assert_unchanged()


def lacks_a_tensor(parts: list[DataProto]) -> None:
    parts[1].batch = parts[1].batch.exclude("responses")


def contradicts(parts: list[DataProto]) -> None:
    parts[1].meta_info["temperature"] = 0.5


SPOILT = {lacks_a_tensor: BatchMismatchError, contradicts: BatchMismatchError}


@given(reward_rows(), st.sampled_from(FORMS), st.sampled_from(["tensor", "column", "sample ids"]))
def test_a_refused_union_leaves_both_batches_as_they_were(rows, form, conflict):
    rows = [*rows, {"attempts": 3}]
    scored = in_form(raw_batch(rows), form)
    numbers = torch.arange(len(rows))
    taken = {"tensor": {"attempts": numbers}, "column": {"attempts": numbers.numpy() - 1}, "sample ids": {}}
    prompts = prompts_of(scored, **taken[conflict])
    if conflict == "sample ids":
        prompts.non_tensor_batch["uid"] = prompts.non_tensor_batch["uid"] + "!"
    for one, other in ((prompts, scored), (scored, prompts)):
        ours = SparseDataProto(batch=one.batch, non_tensor_batch=one.non_tensor_batch, meta_info=one.meta_info)
        before = Snapshot(ours), Snapshot(other)
        # What has nothing to do with rewards verl itself refuses: by then it has joined the tensors.
        refusal = pytest.raises(AssertionError, match="uid") if conflict == "sample ids" else None
        with refusal or pytest.raises(FieldCollisionError, match="attempts"):
            ours.union(other)
        for snapshot in before:
            snapshot.assert_unchanged()
