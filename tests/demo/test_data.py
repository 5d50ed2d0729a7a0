"""The rows that ship with the project, against verl's own scorers; and what is said of a file that cannot be read."""

from collections import Counter

import build_rows
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_ext.demo.data import ROW_FORMAT, RowsFileError, read_rows
from verl_ext.errors import VerlExtError

ROWS = read_rows()


# --- the rows that ship ----------------------------------------------------------------------------------------------


def test_the_parquet_is_what_its_readable_source_makes():
    assert build_rows.rows() == ROWS
    assert pq.read_schema(build_rows.PARQUET).equals(build_rows.SCHEMA)


def test_there_are_enough_rows_of_three_data_sources_which_take_turns():
    sources = [row["data_source"] for row in ROWS]
    assert len(ROWS) >= 48
    assert len(set(sources)) == 3
    assert set(Counter(sources).values()) == {len(ROWS) // 3}
    assert all(len(set(sources[start : start + 3])) == 3 for start in range(len(ROWS) - 2))


def test_every_row_has_an_index_and_a_question_of_its_own():
    assert [row["extra_info"]["index"] for row in ROWS] == list(range(len(ROWS)))
    assert len({row["prompt"][0]["content"] for row in ROWS}) == len(ROWS)


def test_every_data_source_has_answers_of_each_kind():
    kinds = {(row["data_source"], row["extra_info"]["recorded"]) for row in ROWS}
    sources = {row["data_source"] for row in ROWS}
    assert kinds == {(source, kind) for source in sources for kind in ("right", "wrong", "unparsable")}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['extra_info']['index']} {row['data_source']}")
def test_verls_scorer_makes_of_each_answer_what_is_recorded(row):
    from verl.utils.reward_score import default_compute_score

    score = default_compute_score(
        row["data_source"], row["response"], row["reward_model"]["ground_truth"], row["extra_info"]
    )
    recorded = row["extra_info"]["recorded"]
    final_answer = parsed(row["data_source"], row["response"])
    if row["data_source"] == "math_dapo":
        assert score.keys() == {"score", "acc", "pred"}
        assert score["acc"] is (recorded == "right")
        assert score["score"] == (1.0 if recorded == "right" else -1.0)
        assert (score["pred"] == "[INVALID]") is (recorded == "unparsable")
    else:
        assert not isinstance(score, dict)
        assert score == (1.0 if recorded == "right" else 0.0)
        assert (final_answer is None) is (recorded == "unparsable")


def parsed(source, response):
    """The final answer as verl's scorer finds it, or `None`."""
    from verl.utils.reward_score import gsm8k, math_reward

    if source == "openai/gsm8k":
        return gsm8k.extract_solution(response)
    return math_reward.last_boxed_only_string(response)


# --- a file that cannot be read --------------------------------------------------------------------------------------

GOOD = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "2 + 2?"}],
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"index": 0},
    "response": "#### 4",
}


@pytest.fixture
def written(tmp_path):
    """A function from rows, or a table, to the path of their parquet file."""

    def write(rows):
        path = tmp_path / "own.parquet"
        pq.write_table(rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows), path)
        return path

    return write


def refusal(path):
    with pytest.raises(RowsFileError) as refused:
        read_rows(path)
    assert isinstance(refused.value, VerlExtError)
    message = str(refused.value)
    assert str(path) in message
    assert message.isprintable()
    return message.replace(str(path), "FILE")


def test_a_file_in_verls_row_format_is_read_as_it_is(written):
    least = {key: GOOD[key] for key in ("data_source", "prompt", "reward_model", "response")}
    assert read_rows(written([GOOD])) == [GOOD]
    assert read_rows(written([least])) == [least]
    assert read_rows(written([GOOD, {**GOOD, "extra_info": None}]))[1]["extra_info"] is None


def test_a_file_that_is_no_parquet_is_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    path.write_text("data_source,prompt\x1b[2J\n")
    assert refusal(path).startswith("FILE cannot be read as parquet: ArrowInvalid: ")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    assert refusal(tmp_path / "none.parquet").startswith("FILE cannot be read as parquet: FileNotFoundError: ")


def test_text_that_is_no_utf8_is_refused(written):
    text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    table = pa.Table.from_pylist([{key: GOOD[key] for key in GOOD if key != "response"}])
    assert "cannot be read as parquet: UnicodeDecodeError" in refusal(written(table.append_column("response", text)))


def test_a_date_that_python_cannot_hold_is_refused(written):
    table = pa.Table.from_pylist([GOOD]).append_column("asked", pa.array([2**62], pa.timestamp("ms")))
    assert "cannot be read as parquet: " in refusal(written(table))


def test_a_file_without_a_row_is_refused(written):
    assert refusal(written(pa.Table.from_pylist([GOOD]).slice(0, 0))) == "FILE holds no row"


@pytest.mark.parametrize("column", ["data_source", "prompt", "reward_model", "response"])
def test_a_missing_column_is_named_with_the_format(column, written):
    rows = [{key: value for key, value in GOOD.items() if key != column}]
    assert refusal(written(rows)) == f"FILE lacks the column {column!r}. The rows must be in {ROW_FORMAT}"


WRONG = {
    "data_source": [None, 7, b"bytes", ["a list"]],
    "response": [None, 7, b"bytes", ["a list"], {"text": "a dict"}],
    "prompt": [
        None,
        7,
        "text",
        [],
        ["text"],
        [None],
        [7],
        {"role": "user", "content": "no list"},
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": 7}],
        [{"role": None, "content": "q"}],
    ],
    "reward_model": [None, 7, "text", [], {"style": "rule"}, {"style": "rule", "ground_truth": None}],
    "extra_info": [7, "text", [1], True],
}


@pytest.mark.parametrize(
    ("column", "value"), [(column, value) for column, values in WRONG.items() for value in values], ids=repr
)
def test_a_value_of_the_wrong_type_is_refused_with_its_row_and_column(column, value, written):
    message = refusal(written([{**GOOD, column: value}]))
    assert message.startswith(f"FILE, row 0: {column} ")
    assert ROW_FORMAT in message


@pytest.mark.parametrize("column", ["data_source", "prompt", "reward_model", "response"])
def test_the_row_that_lacks_a_value_is_named_by_its_number(column, written):
    assert refusal(written([GOOD, GOOD, {**GOOD, column: None}, GOOD])).startswith(f"FILE, row 2: {column} ")


def test_a_key_that_only_some_rows_have_is_missed_in_the_row_without_it(written):
    rows = [GOOD, {**GOOD, "reward_model": {"style": "model"}}]
    found = "{'style': 'model', 'ground_truth': None}"
    assert refusal(written(rows)).startswith(f"FILE, row 1: reward_model is {found}, without a ground_truth")


def test_a_hostile_value_neither_floods_nor_drives_a_terminal(written):
    prompt = [{"role": "user", "content": None, "note": "\x1b[2J\n" + "x" * 100_000}]
    message = refusal(written([{**GOOD, "prompt": prompt}]))
    assert len(message) < 1000
