"""`SparseDataProto`: verl's `DataProto` with raw columns, aligned `concat`, `finalize` and a guarded `union`.

Batches only; what a column's dtype is, `schema` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch

from verl_ext.column import RAW_COLUMN, Row, SparseNonTensor, join_columns, raw_columns
from verl_ext.errors import (
    BatchMismatchError,
    FieldCollisionError,
    RowError,
    UnfinalizedError,
    VerlNotFoundError,
    shown,
)
from verl_ext.schema import (
    assemble_reward_extra_info,
    concatenate,
    dense_column,
    merge_columns,
    same_value,
)

try:
    from verl.protocol import DataProto
except ModuleNotFoundError as error:
    raise VerlNotFoundError(
        f"SparseDataProto needs verl, and {shown(error.name)} is not installed: pip install verl (0.7.1 or newer)"
    ) from error

Columns: TypeAlias = dict[Any, Any]
Reserved: TypeAlias = Iterable[str] | Mapping[str, str]

REWARD_KEYS = "reward_extra_keys"
"""verl's name in `meta_info` for the list of reward columns (`verl.trainer.ppo.reward.extract_reward`)."""

COLUMNS_MARK = "_verl_ext_columns"
"""Key under which a TensorDict remembers the columns that it cannot hold as such: the raw and the empty ones."""

NOTHING: dict[str, Callable[[], Any]] = {"multi_modal_inputs": dict}
"""What verl's own readers of a column expect for "nothing", where that is not `None`."""


