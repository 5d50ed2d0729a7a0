"""Teaches verl's default trainer (v1): its samples travel through TransferQueue, rewards in their `extra_fields`.

Aligned columns matter in fewer places here. What is taught: what a colocated reward model reports goes where readers
look for it, GDPO gets its components, dumps carry the reward columns, and what a worker cannot say is said here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from itertools import chain
from typing import Any

from verl_ext.column import RAW_COLUMN, ordered_keys
from verl_ext.dump_fields import FIELDS, UID
from verl_ext.errors import FieldCollisionError, MissingRewardError, shown
from verl_ext.names import Names
from verl_ext.plugin import _run
from verl_ext.plugin._abstain import refuse_all_unscored, unscored
from verl_ext.plugin._dump import GENERATIONS, Apart, writes_rows_whole, writing_dumpable
from verl_ext.plugin._site import REST, Function, PatchSite, State, binder, holding
from verl_ext.plugin._trial import mentions, unless, verls_own
from verl_ext.plugin._workers import refuse_untaught
from verl_ext.plugin.advantage import component_keys
from verl_ext.plugin.agent_loop import UNSCORED
from verl_ext.plugin.agent_loop import site as agent_loop
from verl_ext.plugin.reward_loop import ROWS
from verl_ext.plugin.trainer import beginning_run, kept_apart
from verl_ext.reward_metrics import RewardMetrics
from verl_ext.schema import assemble_reward_extra_info

site = PatchSite(
    name="trainer_v1",
    module="verl.trainer.ppo.v1.trainer_base",
    purpose="validation shifts its lists for a reward key named reward, dumps lose scores, and GDPO gets no components",
)

Fields = dict[str, Any]
Reader = Callable[[Any, Sequence[str], str], None]

_reader: ContextVar[Reader | None] = ContextVar("verl_ext_reader", default=None)
"""What the code that runs now does to the data that it gets from the queue: a function of data, keys and partition."""

_dumped: ContextVar[Any] = ContextVar("verl_ext_dumped", default=None)
"""The batch whose rollout dump is being written."""

_trained: ContextVar[Any] = ContextVar("verl_ext_trained", default=None)
"""The batch whose advantages are being computed."""


# --- the queue ---------------------------------------------------------------------------------------------------


@site.wraps("tq.kv_batch_get", "keys", "partition_id", "select_fields")
def _kv_batch_get(stock: Function) -> Function:
    def kv_batch_get(keys: Any, partition_id: str, select_fields: Any = None) -> Any:
        data = stock(keys, partition_id, select_fields)
        wanted = [select_fields] if isinstance(select_fields, str) else select_fields or ()
        if "extra_fields" in wanted and "extra_fields" not in data.keys():
            # uni-agent's samples have their reward dicts as a field of the queue's own.
            beside = column_of(stock(keys, partition_id, [*wanted, RAW_COLUMN]), RAW_COLUMN)
            if any(beside):
                put_column(data, "extra_fields", with_rewards([None] * len(beside), [row or {} for row in beside]))
        if "rm_scores" in wanted and "rm_scores" not in data.keys():
            _refuse_unscored(stock(keys, partition_id, ["data_source", "extra_fields"]))
        reader = _reader.get()
        if reader is not None and not {"extra_fields", "rm_scores"}.isdisjoint(data.keys()):
            reader(data, keys, partition_id)
        return data

    return kv_batch_get


def column_of(data: Any, field: str) -> list[Any]:
    """A field of what the queue returned that holds no tensors, as a list with one value per sample."""
    if field not in data.keys():
        return [None] * len(data)
    values = data.get(field)  # by storage a NonTensorStack, an array, or a list subclass of tensordict
    return list(values.tolist() if hasattr(values, "tolist") else values)


def put_column(data: Any, field: str, values: Sequence[Any]) -> None:
    """Put a list, one value per sample, in the place of a field of what the queue returned."""
    from verl.utils import tensordict_utils as tu

    data.pop(field, None)
    tu.assign_non_tensor_stack(data, field, list(values))


def reward_rows(extra_fields: Sequence[Any]) -> list[Fields]:
    """The samples' reward dicts; a sample without any has an empty one."""
    return [(fields.get(RAW_COLUMN) or {}) if isinstance(fields, dict) else {} for fields in extra_fields]


