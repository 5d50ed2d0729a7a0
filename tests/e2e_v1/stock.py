"""What stock verl makes of mixed rewards where its versions differ, and what a version has not got."""

from dataclasses import dataclass
from importlib.metadata import version

from packaging.version import Version


@dataclass(frozen=True)
class Stock:
    """One version of verl.

    Attributes:
        drops_none: validation leaves `None`s out of its means; else it ends with a TypeError, after its dump.
        counts_failed_sessions: a session that failed counts as accuracy 0; else it does not count.
        waits_for_sessions: a prompt of which one session failed is waited for until its other sessions are done.
        scores_colocated: a reward model may sit on the trainer's GPUs.
        filters_groups: there is a group filter (DAPO).
    """

    drops_none: bool
    counts_failed_sessions: bool
    waits_for_sessions: bool = True
    scores_colocated: bool = True
    filters_groups: bool = True


BY_VERSION = {
    "0.8.0": Stock(
        drops_none=False,
        counts_failed_sessions=False,
        waits_for_sessions=False,
        scores_colocated=False,
        filters_groups=False,
    ),
    "0.9.0": Stock(drops_none=False, counts_failed_sessions=False),
    "0.9.1": Stock(drops_none=True, counts_failed_sessions=True),
}
"""By the first version that is so."""

STOCK = next(
    (stock for first, stock in reversed(BY_VERSION.items()) if Version(first) <= Version(version("verl"))), None
)
"""The installed one; `None` before 0.8, which has no trainer on TransferQueue."""
