"""verl-ext: reward functions for verl may return any keys for any sample, and every value arrives.

Importing this package activates nothing and imports neither torch nor verl; `verl_ext.autoload` activates the plugin.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl_ext.column import SparseNonTensor
    from verl_ext.errors import (
        BatchMismatchError,
        FieldCollisionError,
        MissingRewardError,
        NotNumericError,
        NotSendableError,
        PluginMissingError,
        RowError,
        SettingsError,
        UnfinalizedError,
        UnsupportedVerlError,
        VerlExtError,
        VerlNotFoundError,
    )
    from verl_ext.plugin.trainer import validation
    from verl_ext.protocol import SparseDataProto, as_sparse, attach_reward_extra_info
    from verl_ext.reward_metrics import numeric, present
    from verl_ext.schema import assemble_reward_extra_info

__version__ = "0.1.0"

__all__ = [
    "BatchMismatchError",
    "FieldCollisionError",
    "MissingRewardError",
    "NotNumericError",
    "NotSendableError",
    "PluginMissingError",
    "RowError",
    "SettingsError",
    "SparseDataProto",
    "SparseNonTensor",
    "UnfinalizedError",
    "UnsupportedVerlError",
    "VerlExtError",
    "VerlNotFoundError",
    "as_sparse",
    "assemble_reward_extra_info",
    "attach_reward_extra_info",
    "numeric",
    "present",
    "validation",
]

_HOMES = {
    "SparseNonTensor": "column",
    "SparseDataProto": "protocol",
    "as_sparse": "protocol",
    "attach_reward_extra_info": "protocol",
    "assemble_reward_extra_info": "schema",
    "numeric": "reward_metrics",
    "present": "reward_metrics",
    "validation": "plugin.trainer",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
