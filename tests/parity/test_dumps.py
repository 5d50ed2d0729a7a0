"""verl's dumps, line by line: what stock writes of a run of one schema, ours writes, and both scores where they differ.

Of the same values stock's two writers make different things. So either is asked: where the legacy trainer's writes a
number or an array as text, ours writes it as the v1 trainer's does.
"""

import inspect
import json
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sites import covers
from values import FAMILIES, each_family, values_of_a_family
from verl import DataProto
from verl.utils import tensordict_utils as tu

from verl_ext import assemble_reward_extra_info
from verl_ext.plugin import SITES
from verl_ext.plugin import trainer as trainer_site
from verl_ext.plugin import trainer_v1 as v1_site
from verl_ext.plugin._trial import verls_own

ROWS = 3
TEXTS = [f"text {row}" for row in range(ROWS)]
KEYS = [f"prompt{row}_0_0" for row in range(ROWS)]

Legacy = import_module(SITES["trainer"]).RayPPOTrainer


def v1_trainers():
    """By site, verl's default trainer or its earlier form, as this verl has one or the other."""
    for name in ("trainer_v1", "main_ppo_sync"):
        with suppress(ModuleNotFoundError):
            yield name, import_module(SITES[name]).PPOTrainer


V1 = dict(v1_trainers())
pytestmark = pytest.mark.skipif(
    not V1, reason="verl 0.7 has no v1 trainer, whose form of values is one to compare with"
)

BENT = {
    *("text ending in NUL", "text and numbers", "a number and text in a list", "masked arrays"),
    *("datetime64", "timedelta64", "int64 beside uint64", "enums of text"),
}
"""Families of which stock's column is another than ours, on purpose: there the values themselves are dumped."""


# --- what verl's own functions write -----------------------------------------------------------------------------


@contextmanager
def lines_of(directory):
    """A list that holds the lines of the dump of step 1 after the block."""
    lines = []
    yield lines
    lines += map(json.loads, (Path(directory) / "1.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n"))


def outcome(write):
    """The lines that `write` leaves in a directory, or the exception that ends the run."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            with lines_of(directory) as lines:
                write(directory)
        except Exception as error:
            return error
        return lines


def generations(write, infos, scores=(1.0,) * ROWS):
    return outcome(lambda directory: write(TEXTS, TEXTS, TEXTS, list(scores), infos, directory, 1))


def stock_writers():
    """verl's own `_write_generations`, of the legacy and of the v1 trainer."""
    return tuple(verls_own(trainer, "_write_generations") for trainer in (Legacy, *V1.values()))


def in_json(value):
    """So that NaN is NaN, and 1 is not 1.0."""
    return json.dumps(value, sort_keys=True)


def has_text(value):
    if isinstance(value, list | dict):
        return any(map(has_text, value.values() if isinstance(value, dict) else value))
    return isinstance(value, str)


def assert_as_stock(ours, legacy, v1, values, dates_as_text=True):
    """Lines of ours hold what stock's legacy writer makes of the values; or, where that is text of numbers, numbers."""
    for line, their, number, value in zip(ours, legacy, v1, values, strict=True):
        for name, form in (("key", lambda found: found), ("nested", lambda found: {"a": [found]})):
            if in_json(line.get(name)) != in_json(their.get(name)):
                assert not (dates_as_text and isinstance(value, np.datetime64 | np.timedelta64))
                assert has_text(their[name])
                assert not has_text(line[name])
                if number is None:  # neither writes it as it is: a range, a deque
                    assert isinstance(value, Sequence)
                    number = list(value)
                assert in_json(line[name]) == in_json(form(number))


# --- writing: the same values to stock's writer and ours ---------------------------------------------------------

WRITERS = {"trainer": Legacy, **V1}


@covers("trainer", "RayPPOTrainer._write_generations")
@covers("trainer_v1", "PPOTrainer._write_generations")
@pytest.mark.parametrize("site", WRITERS)
@each_family()
@given(data=st.data())
@settings(max_examples=4, deadline=None)
def test_a_value_is_written_as_stock_writes_it(site, family, data):
    values = data.draw(st.lists(FAMILIES[family], min_size=ROWS, max_size=ROWS))
    infos = {"key": values, "nested": [{"a": [value]} for value in values]}
    legacy, v1 = (generations(write, infos) for write in stock_writers())
    ours = generations(WRITERS[site]._write_generations, infos)
    theirs = legacy if site == "trainer" else v1
    if site == "trainer" or isinstance(v1, Exception):
        assert_as_stock(ours, legacy, one_by_one(values), values, dates_as_text=site == "trainer")
    else:
        assert in_json(ours) == in_json(v1)
    if not isinstance(theirs, Exception):
        assert [list(line) for line in ours] == [list(line) for line in theirs]