class SparseDataProto(DataProto):  # type: ignore[misc]
    """A `DataProto` whose non-tensor columns may be `SparseNonTensor`s: reward dicts with keys free from row to row.

    Every operation of `DataProto` works on it. `finalize` turns its raw columns into aligned arrays.
    """

    batch: Any
    non_tensor_batch: Columns
    meta_info: dict[str, Any]

    def finalize(self, reserved: Reserved = (), keep_raw: bool = True) -> SparseDataProto:
        """Turn every raw column into aligned columns, in place; all or nothing.

        The raw column `reward_extra_info` flattens to its bare keys, and they alone enter
        `meta_info["reward_extra_keys"]` (where the batch has `rm_scores`, as in verl's `AgentLoopWorker`); any other
        flattens to `<column>/<key>`, or, where a key is no `str`, to the tuple of both. Finalizing again changes
        nothing; names that are reserved only then are checked.

        Args:
            reserved: names that are taken elsewhere, such as the columns of the batch that the trainer will `union`
                with; a mapping says where, for the error message.
            keep_raw: leave the dicts behind as a plain object array `(batch,)` under the raw column's name.

        Returns:
            This batch.

        Raises:
            FieldCollisionError: keys that name a tensor, a column or a reserved name; all of them at once.
            UnfinalizedError: the batch is folded (`fold_batch_dim`); unfold it first.
        """
        raw = raw_columns(self.non_tensor_batch)
        for name, column in raw.items():
            if column.ndim != 1:
                raise UnfinalizedError(
                    f"the raw column {shown(name)} is folded to shape {column.shape}: unfold_batch_dim, then finalize"
                )
        aligned = {name: assemble_reward_extra_info(column.tolist()) for name, column in raw.items()}
        flat = {name: {_flat_name(name, key): key for key in keys} for name, keys in aligned.items()}
        _refuse_collisions(self, raw, flat, reserved)
        if not raw:
            return self

        columns: Columns = {}
        for name, column in self.non_tensor_batch.items():
            if name not in raw:
                columns[name] = column
                continue
            columns.update({flat_name: aligned[name][key] for flat_name, key in flat[name].items()})
            if keep_raw:
                columns[name] = column.view(np.ndarray)
        # New dicts, not the old ones changed: verl shares both between a batch and its chunks and selections.
        self.non_tensor_batch = columns
        if RAW_COLUMN in raw and _has_scores(self):
            keys = _ordered_union([self.meta_info.get(REWARD_KEYS, ()), flat[RAW_COLUMN]])
            self.meta_info = {**self.meta_info, REWARD_KEYS: keys}
        return self

    @staticmethod
    def concat(data: Sequence[DataProto]) -> DataProto:
        """Concatenate batches along the rows, whatever keys each of them has.

        Raw columns are merged as they are if every batch with rows has them; else they are finalized first. Reward
        columns get the dtype that all their values together ask for; a column that a batch lacks is filled with
        `None` there. `meta_info` merges as in `DataProto.concat`, but `reward_extra_keys` by ordered union, and
        `metrics` dicts with unequal keys align. Without any sparse batch, this is `DataProto.concat`.

        Args:
            data: batches, of which at least one is a `SparseDataProto` or has a raw column; any mix of raw,
                finalized and plain. Not changed.

        Raises:
            BatchMismatchError: some batches lack a tensor that others have, or contradict each other in `meta_info`.
            FieldCollisionError: a raw column had to be finalized, and its keys name something else.
        """
        if not any(map(is_sparse, data)):
            return DataProto.concat(data)
        cls = next((type(batch) for batch in data if isinstance(batch, SparseDataProto)), SparseDataProto)
        any_rows = any(map(len, data))
        counted = [bool(len(batch)) or not any_rows for batch in data]  # 0 rows contribute neither keys nor dtypes
        batches = _finalized_where_mixed([batch for batch, counts in zip(data, counted, strict=True) if counts])
        finalized = iter(batches)
        infos = [
            next(finalized).meta_info if counts else _without(batch.meta_info, REWARD_KEYS)
            for batch, counts in zip(data, counted, strict=True)
        ]
        return cls(
            batch=_concat_tensors(batches),
            non_tensor_batch=_concat_columns(batches),
            meta_info=_merge_meta_info(infos),
        )

    def union(self, other: DataProto) -> DataProto:
        """As `DataProto.union`, after a look at the reward keys: see `guarded_union`."""
        return guarded_union(self, other)

    def pop(self, *args: Any, **kwargs: Any) -> SparseDataProto:
        """As `DataProto.pop`; what was popped may be raw and keeps this class."""
        return _as_sparse(super().pop(*args, **kwargs), type(self))

    def make_iterator(self, *args: Any, **kwargs: Any) -> Iterator[SparseDataProto]:
        """As `DataProto.make_iterator`; raw columns stay raw in the mini-batches."""
        raw = raw_columns(self.non_tensor_batch)

        def batches(stock: Iterator[DataProto]) -> Iterator[SparseDataProto]:
            for batch in stock:
                batch.non_tensor_batch.update({name: SparseNonTensor(batch.non_tensor_batch[name]) for name in raw})
                yield _as_sparse(batch, type(self))

        return batches(super().make_iterator(*args, **kwargs))

    def to_tensordict(self) -> Any:
        """As `DataProto.to_tensordict`, remembering which columns are raw, and the columns of a batch of 0 rows.

        Raises:
            RowError: a column is named by a reward key that is no `str`; tensordict takes no other.
        """
        refuse_names_that_are_no_text(self)
        raw = raw_columns(self.non_tensor_batch)
        empty = {} if len(self) else self.non_tensor_batch
        if not raw and not empty:
            return super().to_tensordict()
        view = type(self)(
            batch=self.batch,
            non_tensor_batch={name: column for name, column in self.non_tensor_batch.items() if name not in empty},
            meta_info={**self.meta_info, COLUMNS_MARK: {"raw": list(raw), "empty": dict(empty)}},
        )
        return super(SparseDataProto, view).to_tensordict()

    @classmethod
    def from_tensordict(cls, tensor_dict: Any = None, *args: Any, **kwargs: Any) -> SparseDataProto:
        """As `DataProto.from_tensordict`, the other way round; a column of lists or arrays stays one per row."""
        from tensordict import NonTensorStack

        stacks = {name: value for name, value in tensor_dict.items() if isinstance(value, NonTensorStack)}
        batch: SparseDataProto = super().from_tensordict(tensor_dict.exclude(*stacks), *args, **kwargs)
        mark = batch.meta_info.pop(COLUMNS_MARK, {"raw": [], "empty": {}})
        columns = {name: np.fromiter((row.data for row in stack), dtype=object) for name, stack in stacks.items()}
        columns.update({name: SparseNonTensor(columns[name]) for name in mark["raw"] if name in columns})
        batch.non_tensor_batch = {**columns, **mark["empty"]}
        batch.check_consistency()
        return batch


