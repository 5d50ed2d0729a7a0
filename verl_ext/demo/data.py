"""The demo's rows: the data set that ships with the project, or a user's own parquet file in verl's row format."""

from __future__ import annotations

from collections.abc import Collection
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from verl_ext.errors import VerlExtError, shown

ROW_FORMAT = (
    "verl's row format: data_source (text), prompt (list of {role, content}), reward_model ({style, ground_truth}), "
    "optionally ability and extra_info; and response (text), the recorded answer of the model"
)
_NEEDED = ("data_source", "prompt", "reward_model", "response")


class RowsFileError(VerlExtError, ValueError):
    """A file of rows cannot be read as verl's row format."""


def read_rows(path: Path | None = None, *, recorded: bool = True) -> list[dict[str, Any]]:
    """The rows of a parquet file, or of the data set that ships with the project.

    Args:
        path: the file.
        recorded: whether each row must bring the recorded answer, `response`.

    Raises:
        RowsFileError: the file is no parquet, holds no row, lacks a column, or a row lacks a value; names which.
    """
    needed = _NEEDED if recorded else _NEEDED[:-1]
    if path is None:
        with as_file(files(__package__) / "rows.parquet") as shipped:
            return read_rows(shipped)
    import pyarrow
    import pyarrow.parquet

    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, ValueError, OverflowError, pyarrow.ArrowException) as error:
        # ValueError, OverflowError: text that is no UTF-8, a date that Python cannot hold
        cause = f"{type(error).__name__}: {shown(str(error))}"
        raise RowsFileError(f"{path} cannot be read as parquet: {cause}") from error
    if not rows:
        raise RowsFileError(f"{path} holds no row")
    for column in needed:
        if column not in rows[0]:
            raise RowsFileError(f"{path} lacks the column {column!r}. The rows must be in {ROW_FORMAT}")
    for number, row in enumerate(rows):
        _check(path, number, row, needed)
    return rows


def _check(path: Path, number: int, row: dict[str, Any], needed: Collection[str]) -> None:
    for column in ("data_source", "response"):
        if column in needed and not isinstance(row[column], str):
            raise RowsFileError(
                f"{path}, row {number}: {column} is {shown(row[column])}, not text. The rows must be in {ROW_FORMAT}"
            )
    prompt, reward_model, extra_info = row["prompt"], row["reward_model"], row.get("extra_info")
    if not isinstance(prompt, list) or not prompt or not all(map(_is_message, prompt)):
        raise RowsFileError(f"{path}, row {number}: prompt is {shown(prompt)}. The rows must be in {ROW_FORMAT}")
    # a key that only some rows have comes back from parquet as None
    if not isinstance(reward_model, dict) or reward_model.get("ground_truth") is None:
        raise RowsFileError(
            f"{path}, row {number}: reward_model is {shown(reward_model)}, without a ground_truth. The rows must be in "
            f"{ROW_FORMAT}"
        )
    if not isinstance(extra_info, dict | None):
        raise RowsFileError(
            f"{path}, row {number}: extra_info is {shown(extra_info)}, not a dict. The rows must be in {ROW_FORMAT}"
        )


def _is_message(turn: Any) -> bool:
    return isinstance(turn, dict) and all(isinstance(turn.get(key), str) for key in ("role", "content"))