def one_by_one(values):
    """Of each value, what stock's v1 writer makes of it by itself; `None` where that ends the run."""
    _, write = stock_writers()
    for value in values:
        written = generations(write, {"key": [value] * ROWS})
        yield None if isinstance(written, Exception) else written[0]["key"]


@covers("trainer", "RayPPOTrainer._dump_generations")
@given(values=values_of_a_family(ROWS))
@settings(max_examples=40, deadline=None)
def test_a_trainer_that_writes_at_once_writes_the_same_lines(values):
    """As in verl 0.7, whose columns are still arrays there; here a double of its form, around verl's own writer."""
    columns = assemble_reward_extra_info([{"key": value, "score": 0.5} for value in values])

    def at_once(self, *arguments):
        verls_own(Legacy, "_write_generations")(*arguments, self.global_steps)

    dump = trainer_site._dump_generations.teach(at_once)
    trainer = SimpleNamespace(global_steps=1)
    ours = outcome(lambda directory: dump(trainer, TEXTS, TEXTS, TEXTS, [1.0] * ROWS, columns, directory))
    listed = {key: column.tolist() for key, column in columns.items()}
    assert in_json(ours) == in_json(generations(Legacy._write_generations, listed))


# --- a rollout of the legacy trainer -----------------------------------------------------------------------------


class Tokenizer:
    """A double: the text of a row is its number."""

    pad_token_id = 0

    def decode(self, ids, skip_special_tokens):
        return f"text {int(ids[0]) - 1}"

    def batch_decode(self, rows, skip_special_tokens):
        return [self.decode(ids, skip_special_tokens) for ids in rows]


def trainer_of(function):
    """A trainer that has what its dumps need, with the functions that `function` says by name."""
    trainer = SimpleNamespace(
        tokenizer=Tokenizer(), global_steps=1, _dump_executor=ThreadPoolExecutor(1), _dump_futures=[]
    )
    trainer._write_generations = function("_write_generations")
    for name in ("_dump_generations", "_log_rollout_data", "_shutdown_dump_executor"):
        setattr(trainer, name, function(name).__get__(trainer))
    return trainer


def stock_and_ours(cls):
    return (
        trainer_of(lambda name: verls_own(cls, name)),
        trainer_of(lambda name: inspect.getattr_static(cls, name).__get__(None, cls)),
    )


def rollout_of(trainer, *arguments):
    def write(directory):
        trainer._log_rollout_data(*arguments, {}, directory)
        trainer._shutdown_dump_executor()

    return outcome(write)


def without(line, *added):
    return {key: value for key, value in line.items() if key not in added}


SUMS = st.lists(st.sampled_from([0.0, 1.0, 0.35, -2.5, 0.1]), min_size=ROWS, max_size=ROWS)
SCORES = st.none() | SUMS
"""What the reward function returns as `score`: nothing, or numbers, some of them those that the trainer sums up."""


def other(score, total):
    """`total` where it is another number than `score` in 32 bits; `score` then is not what the trainer has of it."""
    return None if np.float32(score) == np.float32(total) else total


@covers("trainer", "RayPPOTrainer._log_rollout_data", "RayPPOTrainer._write_generations")
@each_family()
@given(data=st.data(), sums=SUMS, scores=SCORES)
@settings(max_examples=3, deadline=None)
def test_a_rollout_of_one_schema_is_dumped_by_the_legacy_trainer_as_on_stock(family, data, sums, scores):
    values = data.draw(st.lists(FAMILIES[family], min_size=ROWS, max_size=ROWS))
    infos = {"key": values} if scores is None else {"key": values, "score": scores}
    made = assemble_reward_extra_info([dict(zip(infos, row, strict=True)) for row in zip(*infos.values(), strict=True)])
    try:
        columns = {key: np.array(values) for key, values in infos.items()}
    except Exception:
        columns = None  # stock ends here
    stock, ours = stock_and_ours(Legacy)
    lines = rollout_of(ours, batch_of(made, sums), made)
    legacy = generations(stock_writers()[0], infos)
    theirs = legacy if columns is None or family in BENT else rollout_of(stock, batch_of(columns, sums), columns)
    assert_as_stock(lines, theirs, one_by_one(values), values)
    for row, (line, their) in enumerate(zip(lines, theirs, strict=True)):
        total = float(np.float32(sums[row]))
        expected = {"score": total if scores is None else scores[row], "step": 1, "input": TEXTS[row]}
        assert {key: line[key] for key in expected} == expected
        assert line.get("reward_sum") == (None if scores is None else other(scores[row], total))
        if theirs is not legacy:
            assert in_json(without(line, "reward_sum", "key")) == in_json(without(their, "key"))
            assert [key for key in line if key != "reward_sum"] == list(their)


