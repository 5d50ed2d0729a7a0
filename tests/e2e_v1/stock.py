"""What stock verl makes of mixed rewards where its versions differ, and what they lack: asked of its code."""

import inspect
from dataclasses import dataclass

from verl.trainer.ppo.metric_utils import process_validation_metrics

try:
    from . import form_v1 as form
except ModuleNotFoundError:
    try:
        from . import form_sync as form
    except ModuleNotFoundError:
        form = None  # verl before 0.8 has no trainer on TransferQueue


@dataclass(frozen=True)
class Stock:
    """The installed verl.

    Attributes:
        drops_none: validation leaves `None`s out of its means; else it ends with a TypeError, after its dump.
        counts_failed_sessions: a session that failed counts as accuracy 0; else it does not count.
        waits_for_sessions: a prompt of which one session failed is waited for until its other sessions are done.
        scores_colocated: a reward model may sit on the trainer's GPUs; else that is a stub.
        filters_groups: there is a group filter (DAPO).
    """

    drops_none: bool
    counts_failed_sessions: bool
    waits_for_sessions: bool
    scores_colocated: bool
    filters_groups: bool


def _drops_none():
    try:
        inspect.unwrap(process_validation_metrics)(["source"], ["prompt"], {"key": [None]})
    except TypeError:
        return False
    return True


STOCK = form and Stock(
    drops_none=_drops_none(),
    counts_failed_sessions="expected_acc_counts" in inspect.signature(process_validation_metrics).parameters,
    waits_for_sessions="return_exceptions" in inspect.getsource(inspect.getmodule(form.AgentLoopManager)),
    scores_colocated="NotImplementedError"
    not in inspect.unwrap(form.PPOTrainer._compute_reward_colocate).__code__.co_names,
    filters_groups="filter_groups_metric" in inspect.signature(form.ReplayBuffer).parameters,
)
"""`None` where there is no such trainer."""
