"""A column of five rows, of which two emitted nothing."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("column_rows")

from column_rows import ROWS  # noqa: E402

from verl_ext.column import SparseNonTensor  # noqa: E402


@pytest.fixture
def column() -> SparseNonTensor:
    return SparseNonTensor(ROWS)
