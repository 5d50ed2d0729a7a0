"""What comes out of a call, spelled such that two of them can be compared to the last digit and dtype."""

from typing import Any

import numpy as np
import torch


def spelled(value: Any) -> Any:
    """`value` as dicts, lists and text: types, dtypes and all digits, where NaN is NaN."""
    if isinstance(value, dict):
        return {key: spelled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [spelled(item) for item in value]
    if isinstance(value, np.ndarray):
        return [f"{type(value).__name__} {value.dtype} {value.shape}", spelled(value.tolist())]
    if isinstance(value, torch.Tensor):
        return [f"{type(value).__name__} {value.dtype} {tuple(value.shape)}", repr(value)]
    return f"{type(value).__name__} {value!r}"


def outcome(call: Any) -> Any:
    """What a call returns, or its error as text."""
    try:
        return spelled(call())
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"


def raised(result: Any) -> bool:
    return isinstance(result, str) and result.startswith("raised ")
