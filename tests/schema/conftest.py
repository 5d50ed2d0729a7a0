"""The look at a column says what differed."""

import pytest

pytest.register_assert_rewrite("assembled")
