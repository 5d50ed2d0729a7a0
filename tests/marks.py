"""Which cases of a table `make test` runs: the first ones, where all of them take minutes and most say it again."""

import pytest


def slow_after(fast, cases):
    """The cases as pytest's parameters; those after the first `fast` are left to `make test-all`."""
    parameters = [case if isinstance(case, type(pytest.param())) else pytest.param(case) for case in cases]
    return [
        pytest.param(*case.values, marks=[*case.marks, *([pytest.mark.slow] if number >= fast else [])], id=case.id)
        for number, case in enumerate(parameters)
    ]