def with_rewards(extra_fields: Sequence[Any], rows: Sequence[Mapping[str, Any]]) -> list[Fields]:
    """The samples' extra fields with `rows` as their reward dicts."""
    return [{**(fields or {}), RAW_COLUMN: dict(row)} for fields, row in zip(extra_fields, rows, strict=True)]


def reading(reader: Reader) -> AbstractContextManager[None]:
    """While the block runs, `reader` sees what comes from the queue, and may change it."""
    return holding(_reader, reader)


def _refuse_unscored(data: Any) -> None:
    extra_fields, sources = column_of(data, "extra_fields"), column_of(data, "data_source")
    unscored = [row for row, fields in enumerate(extra_fields) if isinstance(fields, dict) and fields.get(UNSCORED)]
    if unscored:
        row = unscored[0]
        raise MissingRewardError(
            f"{len(unscored)} of {len(extra_fields)} samples have no score; the first is row {row}, data source "
            f"{shown(str(sources[row]))}: {extra_fields[row][UNSCORED]}"
        )


# --- start, and the workers --------------------------------------------------------------------------------------


site.wraps("PPOTrainer.__init__", "self", "config")(beginning_run)

_CHECKED = "_verl_ext_checked"


def _refuse_untaught_workers(trainer: Any) -> None:
    """Once for each set of workers: the v1 agent loop turns what fails in a worker into a tag, so they are asked."""
    if agent_loop.state is not State.ACTIVE:  # by the user's wish, or since it is unknown: the guard is there then
        return
    named = "agent_loop_manager" if hasattr(trainer, "agent_loop_manager") else "async_rollout_manager"  # verl 0.8
    loops = list(getattr(getattr(trainer, named), "agent_loop_workers", ()))  # a user's own manager may have none
    if loops and getattr(trainer, _CHECKED, None) != loops:  # to ask nobody would start a Ray
        refuse_untaught(loops, "agent_loop")
        setattr(trainer, _CHECKED, loops)


@site.wraps("PPOTrainer.step", "self", REST)
def _step(stock: Function) -> Function:
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse_untaught_workers(self)
        return stock(self, *args, **kwargs)

    return step


# --- validation --------------------------------------------------------------------------------------------------


@site.wraps("PPOTrainer._validate", "self", REST)
def _validate(stock: Function) -> Function:
    def _validate(self: Any, *args: Any, **kwargs: Any) -> Any:
        _run.of(self)
        _refuse_untaught_workers(self)
        with reading(partial(_keep_own_apart, Names())):
            return stock(self, *args, **kwargs)

    return _validate


def _keep_own_apart(names: Names[Any], data: Any, keys: Sequence[str], partition_id: str) -> None:
    extra_fields = column_of(data, "extra_fields")
    rows = reward_rows(extra_fields)
    called = kept_apart(chain.from_iterable(rows), names)
    if UID in called:  # it keeps its name among the metrics, but verl merges the samples' keys into its dump under it
        called[UID] = Apart.of(UID)
    if any(name is not key for key, name in called.items()):
        renamed = [{called[key]: value for key, value in row.items()} for row in rows]
        put_column(data, "extra_fields", with_rewards(extra_fields, renamed))


# --- samples that abstain ----------------------------------------------------------------------------------------


