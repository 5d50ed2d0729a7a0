"""Which test shows, for each function of verl that is patched, that ours does what verl's own does where that works.

A test names the patches it covers, `@covers("metrics", "compute_data_metrics")`; `test_every_patch.py` finds those that
no test names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Test = TypeVar("Test", bound=Callable[..., object])

COVERED: dict[tuple[str, str], list[str]] = {}
"""By patch site and target, the tests that run verl's own function beside ours and compare all that comes out."""


def covers(site: str, *targets: str) -> Callable[[Test], Test]:
    """Declare that the decorated test compares these patches of a site with verl's own functions."""

    def declare(test: Test) -> Test:
        for target in targets:
            COVERED.setdefault((site, target), []).append(test.__name__)
        return test

    return declare
