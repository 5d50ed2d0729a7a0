"""Patches `verl.utils.tensordict_utils`: TensorDicts of batches with different reward keys can be joined and united.

Their columns hold one object per row, so no value is changed there; but stock verl wants the same keys in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from verl_ext.column import RAW_COLUMN
from verl_ext.plugin._site import Function, PatchSite

site = PatchSite(
    name="tensordict_utils",
    module="verl.utils.tensordict_utils",
    purpose="TensorDicts of batches with different reward keys cannot be joined or united",
)

REWARD_KEYS = "reward_extra_keys"


@site.wraps("concat_tensordict", "data")
def _concat_tensordict(stock: Function) -> Function:
    def concat_tensordict(data: Any) -> Any:
        names = [_reward_keys(part) for part in data]
        held = [{*names[place], RAW_COLUMN}.intersection(part.keys()) for place, part in enumerate(data)]
        if all(names[0] == other for other in names) and all(held[0] == other for other in held):
            return stock(data)
        keys, columns = _ordered_union(names), dict.fromkeys([*_ordered_union(names), RAW_COLUMN])
        held_by_any = [key for key in columns if any(key in part.keys() for part in data)]
        return stock([_with_columns(part, held_by_any, keys) for part in data])

    return concat_tensordict


@site.wraps("union_tensor_dict", "tensor_dict1", "tensor_dict2")
def _union_tensor_dict(stock: Function) -> Function:
    def union_tensor_dict(tensor_dict1: Any, tensor_dict2: Any) -> Any:
        from verl.utils.tensordict_utils import assign_non_tensor_data

        names = [_reward_keys(part) for part in (tensor_dict1, tensor_dict2)]
        if not all(names) or names[0] == names[1]:
            return stock(tensor_dict1, tensor_dict2)
        united = stock(tensor_dict1, tensor_dict2.exclude(REWARD_KEYS))
        assign_non_tensor_data(united, REWARD_KEYS, _ordered_union(names))
        return united

    return union_tensor_dict


def _reward_keys(data: Any) -> list[str]:
    """The names of the reward columns that verl has put into a TensorDict's metadata; none, where it has none."""
    from verl.utils.tensordict_utils import get_non_tensor_data

    names = get_non_tensor_data(data, REWARD_KEYS, None)
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


def _with_columns(data: Any, columns: Sequence[str], keys: list[str]) -> Any:
    """A TensorDict with `None` for each row of the columns that it lacks, and `keys` as the names of its rewards."""
    from verl.utils.tensordict_utils import assign_non_tensor_data, assign_non_tensor_stack

    whole = data.copy()
    for column in columns:
        if column not in data.keys():
            assign_non_tensor_stack(whole, column, [None] * len(data))
    assign_non_tensor_data(whole, REWARD_KEYS, keys)
    return whole


def _ordered_union(lists: Sequence[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(chain.from_iterable(lists)))