@site.wraps("PPOTrainer._compute_old_log_prob", "self", "batch", REST)
def _compute_old_log_prob(stock: Function) -> Function:
    def _compute_old_log_prob(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if _run.of(self).settings.abstains:  # before anything is computed over all of the batch's tokens
            _silence(batch)
        return stock(self, batch, *args, **kwargs)

    return _compute_old_log_prob


_MASKS = ("response_mask", "loss_mask")
"""The queue's fields by which the losses select tokens, and by which the engine counts them."""


def _silence(batch: Any) -> None:
    """Make the masks of the samples without a score zero in the queue, as they are in what verl fills a batch up with.

    Raises:
        MissingRewardError: no sample has a score.
    """
    import torch
    import transfer_queue as tq
    from tensordict import TensorDict

    queue = {"partition_id": batch.partition_id}
    data = tq.kv_batch_get(keys=batch.keys, **queue, select_fields=["rm_scores", "reward_baselines"])
    missing, padding = unscored(data), _padding(batch)
    refuse_all_unscored(missing[torch.tensor([key not in padding for key in batch.keys])])
    keys = [key for key, lacks in zip(batch.keys, missing.tolist(), strict=True) if lacks]
    if keys:
        masks = tq.kv_batch_get(keys=keys, **queue, select_fields=list(_MASKS))
        zeros = {
            name: torch.nested.as_nested_tensor([torch.zeros_like(row) for row in mask.unbind()], layout=torch.jagged)
            for name, mask in masks.items()
        }
        tq.kv_batch_put(keys=keys, **queue, fields=TensorDict(zeros, batch_size=len(keys)))


# --- dumps -------------------------------------------------------------------------------------------------------


def _dumps_rows_whole(module: Any) -> bool:
    return writes_rows_whole(verls_own(module.PPOTrainer, "_write_generations"))


@site.wraps("PPOTrainer._write_generations", *GENERATIONS, needed=unless(_dumps_rows_whole), vital=False)
def _write_generations(stock: Function) -> Function:
    return writing_dumpable(stock, dates_as_text=False)


def _dumps_rewards(module: Any) -> bool:
    """Whether the dump of a rollout has the reward keys, or there is no such dump yet."""
    functions = map(inspect.unwrap, vars(module.PPOTrainer).values())
    if not hasattr(module.PPOTrainer, "_log_rollout_data"):
        return not any(mentions(function, "rollout_data_dir") for function in functions)
    return mentions(verls_own(module.PPOTrainer, "_log_rollout_data"), "extra_fields", RAW_COLUMN)


@site.wraps("PPOTrainer._log_rollout_data", "self", "batch", REST, needed=unless(_dumps_rewards))
def _log_rollout_data(stock: Function) -> Function:
    def _log_rollout_data(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        with holding(_dumped, batch):
            return stock(self, batch, *args, **kwargs)

    return _log_rollout_data


@site.wraps(
    "PPOTrainer._dump_generations",
    "self",
    "inputs",
    "outputs",
    "gts",
    "scores",
    "reward_extra_infos_dict",
    REST,
    needed=unless(_dumps_rewards),
)
def _dump_generations(stock: Function) -> Function:
    def _dump_generations(
        self: Any,
        inputs: Any,
        outputs: Any,
        gts: Any,
        scores: Any,
        reward_extra_infos_dict: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        batch = _dumped.get()
        if batch is not None:  # verl hands over nothing but the keys of the samples, as `uid` (report 7588)
            rows = _rows_of(batch, reward_extra_infos_dict[UID])
            columns = {key: [row.get(key) for row in rows] for key in ordered_keys(rows)}
            own = {*FIELDS, *reward_extra_infos_dict}
            reward_extra_infos_dict = {
                **reward_extra_infos_dict,
                **{Apart.of(key) if key in own else key: column for key, column in columns.items()},
            }
        return stock(self, inputs, outputs, gts, scores, reward_extra_infos_dict, *args, **kwargs)

    return _dump_generations


def _rows_of(batch: Any, keys: Sequence[str]) -> list[Fields]:
    """The reward dicts of the samples `keys` of a batch; what verl added to fill the batch up has earned nothing."""
    import transfer_queue as tq

    data = tq.kv_batch_get(keys=list(keys), partition_id=batch.partition_id, select_fields=["extra_fields"])
    padding = _padding(batch)
    rows = reward_rows(column_of(data, "extra_fields"))
    return [{} if key in padding else row for key, row in zip(keys, rows, strict=True)]


def _padding(batch: Any) -> set[str]:
    """The keys of what verl added to fill a batch up; such a sample carries a copy of another's extra fields."""
    return {key for key, tag in zip(batch.keys, batch.tags, strict=True) if tag.get("is_padding", False)}


# --- a colocated reward model ------------------------------------------------------------------------------------


class _Recording:
    """A reward loop manager that remembers what it returned, and hands verl of it what the queue has room for."""

    def __init__(self, manager: Any, taken: Sequence[str]) -> None:
        self._manager = manager
        self._taken = taken
        self.scored: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def compute_rm_score(self, data: Any) -> Any:
        """As the manager's own, but that `reward_extra_keys` names what can become a field of the samples.

        Raises:
            FieldCollisionError: a reward key names a field that the samples have.
        """
        from verl_ext.protocol import REWARD_KEYS

        self.scored = scored = self._manager.compute_rm_score(data)
        keys = scored.meta_info.get(REWARD_KEYS, ())
        clashes = [key for key in keys if key in self._taken]
        if clashes:
            raise FieldCollisionError(dict.fromkeys(clashes, "a field of the samples in TransferQueue"))
        fields = [key for key in keys if _becomes_a_field(key, scored.non_tensor_batch[key])]
        meta_info = {**scored.meta_info, REWARD_KEYS: fields}
        return type(scored)(batch=scored.batch, non_tensor_batch=scored.non_tensor_batch, meta_info=meta_info)


def _becomes_a_field(key: Any, column: Any) -> bool:
    """Whether verl can put a column into the queue: not by a name that is no text, nor rows that are tensors."""
    import torch

    return isinstance(key, str) and not any(isinstance(value, torch.Tensor) for value in column)


def _keeps_colocated_rewards(module: Any) -> bool:
    return mentions(verls_own(module.PPOTrainer, "_compute_reward_colocate"), "extra_fields", RAW_COLUMN)


@site.wraps(
    "PPOTrainer._compute_reward_colocate", "self", "batch", REST, needed=unless(_keeps_colocated_rewards), vital=False
)
def _compute_reward_colocate(stock: Function) -> Function:
    def _compute_reward_colocate(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        import transfer_queue as tq
        from verl.utils import tensordict_utils as tu

        queue = {"keys": batch.keys, "partition_id": batch.partition_id}
        taken = [*tq.kv_batch_get(keys=batch.keys[:1], partition_id=batch.partition_id).keys()]
        manager = self.reward_loop_manager
        self.reward_loop_manager = recording = _Recording(manager, taken)
        try:
            result = stock(self, batch, *args, **kwargs)
        finally:
            self.reward_loop_manager = manager
        extra_fields = column_of(tq.kv_batch_get(**queue, select_fields=["extra_fields"]), "extra_fields")
        earned = zip(reward_rows(extra_fields), _rows_scored(recording.scored), strict=True)
        rows = [{**own, **row} for own, row in earned]
        tq.kv_batch_put(**queue, fields=tu.get_tensordict({"extra_fields": with_rewards(extra_fields, rows)}))
        return result

    return _compute_reward_colocate


def _rows_scored(scored: Any) -> list[Fields]:
    """The reward dicts of what a manager has scored: as they came, or of the columns where it hands on nothing else."""
    from verl_ext.protocol import REWARD_KEYS

    if hasattr(scored, ROWS):
        return [row or {} for row in getattr(scored, ROWS)]
    columns = {key: scored.non_tensor_batch[key].tolist() for key in scored.meta_info.get(REWARD_KEYS, ())}
    return [
        {key: values[row] for key, values in columns.items() if values[row] is not None} for row in range(len(scored))
    ]


# --- metrics -----------------------------------------------------------------------------------------------------


@site.wraps("PPOTrainer._compute_metrics", "self", "batch", "metrics", REST)
def _compute_metrics(stock: Function) -> Function:
    def _compute_metrics(self: Any, batch: Any, metrics: Any, *args: Any, **kwargs: Any) -> Any:
        run = _run.of(self)
        result = stock(self, batch, metrics, *args, **kwargs)
        if run.settings.metrics != "off":
            metrics.update(_reward_metrics(batch, run.metrics))
        return result

    return _compute_metrics


def _reward_metrics(batch: Any, metrics: RewardMetrics) -> Mapping[str, float]:
    """The metrics of the reward keys of the samples that were trained on, without what verl added to fill it up."""
    import transfer_queue as tq

    padding = _padding(batch)
    keys = [key for key in batch.keys if key not in padding]
    if not keys:
        return {}
    fields = ["data_source", "extra_fields"]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=fields)
    columns = assemble_reward_extra_info(reward_rows(column_of(data, "extra_fields")))
    return metrics.step(columns, column_of(data, "data_source"), len(keys))


# --- GDPO --------------------------------------------------------------------------------------------------------


def _hands_components(module: Any) -> bool:
    functions = ((module.PPOTrainer, "_compute_advantage"), (module, "compute_advantage_for_multi_trajectories"))
    return any(mentions(verls_own(*function), "extra_fields", "gdpo_reward_keys") for function in functions)


@site.wraps("PPOTrainer._compute_advantage", "self", "batch", REST, needed=unless(_hands_components))
def _compute_advantage(stock: Function) -> Function:
    def _compute_advantage(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        with holding(_trained, batch):
            return stock(self, batch, *args, **kwargs)

    return _compute_advantage


@site.wraps(
    "compute_advantage_for_multi_trajectories",
    "data",
    "batch_keys",
    "adv_estimator",
    REST,
    needed=unless(_hands_components),
)
def _compute_advantage_for_multi_trajectories(stock: Function) -> Function:
    bind = binder(stock)

    def compute(*args: Any, **kwargs: Any) -> Any:
        call, batch = bind(*args, **kwargs).arguments, _trained.get()
        components = component_keys(call.get("config")) if call["adv_estimator"] == "gdpo" else ()
        if components and batch is not None:
            _hand_components(call["data"], batch, components)
        return stock(*args, **kwargs)

    return compute


def _hand_components(data: Any, batch: Any, components: Sequence[str]) -> None:
    """Add to `data` what verl's GDPO asks of it: `prompts` and `attention_mask`, and the reward components.

    verl's v1 trainer leaves them in the queue: `KeyError: 'prompts'` (PR 7473).
    """
    import torch
    import transfer_queue as tq

    fields = ["prompts", "responses", "data_source", "extra_fields"]
    queued = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
    lengths = [queued[field].offsets().diff() for field in ("prompts", "responses")]
    prompts = queued["prompts"].to_padded_tensor(padding=0)
    widths = prompts.size(1), data.batch["response_mask"].size(1)
    masks = [torch.arange(width) < length.unsqueeze(1) for width, length in zip(widths, lengths, strict=True)]
    data.batch["prompts"] = prompts
    data.batch["attention_mask"] = torch.cat(masks, dim=1).long()

    padding = _padding(batch)
    nothing = dict.fromkeys(components, 0.0)  # what verl added to fill the batch up has no reward either
    rows = reward_rows(column_of(queued, "extra_fields"))
    rows = [nothing if key in padding else row for key, row in zip(batch.keys, rows, strict=True)]
    columns = assemble_reward_extra_info(rows)
    sources = assemble_reward_extra_info([{"data_source": str(source)} for source in column_of(queued, "data_source")])
    data.non_tensor_batch.update(sources)
    data.non_tensor_batch.update({key: columns[key] for key in components if key in columns})


SHARED = (
    _kv_batch_get,
    _step,
    _validate,
    _compute_old_log_prob,
    _write_generations,
    _log_rollout_data,
    _dump_generations,
    _compute_metrics,
    _compute_advantage,
    _compute_advantage_for_multi_trajectories,
)
"""What this trainer's earlier form, `verl.trainer.main_ppo_sync` of verl 0.8, is taught too."""
