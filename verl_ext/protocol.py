"""`SparseDataProto`: verl's `DataProto` with raw columns, aligned `concat`, `finalize` and a guarded `union`.

Batches only; what a column's dtype is, `schema` decides.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from verl_ext.column import MANAGER_FINALIZES, RAW_COLUMN, Row, SparseNonTensor, join_columns, raw_columns
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
    object_column,
    same_value,
)

try:
    from verl.protocol import DataProto
except ModuleNotFoundError as error:
    raise VerlNotFoundError(
        f"SparseDataProto needs verl, and {shown(error.name)} is not installed: pip install verl (0.7.1 or newer)"
    ) from error

Columns: TypeAlias = dict[Any, Any]
Reserved: TypeAlias = Iterable[str] | Mapping[str, Any]

_OTHER_VALUES = "a column of the batch it is united with, with other values"

REWARD_KEYS = "reward_extra_keys"
"""verl's name in `meta_info` for the list of reward columns (`verl.trainer.ppo.reward.extract_reward`)."""

JOINED_KEYS = "_verl_ext_joined_keys"
"""Attribute of what `concat` returns: its `reward_extra_keys`, since the agent-loop manager replaces `meta_info`."""

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
        flattens to `<column>/<key>`, or, where a key is no `str`, to the tuple of both. So does a key that names the
        dicts which `keep_raw` leaves behind. Finalizing again changes nothing; names that are reserved only then are
        checked.

        A key with the same values as the column of its name is no collision. The later of the two in the batch stays,
        in the place of the earlier: so verl's `AgentLoopWorker` writes columns, reward keys and extra fields.

        Args:
            reserved: names that are taken elsewhere, such as the columns of the batch that the trainer will `union`
                with; a mapping says where, for the error message, or gives the column `(batch,)` that has the name.
            keep_raw: leave the dicts behind as a plain object array `(batch,)` under the raw column's name.

        Returns:
            This batch.

        Raises:
            FieldCollisionError: keys that name a tensor, a reserved name or a column of other values; all at once.
            UnfinalizedError: the batch is folded (`fold_batch_dim`); unfold it first.
        """
        held = _Held(self)
        raw = raw_columns(held.non_tensor_batch)
        for name, column in raw.items():
            if column.ndim != 1:
                raise UnfinalizedError(
                    f"the raw column {shown(name)} is folded to shape {column.shape}: unfold_batch_dim, then finalize"
                )
        aligned = {name: assemble_reward_extra_info(column.tolist()) for name, column in raw.items()}
        _refuse_collisions(held, aligned, keep_raw, reserved)
        if not raw:
            return self

        columns: Columns = {}
        for name, column in held.non_tensor_batch.items():
            if name not in raw:
                columns[name] = column
                continue
            columns.update({_flat_name(name, key, keep_raw): values for key, values in aligned[name].items()})
            if keep_raw:
                columns[name] = column.view(np.ndarray)
        meta_info = held.meta_info
        if RAW_COLUMN in raw and _has_scores(held):
            flat = (_flat_name(RAW_COLUMN, key, keep_raw) for key in aligned[RAW_COLUMN])
            meta_info = {**meta_info, REWARD_KEYS: _ordered_union([meta_info.get(REWARD_KEYS, ()), flat])}
        # New dicts, not the old ones changed: verl shares both between a batch and its chunks and selections. In one
        # step, so that no thread sees the one without the other.
        self.__dict__.update(non_tensor_batch=columns, meta_info=meta_info)
        return self

    @staticmethod
    def concat(data: Sequence[DataProto]) -> DataProto:
        """Concatenate batches along the rows, whatever keys each of them has.

        Raw columns are merged as they are if every batch with rows has them; else they are finalized first. Reward
        columns get the dtype that all their values together ask for; a column that a batch lacks is filled with
        `None` there. `meta_info` merges as in `DataProto.concat`, but `reward_extra_keys` by ordered union, and
        `metrics` dicts with unequal keys align. Without any batch that concerns rewards, this is `DataProto.concat`.

        Args:
            data: batches, any mix of raw, finalized and plain. Not changed.

        Returns:
            A `SparseDataProto` where one of the batches is one, or raw; else a batch of the first one's class, as
            `DataProto.concat` gives it.

        Raises:
            BatchMismatchError: some batches lack a tensor that others have, or contradict each other in `meta_info`.
            FieldCollisionError: a raw column had to be finalized, and its keys name something else.
        """
        if not any(map(is_ours, data)):
            return DataProto.concat(data)
        held = [_Held(batch) for batch in data]
        any_rows = any(map(len, held))
        counted = [bool(len(batch)) or not any_rows for batch in held]  # 0 rows contribute neither keys nor dtypes
        batches = _finalized_where_mixed([batch for batch, counts in zip(held, counted, strict=True) if counts])
        _keep_dicts_apart(batches)
        finalized = iter(batches)
        infos = [
            next(finalized).meta_info if counts else _without(batch.meta_info, REWARD_KEYS)
            for batch, counts in zip(held, counted, strict=True)
        ]
        columns = _concat_columns(batches)
        sparse = next((type(batch) for batch in data if isinstance(batch, SparseDataProto)), None)
        cls = sparse or (
            SparseDataProto if any(raw_columns(batch.non_tensor_batch) for batch in held) else type(data[0])
        )
        joined = cls(batch=_concat_tensors(batches), non_tensor_batch=columns, meta_info=_merge_meta_info(infos))
        setattr(joined, JOINED_KEYS, joined.meta_info.get(REWARD_KEYS))
        return joined

    def union(self, other: DataProto) -> DataProto:
        """As `DataProto.union`, after a look at the reward keys: see `guarded_union`."""
        return guarded_union(self, other)

    def pop(self, *args: Any, **kwargs: Any) -> SparseDataProto:
        """As `DataProto.pop`; what was popped may be raw and keeps this class."""
        return _as_sparse(super().pop(*args, **kwargs), type(self))

    def make_iterator(self, *args: Any, **kwargs: Any) -> Iterator[SparseDataProto]:
        """As `DataProto.make_iterator`; raw columns stay raw in the mini-batches."""
        held = _Held(self)
        raw = raw_columns(held.non_tensor_batch)
        # verl looks up its rows one by one, until the last mini-batch: by then the batch may have been finalized.
        rows = type(self)(held.batch, held.non_tensor_batch, held.meta_info) if raw else self

        def batches(stock: Iterator[DataProto]) -> Iterator[SparseDataProto]:
            for batch in stock:
                batch.non_tensor_batch.update({name: SparseNonTensor(batch.non_tensor_batch[name]) for name in raw})
                yield _as_sparse(batch, type(self))

        return batches(super(SparseDataProto, rows).make_iterator(*args, **kwargs))

    def to_tensordict(self) -> Any:
        """As `DataProto.to_tensordict`, remembering which columns are raw, and the columns of a batch of 0 rows.

        Raises:
            RowError: a column is named by a reward key that is no `str`; tensordict takes no other.
        """
        held = _Held(self)
        refuse_names_that_are_no_text(held)
        raw = raw_columns(held.non_tensor_batch)
        empty = {} if len(held) else held.non_tensor_batch
        if not raw and not empty:
            return super().to_tensordict()
        view = type(self)(
            batch=held.batch,
            non_tensor_batch={name: column for name, column in held.non_tensor_batch.items() if name not in empty},
            meta_info={**held.meta_info, COLUMNS_MARK: {"raw": list(raw), "empty": dict(empty)}},
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


class _VerlsOwn(DataProto):  # type: ignore[misc]
    """A batch for verl's own code, whatever it holds."""