def is_sparse(batch: Any) -> bool:
    """Whether a batch is ours: a `SparseDataProto`, or any batch that carries a raw column."""
    return isinstance(batch, SparseDataProto) or (
        isinstance(batch, DataProto) and bool(raw_columns(batch.non_tensor_batch))
    )


def as_sparse(batch: DataProto) -> SparseDataProto:
    """The same batch as a `SparseDataProto`; tensors, columns and `meta_info` are shared."""
    return _as_sparse(batch, SparseDataProto)


def attach_reward_extra_info(output: DataProto, infos: Iterable[Row]) -> SparseDataProto:
    """A worker's output with its samples' reward dicts as the raw column, for the manager to finalize.

    For agent-loop workers whose `_postprocess` replaces verl's: build the output without reward keys, and return this.

    Args:
        output: the worker's batch; its tensors and columns are shared, and it is not changed.
        infos: one dict from reward key to value per sample, or `None`; `(batch,)`.

    Raises:
        RowError: a row is no dict, or there are more or fewer rows than samples.
    """
    column = SparseNonTensor(infos)
    if len(column) != len(output):
        raise RowError(
            f"{len(column)} reward dict(s) for {len(output)} sample(s): there must be one, or None, for each"
        )
    columns = dict(output.non_tensor_batch)
    names = list(columns)
    # verl puts the reward keys before this column (`AgentLoopWorker._postprocess`), so that the order stays verl's.
    behind = names[names.index("multi_modal_inputs") :] if "multi_modal_inputs" in names else []
    moved = {name: columns.pop(name) for name in behind}
    return SparseDataProto(
        batch=output.batch,
        non_tensor_batch={**columns, RAW_COLUMN: column, **moved},
        meta_info=output.meta_info,
    )


def refuse_names_that_are_no_text(batch: DataProto) -> None:
    """Raise `RowError` for the first column whose name a TensorDict, by which verl asks its workers, does not take."""
    for name in batch.non_tensor_batch:
        path = name if type(name) is tuple else (name,)  # tensordict reads a tuple as names within each other
        if not path or not all(isinstance(part, str) for part in path):
            raise RowError(
                f"the reward key {shown(name)} is of type {type(name).__name__}, and a TensorDict, by which verl hands "
                "a batch to its workers, takes only str: return the str of it instead"
            )


def _as_sparse(batch: DataProto, cls: type[SparseDataProto]) -> SparseDataProto:
    if isinstance(batch, cls):
        return batch
    return cls(batch=batch.batch, non_tensor_batch=batch.non_tensor_batch, meta_info=batch.meta_info)


# --- finalize ----------------------------------------------------------------------------------------------------


def _flat_name(column: str, key: Any) -> Any:
    if column == RAW_COLUMN:
        return key
    return f"{column}/{key}" if isinstance(key, str) else (column, key)


def _has_scores(batch: DataProto) -> bool:
    return batch.batch is not None and "rm_scores" in batch.batch.keys()


def _ordered_union(lists: Iterable[Iterable[Any]]) -> list[Any]:
    return list(dict.fromkeys(chain.from_iterable(lists)))


def _refuse_collisions(
    batch: DataProto, raw: Mapping[str, SparseNonTensor], flat: Mapping[str, Mapping[Any, Any]], reserved: Reserved
) -> None:
    if isinstance(reserved, str):
        raise TypeError(f"reserved takes a collection of names, not the single str {shown(reserved)}")
    taken: dict[Any, str] = {}
    for name in reserved:
        taken[name] = str(reserved[name]) if isinstance(reserved, Mapping) else "a reserved name"
    # Reward columns that were aligned before, when these names may not have been reserved yet.
    collisions = {key: taken[key] for key in _reward_keys(batch) if key in taken and key in batch.non_tensor_batch}
    for name in batch.non_tensor_batch:
        taken[name] = "the raw column itself" if name in raw else "a column of this batch"
    for name in batch.batch.keys() if batch.batch is not None else ():
        taken[name] = "a tensor of this batch"

    origin: dict[Any, str] = {}
    for column, names in flat.items():
        for name, key in names.items():
            if name in taken:
                collisions[name] = taken[name]
                origin[name] = _origin(batch, raw[column].present(key))
        taken.update(dict.fromkeys(names, f"a key of the raw column {shown(column)}"))
    if collisions:
        raise FieldCollisionError(collisions, origin)


