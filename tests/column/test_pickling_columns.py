"""A column through every pickle protocol, and what a pickle of a newer format says."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest
from column_rows import ROWS, assert_column

from verl_ext.column import SparseNonTensor, _restore
from verl_ext.errors import RowError


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps], ids=["pickle", "cloudpickle"])
def test_a_column_comes_back_from_every_pickle_protocol(dumps: Callable[..., bytes], protocol: int) -> None:
    rows = [*ROWS, {"nested": {"texts": ["a"]}, "array": np.arange(3)}]
    for column in (SparseNonTensor(rows), SparseNonTensor(rows)[::-1], SparseNonTensor(rows).reshape(3, 2)):
        back = pickle.loads(dumps(column, protocol=protocol))  # noqa: S301
        assert type(back) is SparseNonTensor
        assert back.dtype == object
        assert back.shape == column.shape
        assert str(back.tolist()) == str(column.tolist())
    assert_column(pickle.loads(dumps(SparseNonTensor(), protocol=protocol)), [])  # noqa: S301


def test_a_column_comes_back_from_out_of_band_pickling() -> None:
    buffers: list[pickle.PickleBuffer] = []
    stored = pickle.dumps(SparseNonTensor([{"array": np.arange(3)}]), protocol=5, buffer_callback=buffers.append)
    back = pickle.loads(stored, buffers=buffers)  # noqa: S301
    assert type(back) is SparseNonTensor
    assert back[0]["array"].tolist() == [0, 1, 2]


def test_a_row_that_two_columns_share_is_shared_after_pickling() -> None:
    row = {"acc": 1.0}
    one, other = pickle.loads(pickle.dumps([SparseNonTensor([row, row]), SparseNonTensor([row])]))  # noqa: S301
    assert one[0] is one[1]
    assert one[0] is other[0]


@pytest.mark.parametrize("state", [((1,), [{}]), ((1,), [{}], "and what the newer format adds"), ()])
def test_a_pickle_of_a_newer_format_says_so(state: tuple[Any, ...]) -> None:
    rebuild, (pickle_format, *_) = SparseNonTensor([{}]).__reduce__()

    class Newer:
        def __reduce__(self) -> tuple[Any, ...]:
            return rebuild, (pickle_format + 1, *state)

    with pytest.raises(RowError, match=r"pickled in format 2, .* reads up to 1: install the newer verl-ext"):
        pickle.loads(pickle.dumps(Newer()))  # noqa: S301


def test_a_pickle_names_no_internals_of_numpy(column: SparseNonTensor) -> None:
    stored = pickle.dumps(column, protocol=2)
    assert b"numpy" not in stored
    assert b"_restore" in stored
    assert_column(_restore(1, (5,), ROWS), ROWS)