def batch_of(columns, sums):
    ids = torch.arange(1, ROWS + 1).unsqueeze(1)
    return DataProto.from_dict(
        tensors={"prompts": ids, "responses": ids, "token_level_scores": torch.tensor(sums).unsqueeze(1)},
        non_tensors={"reward_model": np.array([{"ground_truth": text} for text in TEXTS], object), **columns},
    )


# --- a rollout of the v1 trainer ---------------------------------------------------------------------------------


def queue_of(rows, sums):
    """A double for the queue's `kv_batch_get`, which has these samples."""

    def nested(values):
        return torch.nested.as_nested_tensor([torch.tensor([value]) for value in values], layout=torch.jagged)

    def kv_batch_get(keys, partition_id, select_fields):
        at = [KEYS.index(key) for key in keys]
        numbers = nested([row + 1 for row in at])
        fields = {
            "uid": [keys[row].split("_")[0] for row in range(len(at))],
            "prompts": numbers,
            "responses": numbers,
            "rm_scores": nested([sums[row] for row in at]),
            "reward_model": [{"ground_truth": TEXTS[row]} for row in at],
            "extra_fields": [{"reward_extra_info": rows[row]} for row in at],
        }
        return tu.get_tensordict({field: fields[field] for field in select_fields})

    return kv_batch_get


def v1_rollouts(cls, rows, sums):
    """The lines of verl's own and of our dump of a rollout, whose samples come in another order than their dump's."""
    import transfer_queue as tq

    batch = SimpleNamespace(keys=KEYS[::-1], partition_id="train", tags=[{}] * ROWS)
    with mock.patch.object(tq, "kv_batch_get", queue_of(rows, sums)):
        return tuple(rollout_of(trainer, batch) for trainer in stock_and_ours(cls))


@covers("trainer_v1", "PPOTrainer._log_rollout_data", "PPOTrainer._dump_generations", "PPOTrainer._write_generations")
@pytest.mark.parametrize("cls", V1.values(), ids=V1)
@each_family()
@given(data=st.data(), sums=SUMS, scores=SCORES)
@settings(max_examples=3, deadline=None)
def test_a_rollout_is_dumped_by_the_v1_trainer_as_on_stock_with_the_reward_columns_as_in_validation(
    cls, family, data, sums, scores
):
    values = data.draw(st.lists(FAMILIES[family], min_size=ROWS, max_size=ROWS))
    rows = [{"key": value} | ({} if scores is None else {"score": scores[row]}) for row, value in enumerate(values)]
    theirs, ours = v1_rollouts(cls, rows, sums)
    validation = generations(cls._write_generations, {"key": values})
    for row, (line, their) in enumerate(zip(ours, theirs, strict=True)):
        assert in_json(without(line, "key", "reward_extra/score")) == in_json(their)
        assert in_json(line["key"]) == in_json(validation[row]["key"])
        differs = scores is not None and other(scores[row], sums[row]) is not None
        assert line.get("reward_extra/score") == (scores[row] if differs else None)


@covers(
    "main_ppo_sync",
    "PPOTrainer._write_generations",
    "PPOTrainer._log_rollout_data",
    "PPOTrainer._dump_generations",
)
def test_the_earlier_v1_trainer_is_patched_by_the_very_same_functions():
    earlier = import_module("verl_ext.plugin.main_ppo_sync").site
    patches = {patch.target: patch for patch in earlier._patches}
    for patch in v1_site.SHARED:
        assert patches[patch.target].teach is patch.teach
        assert patches[patch.target].parameters == patch.parameters


# --- one rule for names, in every dump ---------------------------------------------------------------------------


def legacy_rollout(rows, sums):
    made = assemble_reward_extra_info(rows)
    return rollout_of(stock_and_ours(Legacy)[1], batch_of(made, sums), made)


def legacy_validation(rows, sums):
    return validation_of(Legacy, rows, sums)


def v1_rollout(rows, sums):
    (cls,) = V1.values()
    return v1_rollouts(cls, rows, sums)[1]


def v1_validation(rows, sums):
    (cls,) = V1.values()
    return validation_of(cls, rows, sums)


def validation_of(cls, rows, sums):
    infos = {key: [row.get(key) for row in rows] for key in dict.fromkeys(key for row in rows for key in row)}
    return generations(cls._write_generations, infos, sums)