def _origin(batch: DataProto, present: np.ndarray) -> str:
    row = int(np.argmax(present))
    sources = batch.non_tensor_batch.get("data_source")
    return f"first in row {row}" + (f", data source {shown(str(sources[row]))}" if sources is not None else "")


# --- concat ------------------------------------------------------------------------------------------------------


def _finalized_where_mixed(batches: Sequence[DataProto]) -> list[DataProto]:
    """`batches`, those with a raw column that others lack finalized, on copies."""
    names = _ordered_union(raw_columns(batch.non_tensor_batch) for batch in batches)
    if all(isinstance(batch.non_tensor_batch.get(name), SparseNonTensor) for batch in batches for name in names):
        return list(batches)
    return [_finalized_copy(batch) if raw_columns(batch.non_tensor_batch) else batch for batch in batches]


def _finalized_copy(batch: DataProto) -> SparseDataProto:
    """The same batch without raw columns, in containers of its own; plain lists as arrays."""
    return SparseDataProto(
        batch=batch.batch.copy() if batch.batch is not None else None,
        non_tensor_batch={name: _array(column) for name, column in batch.non_tensor_batch.items()},
        meta_info=dict(batch.meta_info),
    ).finalize()


def _concat_tensors(batches: Sequence[DataProto]) -> Any:
    held = [set(batch.batch.keys()) if batch.batch is not None else set() for batch in batches]
    for name in sorted(set().union(*held)):
        without = [number for number, names in enumerate(held) if name not in names]
        if without:
            raise BatchMismatchError(
                f"cannot concatenate {len(batches)} batches: the tensor {shown(name)} is missing in batch(es) "
                f"{', '.join(map(str, without[:8]))}{', ...' if len(without) > 8 else ''} (counting from 0). Tensors "
                "have no fill value: make every worker return it"
                + (" (is a score None for some samples?)" if name == "rm_scores" else "")
            )
    if any(batch.batch is None for batch in batches):
        return None
    return torch.cat([batch.batch for batch in batches], dim=0)


def _concat_columns(batches: Sequence[DataProto]) -> Columns:
    rewards = {key for batch in batches for key in _reward_keys(batch)}
    columns: Columns = {}
    for name in _ordered_union(batch.non_tensor_batch for batch in batches):
        parts = [_part(batch, name) for batch in batches]
        present = [part for part in parts if not isinstance(part, int)]
        raw = [part for part in present if isinstance(part, SparseNonTensor)]
        if len(raw) == len(parts):
            columns[name] = join_columns(raw)
        elif name in rewards:
            columns[name] = merge_columns(parts)
        elif len(present) == len(parts):
            columns[name] = concatenate(present)
        elif name in NOTHING:
            nothing = NOTHING[name]
            filled = [part if not isinstance(part, int) else [nothing() for _ in range(part)] for part in parts]
            columns[name] = merge_columns([_array(part) for part in filled])
        else:
            columns[name] = merge_columns(parts)
    return columns


def _part(batch: DataProto, name: str) -> np.ndarray | int:
    """A batch's share of a column: the array, or the number of rows that lack it."""
    column = batch.non_tensor_batch.get(name)
    return len(batch) if column is None else _array(column)


def _array(column: Any) -> np.ndarray:
    # verl's fully-async `addition_process` makes plain lists
    return column if isinstance(column, np.ndarray) else dense_column(list(column))


def _reward_keys(batch: DataProto) -> list[Any]:
    """Names of the reward columns: from the raw dicts where the batch still holds them, and `reward_extra_keys`."""
    columns = batch.non_tensor_batch
    heads = {name: _heads(name) for name in columns}
    raw = {head for head in columns.keys() & set(chain.from_iterable(heads.values())) if _dicts(columns[head])}
    beside = [name for name in columns if not raw.isdisjoint(heads[name])]
    return _ordered_union([batch.meta_info.get(REWARD_KEYS) or (), *_dicts(columns.get(RAW_COLUMN)), beside])


