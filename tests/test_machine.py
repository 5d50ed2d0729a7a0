"""Random programs of verl's operations and ours, in any order, on real batches, against the slow model of a batch.

After every step the batch that came out is compared with its model; at the end all that a program has made, since no
operation may change what another holds. `make soak` runs a hundred thousand of them.
"""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace

import cloudpickle
import numpy as np
import pytest

pytest.importorskip("verl")


import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, multiple, rule, run_state_machine_as_test
from oracle import ALIGNED, PLAIN, RAW, Model, Sample, joined
from slow_schema import slowly_assembled
from strategies import alike, objects, reward_rows
from tensordict import TensorDict
from verl.protocol import DataProto, fold_batch_dim, pad_dataproto_to_divisor, unfold_batch_dim, unpad_dataproto

from verl_ext import SparseDataProto, SparseNonTensor, plugin, schema
from verl_ext.column import RAW_COLUMN
from verl_ext.protocol import REWARD_KEYS, as_sparse, is_ours

PROGRAMS = int(os.environ.get("VERL_EXT_PROGRAMS", "300"))
_MOST_ROWS = 16


@dataclass
class Tracked:
    """A batch, and what is known of it."""

    batch: DataProto
    model: Model

    def __repr__(self) -> str:
        return f"{self.model.form} {self.model.numbers}"


def batch_of(samples: Sequence[Sample], cls: type[DataProto] = DataProto, **columns: np.ndarray) -> DataProto:
    numbers = torch.tensor([sample.number for sample in samples], dtype=torch.long)
    return cls(
        batch=TensorDict({"number": numbers, "rm_scores": numbers[:, None] / 2}, batch_size=len(samples)),
        non_tensor_batch={"uid": objects([f"u{sample.number}" for sample in samples]), **columns},
        meta_info={"temperature": 1.0},
    )


def check(tracked: Tracked) -> None:
    """The batch holds what its model says, and nothing else."""
    batch, model = tracked.batch, tracked.model
    columns = batch.non_tensor_batch
    batch.check_consistency()
    assert batch.batch["number"].tolist() == model.numbers
    assert batch.batch["rm_scores"][:, 0].tolist() == [number / 2 for number in model.numbers]
    assert columns["uid"].tolist() == [f"u{number}" for number in model.numbers]
    assert set(columns) - {"uid", RAW_COLUMN} == set(model.keys)
    assert batch.meta_info == {"temperature": 1.0, **({REWARD_KEYS: list(model.keys)} if model.form == ALIGNED else {})}
    if model.form == RAW:
        assert type(columns[RAW_COLUMN]) is SparseNonTensor
        assert all(map(alike, columns[RAW_COLUMN].tolist(), model.rows))
    elif model.left is None:
        assert RAW_COLUMN not in columns
    else:
        assert type(columns[RAW_COLUMN]) is np.ndarray
        left = [row if is_left else None for row, is_left in zip(model.rows, model.left, strict=True)]
        assert all(map(alike, columns[RAW_COLUMN].tolist(), left))
    expected = slowly_assembled(model.rows) if model.whole else {}
    for key in model.keys:
        assert len(columns[key]) == len(model.samples)
        assert all(map(alike, columns[key], model.values(key))), f"{key!r}: {columns[key]!r}, not {model.values(key)!r}"
        if key in expected:
            assert (columns[key].dtype, columns[key].shape) == (expected[key].dtype, expected[key].shape), key


