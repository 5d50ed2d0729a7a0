"""Hypothesis as the other tests have it: without a deadline, which a busy machine would miss."""

import strategies  # noqa: F401