def _heads(name: Any) -> list[Any]:
    """What may be the raw column in a name that `_flat_name` made: `<column>/<key>`, where both may hold a `/`."""
    if isinstance(name, tuple):
        return list(name[:1])
    return [name[:place] for place, sign in enumerate(name) if sign == "/"] if isinstance(name, str) else []


def _dicts(column: Any) -> list[dict[Any, Any]]:
    """The dicts that a column of them still holds; none, where it is another column."""
    rows = [] if column is None else _array(column).ravel().tolist()
    return [row for row in rows if isinstance(row, dict)]


def _without(info: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in info.items() if name != key}


def _merge_meta_info(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    metrics: list[dict[str, Any]] = []
    for info in infos:
        for key, value in info.items():
            if key == "metrics":
                metrics.extend(value if isinstance(value, list) else [] if value is None else [value])
            elif key == REWARD_KEYS:
                merged[key] = _ordered_union([merged.get(key, ()), value or ()])
            elif key not in merged:
                merged[key] = value
            elif not same_value(merged[key], value):
                raise BatchMismatchError(
                    f"cannot concatenate: meta_info[{shown(key)}] is {shown(merged[key])} in one batch and "
                    f"{shown(value)} in another. Make the workers agree, or pop it before"
                )
    if metrics:
        merged["metrics"] = {name: [entry.get(name) for entry in metrics] for name in _ordered_union(metrics)}
    return merged


# --- union -------------------------------------------------------------------------------------------------------


def guarded_union(one: DataProto, other: DataProto) -> DataProto:
    """`one.union(other)` on verl's own code, once it is known that no reward key overwrites anything.

    Raw columns are finalized on the way, so what comes out has none. Equal columns are no collision, also where one is
    float64 and the other `object`; the column of `one` stays then. All or nothing: on an error both are as they were.

    Args:
        one: the batch to add to; changed in place, as in verl's `DataProto.union`.
        other: the batch to add, of the same rows; not changed.

    Raises:
        FieldCollisionError: a reward key of either side is a tensor, or a different column, of the other.
    """
    left, right = _finalized_plain(one), _finalized_plain(other)
    rewards = [key for key in _reward_keys(left) if key in left.non_tensor_batch]
    joining = [key for key in _reward_keys(right) if key in right.non_tensor_batch]
    collisions: dict[str, str] = {}
    for keys, side in ((rewards, right), (joining, left)):
        tensors = set(side.batch.keys()) if side.batch is not None else ()  # tensordict's own `in` takes only `str`
        collisions.update({key: "a tensor of the batch it is united with" for key in keys if key in tensors})
    for key in _ordered_union([rewards, joining]):
        if key not in left.non_tensor_batch or key not in right.non_tensor_batch or key in collisions:
            continue
        if not same_value(left.non_tensor_batch[key], right.non_tensor_batch[key]):
            collisions[key] = "a column of the batch it is united with, with other values"
        else:
            del right.non_tensor_batch[key]
    if collisions:
        raise FieldCollisionError(collisions)
    for name in {RAW_COLUMN, *raw_columns(one.non_tensor_batch), *raw_columns(other.non_tensor_batch)}:
        # The dicts left behind: verl compares them by `==`, which a NaN or an array among the values defeats.
        if name in right.non_tensor_batch and same_value(left.non_tensor_batch.get(name), right.non_tensor_batch[name]):
            del right.non_tensor_batch[name]

    lists = [info.pop(REWARD_KEYS) for info in (left.meta_info, right.meta_info) if REWARD_KEYS in info]
    united = DataProto.union(left, right)
    if lists:
        united.meta_info[REWARD_KEYS] = _ordered_union(lists)
    one.batch, one.non_tensor_batch, one.meta_info = united.batch, united.non_tensor_batch, united.meta_info
    return one


def _finalized_plain(batch: DataProto) -> DataProto:
    """The same batch as a plain `DataProto` without raw columns, in containers of its own."""
    sparse = _finalized_copy(batch)
    return DataProto(batch=sparse.batch, non_tensor_batch=sparse.non_tensor_batch, meta_info=sparse.meta_info)