def is_ours(batch: Any) -> bool:
    """Whether a batch concerns reward columns, by what it holds: raw columns, the dicts, or the names of its columns.

    Its class says so too, but does not last: after the trainer's `union` a batch is a plain `DataProto` again, and
    recipes go on joining it (DAPO's dynamic sampling).
    """
    return isinstance(batch, SparseDataProto) or (
        isinstance(batch, DataProto)
        and not isinstance(batch, _VerlsOwn)
        and (
            REWARD_KEYS in batch.meta_info
            or RAW_COLUMN in batch.non_tensor_batch
            or bool(raw_columns(batch.non_tensor_batch))
        )
    )


def as_sparse(batch: DataProto) -> SparseDataProto:
    """The same batch as a `SparseDataProto`; tensors, columns and `meta_info` are shared."""
    return _as_sparse(batch, SparseDataProto)


def attach_reward_extra_info(output: DataProto, infos: Iterable[Row]) -> SparseDataProto:
    """A worker's output with its samples' reward dicts, for agent-loop workers whose `_postprocess` replaces verl's.

    Build the output without reward keys, and return this. Where a manager with the plugin has asked, it carries the
    raw column, which the manager finalizes; else (the plugin is off, or the worker is called by other code) it has
    the columns that verl's own worker makes: one per key, the dicts, and `reward_extra_keys` beside `rm_scores`.

    Args:
        output: the worker's batch; its tensors and columns are shared, and it is not changed.
        infos: one dict from reward key to value per sample, or `None`; `(batch,)`.

    Raises:
        RowError: a row is no dict, or there are more or fewer rows than samples.
        FieldCollisionError: it was finalized, and a key names a tensor or a column of `output`.
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
    attached = SparseDataProto(
        batch=output.batch,
        non_tensor_batch={**columns, RAW_COLUMN: column, **moved},
        meta_info=output.meta_info,
    )
    return attached if MANAGER_FINALIZES.get() else finalized_output(attached)


def finalized_output(output: SparseDataProto, reserved: Reserved = ()) -> SparseDataProto:
    """`output.finalize(reserved)`, laid out as verl's agent loop does: the dicts behind its other extra fields.

    There is no such column where no sample has any.
    """
    output.finalize(reserved)
    dicts = output.non_tensor_batch.pop(RAW_COLUMN, ())
    if any(row is not None for row in dicts):
        output.non_tensor_batch[RAW_COLUMN] = dicts
    return output


def completed(batch: DataProto, carried: Iterable[str] = ()) -> DataProto:
    """A batch without raw columns, with a column for every key of the dicts that it holds.

    Workers with an assembly of their own may have kept some keys only (the intersection, or those of the first
    sample), and `concat` has filled what other workers lacked with `None`; NumPy may have changed a value on the way. A
    value of a named reward column that is neither is its worker's own, and stays.

    Args:
        batch: not changed.
        carried: columns that the batch only carries along, and that give way to a key of that name.

    Raises:
        FieldCollisionError: a key of the dicts names a tensor, or a column of the worker's own with other values.
    """
    columns = {name: column for name, column in batch.non_tensor_batch.items() if name not in carried}
    rows = [row if isinstance(row, dict) else {} for row in columns[RAW_COLUMN].tolist()]
    aligned = assemble_reward_extra_info(rows)
    columns = {name: batch.non_tensor_batch[name] for name in carried if name not in aligned} | columns
    named = batch.meta_info.get(REWARD_KEYS) or ()
    tensors = set() if batch.batch is None else set(batch.batch.keys())
    taken = {key: "a tensor of this batch" for key in aligned if key in tensors and key not in columns}
    whole: Columns = {}
    for key, column in aligned.items():
        held = columns.get(key)
        whole[key] = column if held is None else _restored(held, rows, key)
        emitted = [(value, row[key]) for value, row in zip(whole[key], rows, strict=True) if key in row]
        if key not in named and not all(same_value(*pair) for pair in emitted):
            taken[key] = "a column of this batch"
    if taken:
        raise FieldCollisionError(taken)
    keys = _ordered_union([named, aligned])
    if all(whole[key] is batch.non_tensor_batch.get(key) for key in whole) and len(keys) == len(named):
        return batch
    return type(batch)(
        batch=batch.batch,
        non_tensor_batch={**columns, **whole, RAW_COLUMN: columns[RAW_COLUMN]},
        meta_info={**batch.meta_info, REWARD_KEYS: keys} if _has_scores(batch) else batch.meta_info,
    )


def _restored(held: np.ndarray, rows: Sequence[Mapping[Any, Any]], key: Any) -> np.ndarray:
    """A column with the values of the dicts where it has `None`, or what NumPy has made of them; else the very same."""
    had = list(held)
    values = [
        row[key] if key in row and (value is None or _is_made_of(value, row[key])) else value
        for value, row in zip(had, rows, strict=True)
    ]
    return held if all(map(operator.is_, values, had)) else dense_column(values)


def _is_made_of(made: Any, value: Any) -> bool:
    """Whether a value became another on its way into an array: a number text, or a large integer a float."""
    try:
        return not same_value(made, value) and bool(np.asarray(value).astype(np.asarray(made).dtype) == made)
    except Exception:  # whatever NumPy cannot do with a scorer's value, it has not done
        return False


class _Held:
    """What a batch holds, read in one step: another thread that finalizes it puts other dicts in their place.

    Plain lists among the columns are arrays here: verl's fully-async `addition_process` makes such.
    """

    def __init__(self, batch: Any) -> None:
        parts = dict(vars(batch))
        self.batch = parts["batch"]
        self.non_tensor_batch: Columns = {
            name: _array(column) for name, column in dict(parts["non_tensor_batch"]).items()
        }
        self.meta_info: dict[str, Any] = parts["meta_info"]

    __len__ = DataProto.__len__


def refuse_names_that_are_no_text(batch: DataProto | _Held) -> None:
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


def _flat_name(column: str, key: Any, keep_raw: bool = True) -> Any:
    named = key != RAW_COLUMN or not keep_raw  # else the dicts that are left behind have that name
    if column == RAW_COLUMN and named:
        return key
    return f"{column}/{key}" if isinstance(key, str) else (column, key)


def _has_scores(batch: _Held) -> bool:
    return batch.batch is not None and "rm_scores" in batch.batch.keys()


def _ordered_union(lists: Iterable[Iterable[Any]]) -> list[Any]:
    return list(dict.fromkeys(chain.from_iterable(lists)))


class _Place(NamedTuple):
    """Where a name is taken, and the values that it has there, where they are known."""

    where: str
    values: Any = None

    def refused(self, values: Sequence[Any]) -> np.ndarray:
        """The rows in which a reward key of these values cannot have the name; `None` is for a row without it."""
        if self.values is None or len(self.values) != len(values):
            return np.ones(len(values), dtype=bool)
        return np.array([not same_value(*pair) for pair in zip(self.values, values, strict=True)], dtype=bool)


def _refuse_collisions(held: _Held, aligned: Mapping[str, Columns], keep_raw: bool, reserved: Reserved) -> None:
    columns, tensors = held.non_tensor_batch, held.batch.keys() if held.batch is not None else ()
    elsewhere = _reserved_places(reserved)
    places: list[dict[str, _Place]] = [
        elsewhere,
        {name: _Place("a column of this batch", column) for name, column in columns.items() if name not in aligned},
        {name: _Place("the raw column itself") for name in aligned if keep_raw or name != RAW_COLUMN},
        {name: _Place("a tensor of this batch") for name in tensors},
    ]
    # Reward columns that were aligned before, when these names may not have been reserved yet.
    before = [key for key in _reward_keys(held) if key in elsewhere and key in columns]
    collisions = {key: elsewhere[key].where for key in before if elsewhere[key].refused(columns[key]).any()}
    origin: dict[str, str] = {}
    for column, keys in aligned.items():
        flat: dict[str, _Place] = {}
        places.append(flat)
        for key, values in keys.items():
            name = _flat_name(column, key, keep_raw)
            for place in [place[name] for place in places if name in place]:
                refused = place.refused([(row or {}).get(key) for row in columns[column].tolist()])
                if refused.any():
                    present = columns[column].present(key)
                    collisions[name] = place.where
                    origin[name] = _origin(held, refused & present if (refused & present).any() else present)
            flat[name] = _Place(f"a key of the raw column {shown(column)}", values)
    if collisions:
        raise FieldCollisionError(collisions, origin)


def _reserved_places(reserved: Reserved) -> dict[str, _Place]:
    if isinstance(reserved, str):
        raise TypeError(f"reserved takes a collection of names, not the single str {shown(reserved)}")
    if not isinstance(reserved, Mapping):
        return {name: _Place("a reserved name") for name in reserved}
    return {
        name: _Place(taken) if isinstance(taken, str) else _Place(_OTHER_VALUES, taken)
        for name, taken in reserved.items()
    }


def _origin(batch: _Held, rows: np.ndarray) -> str:
    row = int(np.argmax(rows))
    sources = batch.non_tensor_batch.get("data_source")
    return f"first in row {row}" + (f", data source {shown(str(sources[row]))}" if sources is not None else "")


# --- concat ------------------------------------------------------------------------------------------------------


def _finalized_where_mixed(batches: Sequence[_Held]) -> list[_Held]:
    """`batches`, those with a raw column that others lack finalized, on copies."""
    names = _ordered_union(raw_columns(batch.non_tensor_batch) for batch in batches)
    if all(isinstance(batch.non_tensor_batch.get(name), SparseNonTensor) for batch in batches for name in names):
        return list(batches)
    return [_Held(_finalized_copy(batch)) if raw_columns(batch.non_tensor_batch) else batch for batch in batches]


def _keep_dicts_apart(batches: Sequence[_Held]) -> None:
    """Where one batch keeps its rows' dicts, another's reward column of their name gets the name it has beside them."""
    named = [batch for batch in batches if RAW_COLUMN in batch.non_tensor_batch]
    rewards = [batch for batch in named if _names_rewards(batch)]
    if len(rewards) == len(named):
        return
    names = {RAW_COLUMN: _flat_name(RAW_COLUMN, RAW_COLUMN)}
    for batch in rewards:
        batch.non_tensor_batch = {names.get(name, name): column for name, column in batch.non_tensor_batch.items()}
        keys = [names.get(name, name) for name in batch.meta_info[REWARD_KEYS]]
        batch.meta_info = {**batch.meta_info, REWARD_KEYS: keys}


def _names_rewards(batch: _Held) -> bool:
    """Whether the raw column's name is that of a reward column (`finalize(keep_raw=False)`), not of the rows' dicts.

    verl's own agent loop writes the dicts over the column of a reward key of that name: then they hold the key.
    """
    if RAW_COLUMN not in (batch.meta_info.get(REWARD_KEYS) or ()):
        return False
    column = batch.non_tensor_batch.get(RAW_COLUMN)
    return not isinstance(column, SparseNonTensor) and not any(RAW_COLUMN in row for row in _dicts(column))


def _finalized_copy(batch: _Held) -> SparseDataProto:
    """The same batch without raw columns, in containers of its own."""
    return SparseDataProto(
        batch=batch.batch.copy() if batch.batch is not None else None,
        non_tensor_batch=batch.non_tensor_batch,
        meta_info=dict(batch.meta_info),
    ).finalize()


def _concat_tensors(batches: Sequence[_Held]) -> Any:
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


def _concat_columns(batches: Sequence[_Held]) -> Columns:
    rewards = {key for batch in batches for key in _reward_keys(batch)}
    columns: Columns = {}
    for name in _ordered_union(batch.non_tensor_batch for batch in batches):
        parts = [_part(batch, name) for batch in batches]
        present = [part for part in parts if not isinstance(part, int)]
        raw = [part for part in present if isinstance(part, SparseNonTensor)]
        if len(raw) == len(parts):
            columns[name] = join_columns(raw)
        elif len(present) == len(parts) and name not in rewards:
            columns[name] = concatenate(present)
        else:
            columns[name] = merge_columns(parts)
    return columns


def _part(batch: _Held, name: str) -> np.ndarray | int:
    """A batch's share of a column: the array, or the number of rows that lack it."""
    column = batch.non_tensor_batch.get(name)
    if column is None and name in NOTHING:
        column = object_column([NOTHING[name]() for _ in range(len(batch))])
    return len(batch) if column is None else column