DUMPS = {
    "legacy rollout": legacy_rollout,
    "legacy validation": legacy_validation,
    "v1 rollout": v1_rollout,
    "v1 validation": v1_validation,
}


@pytest.mark.parametrize("dump", DUMPS)
@pytest.mark.parametrize("field", ["input", "output", "gts", "step"])
def test_a_reward_key_that_names_a_field_of_the_dump_is_beside_it_in_every_dump(dump, field):
    rows = [{field: "mine"}, {field: 1 if field == "step" else TEXTS[1]}, {"acc": 1.0}]
    lines = DUMPS[dump](rows, [1.0, 0.0, 1.0])
    assert [line[field] for line in lines] == ([1] * ROWS if field == "step" else TEXTS)
    assert [line[f"reward_extra/{field}"] for line in lines] == ["mine", None, None]
    assert [line["score"] for line in lines] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("dump", DUMPS)
def test_both_scores_are_in_every_dump_and_score_is_what_it_is_there_on_stock(dump):
    rows, sums = [{"score": 1.0}, {"score": 1.0, "acc": 1}, {"acc": 0}], [0.25, 1.0, 0.5]
    lines = DUMPS[dump](rows, sums)
    found = [[line["score"], line.get("reward_sum"), line.get("reward_extra/score")] for line in lines]
    if dump == "v1 rollout":
        assert found == [[0.25, None, 1.0], [1.0, None, None], [0.5, None, None]]
    else:
        assert found == [[1.0, 0.25, None], [1.0, None, None], [0.5, None, None]]


@pytest.mark.parametrize("dump", [dump for dump in DUMPS if dump.startswith("v1")])
def test_a_nested_key_of_the_raw_columns_name_is_a_field_like_another(dump):
    lines = DUMPS[dump]([{"reward_extra_info": {"a": np.int64(1)}}] * ROWS, [1.0] * ROWS)
    assert [line["reward_extra_info"] for line in lines] == [{"a": 1}] * ROWS


@pytest.mark.parametrize("dump", [dump for dump in DUMPS if dump.startswith("legacy")])
def test_a_column_of_the_raw_columns_name_twice_is_that_field(dump):
    rows = [{"reward_extra_info/reward_extra_info": {"a": np.int64(1)}}] * ROWS
    lines = DUMPS[dump](rows, [1.0] * ROWS)
    assert [line["reward_extra_info"] for line in lines] == [{"a": 1}] * ROWS


# --- whatever a reward function returns --------------------------------------------------------------------------


class Raises:
    """A value that raises when it is looked at."""

    def __str__(self):
        raise ValueError("no text")

    __repr__ = __str__

    def tolist(self):
        raise ValueError("no list")


class HalfACharacter:
    def __str__(self):
        return "\ud800"

    __repr__ = __str__


class Broken(dict):
    def items(self):
        raise ValueError("no items")


def node():
    """A node that knows its parent."""
    parent = {"name": "root", "children": []}
    parent["children"].append({"name": "child", "parent": parent})
    return parent


def ring():
    twice = []
    twice += [twice, twice]
    return twice


def doubled():
    part = [0.5]
    for _ in range(40):
        part = [part, part]
    return part


def deep():
    part = [0.5]
    for _ in range(100_000):
        part = [part]
    return part


HOSTILE = st.sampled_from(
    [
        *(Raises, HalfACharacter, node, ring, doubled, deep, lambda: Broken(a=1)),
        *(lambda: 10**5000, lambda: {"\ud800": "\udfff"}, lambda: {10**5000: 1}, lambda: {Raises(): 1}),
        *(lambda: torch.eye(2).to_sparse(), lambda: torch.empty(2, device="meta"), lambda: {(1, 2): {1}}),
    ]
).map(lambda make: make())
HOSTILE_KEYS = st.sampled_from(["acc", "a\ud800", "pred"])


@pytest.mark.parametrize("dump", DUMPS)
@given(rows=st.lists(st.dictionaries(HOSTILE_KEYS, HOSTILE, max_size=2), min_size=ROWS, max_size=ROWS))
@settings(max_examples=15, deadline=None)
def test_nothing_that_a_reward_function_returns_ends_a_run_from_a_dump(dump, rows):
    lines = DUMPS[dump]([{**row, "fine": number} for number, row in enumerate(rows)], [1.0, 0.5, 0.0])
    assert [line["score"] for line in lines] == [1.0, 0.5, 0.0]
    assert [line["fine"] for line in lines] == [0, 1, 2]
    for line, row in zip(lines, rows, strict=True):
        for key in row:
            assert line["a\\ud800" if key == "a\ud800" else key] is not None
