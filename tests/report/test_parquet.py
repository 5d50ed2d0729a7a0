"""The aligned rows as Parquet: every value as it was, true nulls, and nothing left out."""

import json
import math

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from report.dumps import write_run, write_step
from verl_ext.report import summarize
from verl_ext.report.parquet import write_parquet
from verl_ext.report.read import ReportError


def aligned(directory, **kwargs):
    """The table that is written of the dumps in a directory."""
    path = directory / "rows.parquet"
    write_parquet(summarize(directory, **kwargs), path)
    assert [file.name for file in directory.iterdir() if file.name.startswith(".")] == []
    return pq.read_table(path)


def column(directory, *values):
    """The type, and the values, of a column of these values."""
    write_step(directory, 1, [{"key": value} for value in values])
    table = aligned(directory)
    field = table.schema.field("key")
    return str(field.type), table["key"].to_pylist(), bool(field.metadata)


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([True, None], "bool", [True, None]),
        ([1, None, 2**62], "int64", [1, None, 2**62]),
        ([1, 0.5, True], "double", [1.0, 0.5, 1.0]),
        ([True, 2], "double", [1.0, 2.0]),
        ([0.5, float("inf")], "double", [0.5, math.inf]),
        (["a", None, "ü"], "string", ["a", None, "ü"]),
        ([None, None], "null", [None, None]),
    ],
)
def test_values_of_one_kind_keep_it_and_are_null_where_they_are_missing(values, kind, expected, tmp_path):
    assert column(tmp_path, *values) == (kind, expected, False)


@pytest.mark.parametrize(
    "values",
    [[1, "1"], [2**70], [2**62, 0.5], [[1], [1, 2]], [{"a": None}, "b"], ["\ud800"], [float("nan"), "x"]],
    ids=repr,
)
def test_values_of_several_kinds_are_json_text_that_gives_them_back(values, tmp_path):
    kind, texts, is_json = column(tmp_path, *values, None)
    assert (kind, is_json, texts[-1]) == ("string", True, None)
    assert str([json.loads(text) for text in texts[:-1]]) == str(values)


def test_rows_of_all_dumps_and_steps_are_there_with_the_union_of_their_keys(tmp_path):
    report = summarize(write_run(tmp_path / "run", steps=6, stock=True))
    write_parquet(report, tmp_path / "rows.parquet")
    table = pq.read_table(tmp_path / "rows.parquet").to_pydict()
    assert len(table["input"]) == report.rows
    assert set(table["__dump__"]) == {"rollout", "validation"}
    assert [step for step, pred in zip(table["__step__"], table["pred"], strict=True) if pred is not None] == [
        *[3] * 24,
        *[6] * 24,
        *[0] * 24,
    ]


def test_nan_is_null_where_it_counts_as_missing(tmp_path):
    write_step(tmp_path, 1, [{"acc": float("nan")}, {"acc": 1.0}])
    assert aligned(tmp_path, nan_is_missing=True)["acc"].to_pylist() == [None, 1.0]


def test_keys_beyond_the_bound_are_json_in_one_column(tmp_path):
    rows = [{f"key {index}": index for index in range(1_500)}, {"__dump__": "mine", "k" * 1_000: 1}]
    write_step(tmp_path, 1, rows)
    table = aligned(tmp_path)
    assert len(table.schema) == 1_000 + 3
    assert len(json.loads(table["__further__"][0].as_py())) == 500
    assert json.loads(table["__further__"][1].as_py()) == rows[1]


def test_a_file_that_cannot_be_written_is_a_named_error(tmp_path):
    write_step(tmp_path, 1, [{"acc": 1}])
    with pytest.raises(ReportError, match="cannot be written: No such file"):
        write_parquet(summarize(tmp_path), tmp_path / "none" / "rows.parquet")


def test_dumps_that_change_while_they_are_read_are_a_named_error_and_leave_no_file(tmp_path):
    write_step(tmp_path, 1, [{"acc": 1}])
    report = summarize(tmp_path)
    write_step(tmp_path, 1, [{"acc": "text"}])
    with pytest.raises(ReportError, match="has changed while it was read"):
        write_parquet(report, tmp_path / "rows.parquet")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["1.jsonl"]


def test_a_file_that_is_gone_when_it_is_read_again_is_a_named_error_and_leaves_no_file(tmp_path):
    for step in (1, 2):
        write_step(tmp_path, step, [{"acc": step}] * 3)
    report = summarize(tmp_path)
    (tmp_path / "2.jsonl").unlink()
    with pytest.raises(ReportError, match="has changed while it was read: 3 rows are gone"):
        write_parquet(report, tmp_path / "rows.parquet")
    assert [file.name for file in tmp_path.iterdir()] == ["1.jsonl"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


@given(rows=st.lists(st.dictionaries(st.text(max_size=3), JSON, max_size=4), max_size=5))
def test_every_value_of_any_rows_comes_out(rows, tmp_path_factory):
    directory = tmp_path_factory.mktemp("dump")
    write_step(directory, 1, rows)
    table = aligned(directory)
    for name, values in zip(
        table.column_names, map(list, zip(*map(dict.values, table.to_pylist()), strict=True)), strict=False
    ):
        if name.startswith("__") or " characters) #" in name:
            continue
        is_json = bool(table.schema.field(name).metadata)
        found = [json.loads(value) if is_json and value is not None else value for value in values]
        assert found == [row.get(name) for row in rows]