def _array(column: Any) -> np.ndarray:
    # verl's fully-async `addition_process` makes plain lists
    return column if isinstance(column, np.ndarray) else dense_column(list(column))


def _reward_keys(batch: _Held) -> list[Any]:
    """Names of the reward columns: from the raw dicts where the batch still holds them, and `reward_extra_keys`."""
    columns = batch.non_tensor_batch
    dicts = _ordered_union([] if _names_rewards(batch) else _dicts(columns.get(RAW_COLUMN)))
    heads = {name: _heads(name) for name in columns if not isinstance(name, str) or "/" in name}
    raw = {head for head in columns.keys() & set(chain.from_iterable(heads.values())) if _dicts(columns[head])}
    beside = [name for name, before in heads.items() if not raw.isdisjoint(before)]
    named = [_flat_name(RAW_COLUMN, key) for key in dicts]
    return _ordered_union([batch.meta_info.get(REWARD_KEYS) or (), named, beside])


def _heads(name: Any) -> list[Any]:
    """What may be the raw column in a name that `_flat_name` made: `<column>/<key>`, where both may hold a `/`."""
    if isinstance(name, tuple):
        return list(name[:1])
    return [name[:place] for place, sign in enumerate(name) if sign == "/"] if isinstance(name, str) else []


def _dicts(column: Any) -> list[dict[Any, Any]]:
    """The dicts that `finalize` has left behind in a column; none, where it is another column, or a raw one."""
    rows = [] if column is None or isinstance(column, SparseNonTensor) else column.ravel().tolist()
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

    Raw columns are finalized on the way, so what comes out has none. Reward columns of `one` whose `rm_scores` were
    popped give way to those that `other` brings with its own. Equal columns are no collision: as in verl's union, the
    column of `other` stays, but that of `one` where their dtypes differ, which verl refuses. All or nothing: on an
    error both are as they were.

    Args:
        one: the batch to add to; changed in place, as in verl's `DataProto.union`.
        other: the batch to add, of the same rows; not changed.

    Raises:
        FieldCollisionError: a reward key of either side is a tensor, or a different column, of the other.
    """
    held = _Held(one), _Held(other)
    left, right = sides = [_Held(_finalized_copy(side)) for side in held]
    if _scores_were_taken_out(left) and _has_scores(right):
        # REMAX in recipes: the greedy answers' tensors are popped, and these columns say what those answers earned.
        for key in (*left.meta_info.pop(REWARD_KEYS), RAW_COLUMN):
            left.non_tensor_batch.pop(key, None)
    _keep_dicts_apart(sides)
    columns, joining = left.non_tensor_batch, right.non_tensor_batch
    rewards = [[key for key in _reward_keys(side) if key in side.non_tensor_batch] for side in sides]
    collisions: dict[str, str] = {}
    for keys, side in zip(rewards, (right, left), strict=True):
        tensors = set(side.batch.keys()) if side.batch is not None else ()  # tensordict's own `in` takes only `str`
        collisions.update({key: "a tensor of the batch it is united with" for key in keys if key in tensors})
    keys = _ordered_union(rewards)
    dicts = [RAW_COLUMN, *(name for side in held for name in raw_columns(side.non_tensor_batch))]
    for name in _ordered_union([keys, dicts]):
        if name not in columns or name not in joining or name in collisions:
            continue
        # verl takes the other's column if it is equal, in dtype too. A NaN or an array in a dict defeats its `==`.
        if same_value(columns[name], joining[name]):
            column = joining.pop(name)
            columns[name] = column if column.dtype == columns[name].dtype else columns[name]
        elif name in keys:
            collisions[name] = _OTHER_VALUES
    if collisions:
        raise FieldCollisionError(collisions)

    lists = [info.pop(REWARD_KEYS) for info in (left.meta_info, right.meta_info) if REWARD_KEYS in info]
    united = DataProto.union(*map(_plain, sides))
    if lists:
        united.meta_info[REWARD_KEYS] = _ordered_union(lists)
    one.batch, one.non_tensor_batch, one.meta_info = united.batch, united.non_tensor_batch, united.meta_info
    return one


def _scores_were_taken_out(batch: _Held) -> bool:
    """Whether a batch names reward columns and has no scores any more: verl names them only beside `rm_scores`."""
    return REWARD_KEYS in batch.meta_info and not _has_scores(batch)


def _plain(held: _Held) -> DataProto:
    return _VerlsOwn(batch=held.batch, non_tensor_batch=held.non_tensor_batch, meta_info=held.meta_info)
