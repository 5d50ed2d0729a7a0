"""The named errors: what they have in common, and how a value is quoted in a message."""

from __future__ import annotations

import pickle

import cloudpickle
import numpy as np
import pytest

import verl_ext
from verl_ext import errors
from verl_ext.errors import FieldCollisionError, VerlExtError, shown

NAMED = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]

EXAMPLES = [error("row 3 is a str") for error in NAMED if error is not FieldCollisionError]
EXAMPLES.append(FieldCollisionError({"uid": "a column of this batch"}, origin={"uid": "first in row 3"}))


@pytest.mark.parametrize("error", NAMED)
def test_every_error_is_a_verl_ext_error_and_a_public_name(error: type[Exception]) -> None:
    assert issubclass(error, VerlExtError)
    assert getattr(verl_ext, error.__name__) is error


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (errors.RowError, TypeError),
        (errors.FieldCollisionError, ValueError),
        (errors.BatchMismatchError, ValueError),
        (errors.UnfinalizedError, ValueError),
        (errors.PluginMissingError, RuntimeError),
        (errors.VerlNotFoundError, ImportError),
    ],
)
def test_an_error_is_also_the_builtin_that_existing_code_catches(
    error: type[Exception], builtin: type[Exception]
) -> None:
    assert issubclass(error, builtin)


@pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=lambda module: module.__name__)
@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_comes_back_from_a_worker_with_its_message_and_attributes(error: Exception, pickler: object) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        back = pickle.loads(pickler.dumps(error, protocol=protocol))  # type: ignore[attr-defined]  # noqa: S301
        assert type(back) is type(error)
        assert str(back) == str(error)
        assert vars(back) == vars(error)


def test_a_collision_names_the_keys_their_places_their_origin_and_a_way_out() -> None:
    error = FieldCollisionError(
        {"uid": "a column of this batch", "responses": "a tensor of this batch"},
        origin={"uid": "first in row 3, data source 'openai/gsm8k'"},
    )
    assert str(error) == (
        "2 reward key(s) would overwrite what the batch already holds: "
        "'uid' (first in row 3, data source 'openai/gsm8k') is already a column of this batch; "
        "'responses' is already a tensor of this batch. "
        "Rename them in the dict that your reward function returns, for example 'uid' to 'reward_uid'."
    )
    assert error.collisions == {"uid": "a column of this batch", "responses": "a tensor of this batch"}
    assert error.origin == {"uid": "first in row 3, data source 'openai/gsm8k'"}


def test_ten_thousand_collisions_make_a_short_message_and_are_all_in_the_attribute() -> None:
    collisions = {f"key {number}": "a column of this batch" for number in range(10_000)}
    error = FieldCollisionError(collisions)
    assert str(error).startswith("10000 reward key(s)")
    assert "and 9992 more" in str(error)
    assert len(str(error)) < 1000
    assert error.collisions == collisions


def test_a_collision_of_a_hostile_key_neither_floods_nor_drives_a_terminal() -> None:
    error = FieldCollisionError({"\x1b[2J\n" + "k" * 1_000_000: "a column of this batch"})
    assert str(error).isprintable()
    assert len(str(error)) < 500


@pytest.mark.parametrize("key", [1, None, ("a", "b"), 10**5000], ids=type)
def test_a_collision_of_a_key_that_is_no_text_is_named_as_any(key: object) -> None:
    error = FieldCollisionError({key: "a column of this batch"})
    assert str(error).startswith(f"1 reward key(s) would overwrite what the batch already holds: {shown(key)} is")
    assert shown(f"reward_{shown(key)}") in str(error)


class ReprRaises:
    def __repr__(self) -> str:
        raise RuntimeError("no repr today")


class ReprDrivesTheTerminal:
    def __repr__(self) -> str:
        return "\x1b[31mred\nand a second line"


class ReprIsLong:
    def __repr__(self) -> str:
        return "\x07" * 1_000_000


class StrWithoutSlices(str):
    def __getitem__(self, index: object) -> str:  # type: ignore[override]
        raise RuntimeError("not to be sliced")


@pytest.mark.parametrize(
    "value",
    [
        "x" * 1_000_000,
        b"\0" * 1_000_000,
        bytearray(b"\n" * 1_000_000),
        "\x1b[2J\r\n\u202e\ud800 \x00",
        "\N{GRINNING FACE}" * 100,
        list(range(10_000)),
        {"text": "y" * 1_000_000},
        np.zeros((3, 3)),
        10**5000,
        ReprRaises(),
        ReprDrivesTheTerminal(),
        ReprIsLong(),
        StrWithoutSlices("text"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_any_value_is_quoted_on_one_printable_ascii_line_of_at_most_80_characters(value: object) -> None:
    text = shown(value)
    assert 0 < len(text) <= 80
    assert text.isascii()
    assert text.isprintable()


def test_a_short_value_is_quoted_whole_and_a_long_one_is_visibly_cut() -> None:
    assert shown("uid") == "'uid'"
    assert shown(None) == "None"
    assert shown("a\nb\x1b") == r"'a\nb\x1b'"
    assert shown("x" * 78) == repr("x" * 78)
    assert shown("x" * 79) == "'" + "x" * 76 + "..."


def test_a_value_whose_repr_raises_is_named_by_its_type_and_the_error() -> None:
    assert shown(ReprRaises()) == "<ReprRaises whose repr raised RuntimeError>"


def test_a_list_that_holds_itself_is_quoted() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert shown(endless) == "[[...]]"
