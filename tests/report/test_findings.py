"""What stands out in a dump, said in words with the steps named."""

import pytest

from report.dumps import write_run
from verl_ext.report import summarize
from verl_ext.report.findings import findings
from verl_ext.report.summary import Dump


def found(*steps):
    """What is found in a dump whose steps 1, 2, ... have these rows, as `(kind, key, text)`."""
    dump = Dump("rollout", "data_source")
    for step, rows in enumerate(steps, start=1):
        for row in rows:
            dump.add(row, step)
        dump.settle()
    return [(finding.kind, finding.key, finding.text) for finding in findings(dump)]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([[{"pred": 1}], [{}], [{"pred": 1}]], ("comes and goes", "pred", "in steps 1, 3; absent from step 2")),
        ([[{"pred": None}], [{}], [{"pred": 1}], [{"pred": 1}]], ("begins late", "pred", "not before step 3")),
        ([[{"pred": 1}], [{"pred": 1}], [{}]], ("ends early", "pred", "not after step 2")),
        ([[{"pred": None}], [{"pred": None}, {}]], ("all missing", "pred", "null in all of 3 rows")),
        (
            [[{"pred": 1}], [{"pred": "1"}], [{"pred": "2"}]],
            ("changes type", "pred", "number in step 1, text in step 2"),
        ),
        ([[{"pred": 1}, {"pred": "1"}]] * 2, ("changes type", "pred", "number and text within all steps")),
        ([[{"acc": float("nan")}], [{"acc": 1}]], ("not a number", "acc", "in step 1")),
        ([[{"acc": float("-inf")}, {"acc": float("nan")}]], ("not a number", "acc", "in all steps")),
        ([[{"acc": float("inf")}], [{"acc": 1.0}]], ("infinite", "acc", "in step 1")),
        (
            [[{"pred": 1}, {"pred": "1"}], [{"pred": 1}, {"pred": []}]],
            (
                "changes type",
                "pred",
                (
                    "number and text in step 1, number and list in step 2; number and text within step 1; "
                    "number and list within step 2"
                ),
            ),
        ),
        (
            [[{"pred": value}] for value in (1, "a", 1, "a", 1, "a")],
            (
                "changes type",
                "pred",
                (
                    "number in step 1, text in step 2; text in step 2, number in step 3; number in step 3, text in "
                    "step 4; and 2 more changes"
                ),
            ),
        ),
        ([[{"score": 1.0}], [{"score": None}]], ("ends early", "score", "not after step 1")),
        ([[{"score": 1.0}, {"score": None}]], ("score replaced", "score", "null or missing in 1 of 2 rows")),
        (
            [[{"score": 1.0, "unscored": None}, {"score": None, "unscored": "out"}], [{"score": 0.0}]],
            ("unscored", "unscored", "1 of 3 rows have no score: they train nothing and count in no mean"),
        ),
        ([[{"score": 1.0, "unscored": True}], [{"score": 0.0}]], ("ends early", "unscored", "not after step 1")),
    ],
)
def test_each_kind_is_found_and_names_its_steps(steps, expected):
    assert found(*steps)[0] == expected


def test_rows_without_a_key_are_counted_only_where_their_like_have_it():
    rows = [{"pred": 1, "data_source": "math"}, {"data_source": "chat"}]
    assert found(rows, [{"data_source": "math"}] * 5 + rows[1:], rows)[0][2] == (
        "in steps 1, 3; absent from step 2; rows there whose data_source has it in other steps: 5 of math"
    )
    assert found(rows, rows[1:], rows)[0][2] == "in steps 1, 3; absent from step 2"


def test_a_key_that_only_some_rows_of_every_step_have_is_no_finding():
    assert found(*[[{"acc": 1, "pred": "a"}, {"acc": True}, {"acc": 0.5, "pred": None}]] * 3) == []


@pytest.mark.parametrize(
    ("field", "meaning"),
    [
        ("reward_sum", "what the trainer summed up; `score` is what the reward function returned"),
        ("reward_extra/score", "what the reward function returned; `score` is what the trainer summed up"),
    ],
)
def test_the_other_of_the_two_scores_is_said_for_the_rows_that_have_it_and_comes_and_goes_by_nature(field, meaning):
    same, other = {"score": 1.0}, {"score": 1.0, field: 0.35}
    assert found([same], [other, {**same, field: None}], [other, other], [same]) == [
        ("scores differ", field, f"another number in 3 of 6 rows: {meaning}")
    ]


def test_a_reward_key_that_was_moved_beside_a_field_of_the_dump_is_no_finding():
    moved = {"reward_extra/input": "mine", "reward_extra/uid": 7}
    assert found([{}], [moved], [{}]) == []


def test_nan_and_infinity_are_two_findings_each_with_its_own_steps_and_missing_nan_is_none():
    steps = [[{"acc": float("nan")}], [{"acc": float("inf")}], [{"acc": 1.0}]]
    assert found(*steps) == [("not a number", "acc", "in step 1"), ("infinite", "acc", "in step 2")]
    dump = Dump("rollout", "data_source", nan_is_missing=True)
    for step, rows in enumerate(steps, 1):
        for row in rows:
            dump.add(row, step)
    dump.settle()
    kinds = [(finding.kind, finding.text) for finding in findings(dump)]
    assert kinds == [("begins late", "not before step 2"), ("infinite", "in step 2")]


def test_bool_int_and_float_are_one_type_as_numpy_counts_them():
    assert found([{"acc": True}], [{"acc": 1}], [{"acc": 1.0}]) == []


def test_an_extended_run_has_no_finding_and_a_stock_run_names_the_steps_whose_rows_were_lost_to_sample_0(tmp_path):
    ours = summarize(write_run(tmp_path / "ours"))
    stock = summarize(write_run(tmp_path / "stock", stock=True))
    assert ours.findings == [[], []]
    lost = "rows there whose data_source has it in other steps: 64 of math_dapo"
    assert [(finding.key, finding.kind, finding.text) for finding in stock.findings[0]] == [
        (
            key,
            "comes and goes",
            f"in steps 3, 6, 9, 12; absent from steps 1-2, 4-5, 7-8, 10-11; {lost}",
        )
        for key in ("pred", "length_penalty")
    ]
