"""Reward text is data that a model wrote: wherever we print it, it neither drives a terminal nor floods a log.

Each error and each warning that quotes a key, a value, a data source or a setting quotes hostile ones here. (The report
and the demo have their own tests: `report/test_page.py`, `report/test_command.py`, `demo/test_show.py`.)
"""

import logging

import pytest

pytest.importorskip("verl")

import torch
from omegaconf import OmegaConf
from strategies import objects
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.trainer.ppo import metric_utils

from verl_ext import SparseDataProto, SparseNonTensor, numeric
from verl_ext.errors import VerlExtError
from verl_ext.plugin import _dump
from verl_ext.plugin._sendable import refuse_unsendable
from verl_ext.plugin._site import warn_once
from verl_ext.plugin.advantage import TRAINED
from verl_ext.plugin.reward_loop import required_scores, told_by
from verl_ext.protocol import attach_reward_extra_info
from verl_ext.reward_metrics import RewardMetrics
from verl_ext.settings import Settings, training_values

HOSTILE = {
    "a terminal's escapes": "\x1b[2J\x1b]0;owned\x07",
    "line breaks": "one\r\ntwo\x85three\u2028four",
    "the other direction": "\u202eknil\u2066",
    "half a character": "\ud800",
    "NUL": "a\0b",
    "a format": "%s%n{0.__class__}{",
    "markup": "[bold red]<script>alert(1)</script>[/]",
    "a megabyte": "x" * 1_000_000,
}


class Unsendable:
    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text

    def __reduce__(self):
        raise ValueError(self.text)


def batch(rows=(None,), **columns):
    return SparseDataProto(
        batch=TensorDict({"rm_scores": torch.zeros(len(rows), 1)}, batch_size=len(rows)),
        non_tensor_batch={"reward_extra_info": SparseNonTensor(rows), **columns},
    )


def finalize_folded(text):
    column = SparseNonTensor([None, None]).reshape(2, 1)
    SparseDataProto(non_tensor_batch={text: column}).finalize()


def with_tensor(name):
    return SparseDataProto(batch=TensorDict({name: torch.zeros(1)}, batch_size=1), non_tensor_batch={})


CONFIG = OmegaConf.create(
    {"reward": {"custom_reward_function": {"path": None}, "reward_manager": {"name": "naive"}}},
    flags={"allow_objects": True},
)

ERRORS = {
    "a row": lambda text: SparseNonTensor([text]),
    "a key that a TensorDict refuses": lambda text: SparseDataProto(
        non_tensor_batch={text.encode("utf-8", "surrogatepass"): objects([1])}
    ).to_tensordict(),
    "a key that is taken": lambda text: batch([{text: 1}], **{text: objects([0])}).finalize(),
    "its data source": lambda text: batch([{"uid": 1}], uid=objects([0]), data_source=objects([text])).finalize(),
    "a folded column": finalize_folded,
    "too few rows": lambda text: attach_reward_extra_info(batch([None, None]), [{text: text}]),
    "a tensor that others lack": lambda text: SparseDataProto.concat([with_tensor(text), with_tensor("a")]),
    "meta_info": lambda text: SparseDataProto.concat(
        [SparseDataProto(non_tensor_batch={"a": objects([1])}, meta_info={text: value}) for value in (text, text + "!")]
    ),
    "a union": lambda text: batch([{text: 1}]).union(
        DataProto(non_tensor_batch={text: objects([2])}, batch=TensorDict({"a": torch.zeros(1)}, batch_size=1))
    ),
    "a column of numbers": lambda text: numeric([text], text),
    "an option": lambda text: Settings.of({"verl_ext": {text: 1}}),
    "a choice": lambda text: Settings.of({"verl_ext": {"metrics": text}}),
    "a fill": lambda text: Settings.of({"verl_ext": {"fill": {text: text}}}),
    "all fills": lambda text: Settings.of({"verl_ext": {"fill": text}}),
    "text metrics": lambda text: Settings.of({"verl_ext": {"text_metrics": text}}),
    "a missing component": lambda text: training_values(text, [None], Settings(), [text], TRAINED),
    "a component that is text": lambda text: training_values(text, [text], Settings(), [text], TRAINED),
    "a missing score": lambda text: required_scores(
        [None], {"data_source": [text], "extra_info": [{"index": text}]}, CONFIG
    ),
    "a score that is text": lambda text: required_scores([text], {"data_source": [text]}, CONFIG),
    "what cannot be sent": lambda text: refuse_unsendable(
        {text: Unsendable(text)}, f"a sample{told_by(0, {'data_source': [text]})}"
    ),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("place", ERRORS)
def test_an_error_quotes_hostile_text_on_one_short_line(place, text):
    with pytest.raises(VerlExtError) as caught:
        ERRORS[place](text)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 1_200


def validation(text):
    metric_utils.process_validation_metrics([text, text], ["u", "v"], {"reward": [1.0, 0.0], text: [1.0, text]})


def kept_metrics(columns, **options):
    def log(text):
        run = RewardMetrics("all", warn=warn_once, **{k: v(text) if callable(v) else v for k, v in options.items()})
        for step in columns(text):
            run.step(step, [text], 1)

    return log


WARNINGS = {
    "validation": validation,
    "a dump": lambda text: _dump.dumpable({text: [object()]}, {"input": [""]}),
    "NaN": kept_metrics(lambda text: [{text: [float("nan")]}]),
    "infinity": kept_metrics(lambda text: [{text: [float("inf")]}]),
    "a key that changes": kept_metrics(lambda text: [{text: [1.0]}, {text: [text]}]),
    "text metrics of numbers": kept_metrics(lambda text: [{text: [1.0]}], texts=lambda text: [text]),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("place", WARNINGS)
def test_a_warning_quotes_hostile_text_on_one_short_line(place, text, caplog):
    caplog.set_level(logging.INFO, logger="verl_ext")
    WARNINGS[place](text)
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert len(record.getMessage()) < 800


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_the_names_of_metrics_which_loggers_print_are_printable_and_short(text):
    run = RewardMetrics("all", texts=["judge"])
    names = run.step({text: [1.0, 2.0], "judge": [text, "good"]}, [text, "b"], 2)
    assert len(names) > 18
    assert all(name.isprintable() and len(name) < 300 for name in names)
