"""Metrics of projects that ask a column for a number dtype; the line that their authors write is in own-workers.md."""

import numpy as np
import pytest
from verl.trainer.ppo.reward import extract_reward

import verl_ext

from .recipes import means, united
from .surroundings import DAPO, GSM8K


@pytest.mark.parametrize("infos", [[GSM8K] * 4, [DAPO, {**DAPO, "score": 1.0}] * 2], ids=["gsm8k", "dapo"])
def test_the_means_of_keys_that_every_sample_has_are_those_of_stock(infos, verl, stock):
    with stock():
        theirs = means(extract_reward(united(verl, infos))[1])
    assert means(extract_reward(united(verl, infos))[1]) == theirs


def means_of_present(infos):
    """The same metrics, with the line."""
    metrics = {}
    for key, column in infos.items():
        try:
            values, mask = verl_ext.numeric(column, key)
        except verl_ext.NotNumericError:
            continue
        if mask.any():
            metrics[f"critic/{key}/mean"] = float(values[mask].mean())
    return metrics


def test_with_the_line_a_key_that_some_samples_lack_has_the_mean_of_those_that_have_it(verl):
    _, infos = extract_reward(united(verl, [GSM8K, DAPO, {"acc": 0.0}, {**DAPO, "score": 1.0}]))
    assert means_of_present(infos) == {"critic/acc/mean": 0.25, "critic/score/mean": 0.0}
    assert "critic/score/mean" not in means(infos)  # no bent value, and no word: hence the page


def test_with_the_line_the_means_of_keys_that_every_sample_has_stay_what_they_were(verl):
    _, infos = extract_reward(united(verl, [DAPO, {**DAPO, "score": 1.0}]))
    assert means_of_present(infos).items() >= means(infos).items()
    assert np.issubdtype(infos["score"].dtype, np.number)