class Batches(RuleBasedStateMachine):
    """Every rule makes batches out of batches; `finalize`, `reorder` and `union` change them in place."""

    batches = Bundle("batches")

    def __init__(self) -> None:
        super().__init__()
        plugin.activate()
        self.made: list[Tracked] = []
        self.count = 0

    def tracked(self, batch: DataProto, model: Model) -> Tracked:
        made = Tracked(batch, model)
        check(made)
        self.made.append(made)
        return made

    def samples(self, rows: Sequence) -> tuple[Sample, ...]:
        first, self.count = self.count, self.count + len(rows)
        return tuple(Sample(first + place, row) for place, row in enumerate(rows))

    # --- what workers hand over ---

    @rule(target=batches, rows=reward_rows(), cls=st.sampled_from([SparseDataProto, DataProto]))
    def raw(self, rows, cls):
        samples = self.samples(rows)
        return self.tracked(batch_of(samples, cls, **{RAW_COLUMN: SparseNonTensor(rows)}), Model(samples, RAW))

    @rule(target=batches, rows=st.lists(st.none(), max_size=3))
    def plain(self, rows):
        samples = self.samples(rows)
        return self.tracked(batch_of(samples), Model(samples, PLAIN))

    # --- rows picked ---

    @rule(target=batches, one=batches, start=st.integers(-3, 6), stop=st.integers(-3, 6), step=st.sampled_from([1, 2]))
    def slice(self, one, start, stop, step):
        where = slice(start, stop, step)
        return self.tracked(one.batch[where], one.model.picked(range(len(one.batch))[where]))

    @rule(target=batches, one=batches, data=st.data(), how=st.sampled_from(["list", "array", "tensor", "mask"]))
    def select(self, one, data, how):
        rows = len(one.batch)
        places = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=6) if rows else st.just([]))
        if how == "mask" or not places:
            mask = np.isin(np.arange(rows), places)
            return self.tracked(one.batch.select_idxs(mask), one.model.picked(np.flatnonzero(mask).tolist()))
        index = {"list": list, "array": np.array, "tensor": torch.tensor}[how](places)
        return self.tracked(one.batch.select_idxs(index), one.model.picked(places))

    @rule(target=batches, one=batches, interleave=st.booleans())
    def repeat(self, one, interleave):
        rows = len(one.batch)
        if not 0 < rows <= _MOST_ROWS // 2:
            return multiple()
        places = [row for row in range(rows) for _ in range(2)] if interleave else [*range(rows)] * 2
        return self.tracked(one.batch.repeat(2, interleave=interleave), one.model.picked(places))

    @rule(one=batches, data=st.data())
    def reorder(self, one, data):
        places = data.draw(st.permutations(range(len(one.batch))))
        one.batch.reorder(torch.tensor(places, dtype=torch.long))
        one.model = one.model.picked(places)
        check(one)

    @rule(target=batches, one=batches, size=st.integers(1, 4), by=st.sampled_from(["chunk", "split"]))
    def cut(self, one, size, by):
        rows = len(one.batch)
        if not rows or (by == "chunk" and rows % size):
            return multiple()
        length = rows // size if by == "chunk" else size
        parts = one.batch.chunk(size) if by == "chunk" else one.batch.split(size)
        ranges = [range(start, min(start + length, rows)) for start in range(0, rows, length)]
        assert len(parts) == len(ranges)
        return multiple(
            *(self.tracked(part, one.model.picked(places)) for part, places in zip(parts, ranges, strict=True))
        )

    # --- batches joined ---

    @rule(
        target=batches,
        some=st.lists(batches, min_size=1, max_size=4),
        name=st.sampled_from([SparseDataProto, DataProto]),
    )
    def concat(self, some, name):
        if sum(len(one.batch) for one in some) > _MOST_ROWS or not any(is_ours(one.batch) for one in some):
            return multiple()  # (plain batches alone are verl's own affair)
        return self.tracked(name.concat([one.batch for one in some]), joined([one.model for one in some]))

    @rule(target=batches, one=batches, divisor=st.integers(1, 5), back=st.booleans())
    def pad(self, one, divisor, back):
        rows = len(one.batch)
        if not rows or rows % divisor == 0:
            return multiple()
        padded, size = pad_dataproto_to_divisor(one.batch, divisor)
        copies = [one.model.picked(range(min(rows, size - start))) for start in range(0, size, rows)]
        model = joined([one.model, *copies])
        if back:
            padded, model = unpad_dataproto(padded, size), model.picked(range(rows))
        return self.tracked(padded, model)

    @rule(one=batches)
    def union(self, one):
        tensors = TensorDict({"input_ids": torch.zeros(len(one.batch), 2)}, batch_size=len(one.batch))
        prompts = DataProto(batch=tensors, non_tensor_batch={"uid": one.batch.non_tensor_batch["uid"].copy()})
        assert one.batch.union(prompts) is one.batch
        one.batch.batch = one.batch.batch.exclude("input_ids")
        one.model = one.model.finalized()
        check(one)

    # --- rewards aligned ---

    @rule(one=batches, keep_raw=st.booleans())
    def finalize(self, one, keep_raw):
        if isinstance(one.batch, SparseDataProto):
            assert one.batch.finalize(keep_raw=keep_raw) is one.batch
            one.model = one.model.finalized(keep_raw)
            check(one)

    # --- there and back ---

    @rule(target=batches, one=batches, how=st.sampled_from([pickle, cloudpickle, copy.deepcopy]))
    def copied(self, one, how):
        # Together with its model, so that objects which are equal only to themselves are known again.
        pair = (one.batch, one.model)
        batch, model = how(pair) if how is copy.deepcopy else how.loads(how.dumps(pair))
        assert type(batch) is type(one.batch)
        return self.tracked(batch, model)

    @rule(target=batches, one=batches)
    def through_a_tensordict(self, one):
        back = SparseDataProto.from_tensordict(as_sparse(one.batch).to_tensordict())
        return self.tracked(back, replace(one.model, whole=one.model.form == RAW))  # a column of numbers is of objects

    @rule(target=batches, one=batches, times=st.integers(1, 3))
    def folded_and_unfolded(self, one, times):
        columns = one.batch.non_tensor_batch.values()
        if not len(one.batch) or len(one.batch) % times or not all(column.size for column in columns):
            return multiple()  # verl, on stock too, cannot fold a column of empty lists
        batch = unfold_batch_dim(fold_batch_dim(one.batch[:], times))  # verl folds in place
        return self.tracked(batch, one.model)

    def teardown(self) -> None:
        for made in self.made:
            check(made)


def test_random_programs_of_operations_do_to_batches_what_they_do_to_a_list_of_samples(monkeypatch):
    for name, value in {"_BLOCK": 3, "_BLOCK_VALUES": 1, "_FEW": 2}.items():  # small batches fill several blocks, too
        monkeypatch.setattr(schema, name, value)
    run_state_machine_as_test(
        Batches,
        settings=settings(settings.default, max_examples=PROGRAMS, stateful_step_count=12, report_multiple_bugs=False),
    )
