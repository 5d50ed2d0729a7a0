"""Reward columns as a JSONL dump can hold them: numbers as numbers at any depth, and no `None` over the dump's own."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

from verl_ext.errors import encodable, shown
from verl_ext.plugin._site import Function, warn_once
from verl_ext.plugin._trial import seeing
from verl_ext.schema import is_tensor, object_column

GENERATIONS = ("inputs", "outputs", "gts", "scores", "reward_extra_infos_dict", "dump_path", "global_steps")
"""The parameters of the `_write_generations` of verl's trainers."""

_DEEPEST = 64


def writing_dumpable(stock: Function) -> Function:
    """verl's `_write_generations`, such that it gets what JSON can hold, and keeps its own fields."""

    def write_generations(
        inputs: Any,
        outputs: Any,
        gts: Any,
        scores: Any,
        reward_extra_infos_dict: Any,
        dump_path: Any,
        global_steps: Any,
    ) -> Any:
        own = _own_fields(inputs, outputs, gts, scores, global_steps)
        infos = dumpable(reward_extra_infos_dict, own)
        return stock(inputs, outputs, gts, scores, infos, dump_path, global_steps)

    return write_generations


def dumping_dumpable(stock: Function) -> Function:
    """The same for the `_dump_generations` of verl 0.7, which writes at once."""

    def dump_generations(
        self: Any, inputs: Any, outputs: Any, gts: Any, scores: Any, reward_extra_infos_dict: Any, dump_path: Any
    ) -> Any:
        own = _own_fields(inputs, outputs, gts, scores, self.global_steps)
        return stock(self, inputs, outputs, gts, scores, dumpable(reward_extra_infos_dict, own), dump_path)

    return dump_generations


def writes_rows_whole(write: Function) -> bool:
    """Whether verl's `_write_generations` keeps its own score where a row has none, and writes what JSON cannot."""
    file = io.StringIO()
    stand_ins = {
        "open": lambda *_, **__: nullcontext(file),
        "os": SimpleNamespace(makedirs=lambda *_, **__: None, path=os.path),
        "print": lambda *_: None,
    }
    infos = {"score": [None], "found": [np.int64(3)], "thing": [object()]}
    seeing(write, **stand_ins)(["in"], ["out"], ["gt"], [1.0], infos, "", 1)
    row = json.loads(file.getvalue())
    return bool(row["score"] == 1.0 and row["found"] == 3 and "thing" in row)


def _own_fields(inputs: Any, outputs: Any, gts: Any, scores: Any, step: Any) -> dict[str, Sequence[Any]]:
    """The fields that verl writes for each row before the reward columns."""
    return {"input": inputs, "output": outputs, "gts": gts, "score": scores, "step": [step] * len(inputs)}


def dumpable(infos: Mapping[str, Sequence[Any]], own: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Reward columns for verl's `_write_generations`.

    Args:
        infos: by key, one value per row.
        own: the fields that the dump writes itself. verl lets a reward key of the same name replace them; here it does
            so only in rows that have it.

    Returns:
        Lists of what `json` can write as it is. What it cannot is text, said once per key.
    """
    lists = {key: [_json_value(key, value) for value in values] for key, values in infos.items()}
    for key in lists.keys() & own.keys():
        if len(lists[key]) == len(own[key]):
            lists[key] = [
                theirs if value is None else value for value, theirs in zip(lists[key], own[key], strict=True)
            ]
    return lists


def _json_value(key: str, value: Any, depth: int = 0) -> Any:
    if value is None or type(value) in (int, float, bool):
        return value
    if isinstance(value, str):
        return _text_of_a_file(key, value)
    if isinstance(value, np.generic | np.ndarray) or is_tensor(type(value)):
        value = _python_value(value)
    if depth < _DEEPEST and isinstance(value, dict):
        return {_json_name(name): _json_value(key, item, depth + 1) for name, item in value.items()}
    if depth < _DEEPEST and isinstance(value, list | tuple):
        return [_json_value(key, item, depth + 1) for item in value]
    if isinstance(value, int | float):
        return value
    warn_once(
        ("dump", key),
        f"dump: the reward key {shown(key)} holds a {type(value).__name__}, which JSON cannot; it is written as text",
    )
    return str(value)


def _text_of_a_file(key: str, text: str) -> str:
    if encodable(text):
        return text
    warn_once(("dump", key), f"dump: the reward key {shown(key)} holds half a character; it is written escaped")
    return text.encode("utf-8", "backslashreplace").decode()


def _python_value(value: Any) -> Any:
    (number,) = object_column([value])
    return number.tolist() if hasattr(number, "tolist") else number


def _json_name(name: Any) -> Any:
    return name if isinstance(name, str | int | float | bool | None) else str(name)
