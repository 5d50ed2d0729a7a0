"""What the laws compare says what differed."""

import pytest

pytest.register_assert_rewrite("law_batches")
