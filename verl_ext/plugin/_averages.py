"""Validation's averages of the reward keys of one data source, key by key: verl's own numbers wherever verl has any.

verl's function averages what it is given, or raises and takes all keys along. So it is asked for each key by itself,
and a key that it cannot average is left out. A key that some samples lack is averaged here, with verl's own bootstrap,
over the values that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from verl_ext.errors import shown
from verl_ext.plugin._site import Function, warn_once

Metrics: TypeAlias = dict[str, float]
Votes: TypeAlias = Sequence[str | None]
"""By sample, the text that its prediction counts as, or `None` where it has none that can be counted."""

BOOTSTRAPS = 1000
_ACC, _PRED = "acc", "pred"
"""The keys that verl's function knows by name: sessions that failed count as accuracy 0, and predictions are votes."""


@dataclass(frozen=True)
class Samples:
    """The samples of one data source.

    Attributes:
        source: the data source.
        uids: by sample, its prompt.
        infos: by reward key, one value per sample; `None` where it is missing.
        sessions: by prompt, how many sessions were started, failed ones included; empty where verl does not count them.
    """

    source: Any
    uids: Sequence[Any]
    infos: Mapping[Any, Sequence[Any]]
    sessions: Mapping[Any, int]

    def without(self, misses: Callable[[Any], bool]) -> Samples:
        """The same samples without the values of which this is true."""
        infos = {key: [None if misses(value) else value for value in values] for key, values in self.infos.items()}
        return replace(self, infos=infos)


class Averages:
    """The averages that a verl's `process_validation_metrics` makes of the samples of a data source."""

    def __init__(self, verls: Function) -> None:
        self._verls = verls
        self._leaves_none_out = _leaves_none_out(verls)

    def of(self, samples: Samples, seed: int, **rest: Any) -> dict[Any, Metrics]:
        """By reward key, its metrics; a key that cannot be averaged has none, and one warning says so.

        Args:
            samples: of one data source.
            seed, rest: what else verl's function is called with.
        """
        votes = self._votes(samples.infos.get(_PRED))
        found: dict[Any, Metrics] = {}
        for key in sorted(samples.infos, key=lambda key: bool(key == _ACC)):  # it may bring a second key, which counts
            sessions = samples.sessions if key == _ACC else {}
            try:
                averaged = self._of_key(samples, samples.infos[key], votes, sessions, seed, **rest)
            except Exception as error:  # whatever NumPy, or a value's own arithmetic, raises
                _warn(key, samples.source, f"cannot be averaged ({shown(error)}); it is left out")
                continue
            found.update({key if name == _ACC else name: metrics for name, metrics in averaged.items()})
            if _is_text_for_some(samples.infos[key]):
                _warn(key, samples.source, "is text in some samples; prompts that have text are left out")
        return {key: found[key] for key in dict.fromkeys([*samples.infos, *found]) if key in found}

    def _votes(self, predictions: Sequence[Any] | None) -> Votes | None:
        """verl counts votes by hash and `==`, and does not average text: as text, they are counted and no more."""
        texts: dict[Any, str | None] = {None: None} if self._leaves_none_out else {}

        def vote(prediction: Any) -> str | None:
            try:
                return texts.setdefault(prediction, str(len(texts)))
            except Exception:  # a list, which has no hash; or a value whose own `__eq__` raises
                return None

        return None if predictions is None else list(map(vote, predictions))

    def _of_key(
        self,
        samples: Samples,
        values: Sequence[Any],
        votes: Votes | None,
        sessions: Mapping[Any, int],
        seed: int,
        **rest: Any,
    ) -> dict[str, Metrics]:
        """The metrics of one key under the name `acc`; those of `acc` itself may be two."""
        there = sum(value is not None for value in values)
        if not there:
            return {}
        values = _without_mixed_prompts(samples.uids, values)
        if votes is not None:
            votes = [vote if _fits_a_cell(value) else None for vote, value in zip(votes, values, strict=True)]
        if there < len(values):
            return _sparse(samples.uids, values, votes, sessions, seed)
        infos: dict[str, Sequence[Any]] = {_ACC: values}
        if votes is not None and (self._leaves_none_out or None not in votes):
            infos[_PRED] = votes
        if sessions:
            rest["expected_acc_counts"] = {(samples.source, uid): count for uid, count in sessions.items()}
        result = self._verls([samples.source] * len(values), samples.uids, infos, seed, **rest)
        return {name: dict(metrics) for name, metrics in result.get(samples.source, {}).items()}


def _leaves_none_out(verls: Function) -> bool:
    """verl >= 0.9.1 drops `None`s before it averages; verl before takes the mean of them: TypeError."""
    try:
        verls(["source"], ["prompt"], {"key": [None]})
    except TypeError:
        return False
    return True


def _fits_a_cell(value: Any) -> bool:
    """Whether verl can put the value of the majority where it collects them: not so one of several numbers."""
    try:
        np.empty(1)[0] = value
    except Exception:
        return False
    return True


def _without_mixed_prompts(uids: Sequence[Any], values: Sequence[Any]) -> Sequence[Any]:
    """The values of one key, where all of a prompt's are text if one is.

    verl tells by the first of them that there is nothing to average, and would take the mean of text if it is not the
    first.
    """
    of_text = {uid for uid, value in zip(uids, values, strict=True) if isinstance(value, str)}
    if not of_text:
        return values
    return ["" if uid in of_text and value is not None else value for uid, value in zip(uids, values, strict=True)]


def _is_text_for_some(values: Sequence[Any]) -> bool:
    return len({isinstance(value, str) for value in values if value is not None}) > 1


def _warn(key: Any, source: Any, what: str) -> None:
    warn_once(("validation", key), f"validation metrics: {shown(key)} of data source {shown(str(source))} {what}")


# --- a key that some samples lack --------------------------------------------------------------------------------


def _sparse(
    uids: Sequence[Any], values: Sequence[Any], votes: Votes | None, sessions: Mapping[Any, int], seed: int
) -> dict[str, Metrics]:
    """As verl's own function, which counts a sample without `acc` as one that failed; here it is none at all."""
    failed = _failed(sessions, uids)
    found = {_ACC: _sparse_metrics(uids, values, votes, failed, seed)}
    if failed:
        found["acc_success_only"] = _sparse_metrics(uids, values, votes, {}, seed)
    return {name: metrics for name, metrics in found.items() if metrics}


def _failed(sessions: Mapping[Any, int], uids: Sequence[Any]) -> dict[Any, int]:
    """By prompt, how many sessions were started and left no sample: verl counts each as accuracy 0."""
    failed = dict(sessions)
    for uid in uids:
        if uid in failed:
            failed[uid] -= 1
    return {uid: max(count, 0) for uid, count in failed.items()}


def _sparse_metrics(
    uids: Sequence[Any], values: Sequence[Any], votes: Votes | None, failed: Mapping[Any, int], seed: int
) -> Metrics:
    """verl's metrics of one key in one data source, over the values that are there.

    First over a prompt's responses that have the key, then over the prompts that have any. A series is named by the
    prompt's number of responses, so that it does not split by how many happened to have the key; `coverage@N` is the
    share of them that do, over all prompts. Without anything to average, there is no series.
    """
    prompts: dict[Any, list[tuple[Any, str | None]]] = {uid: [] for uid, count in failed.items() if count}
    for row, uid in enumerate(uids):
        prompts.setdefault(uid, []).append((values[row], None if votes is None else votes[row]))
    averages: dict[str, list[float]] = {}
    coverages: dict[str, list[float]] = {}
    for uid, samples in prompts.items():
        zeros = [(0.0, None)] * failed.get(uid, 0)
        present = [sample for sample in [*samples, *zeros] if sample[0] is not None]
        responses = len(samples) + len(zeros)
        coverages.setdefault(f"coverage@{responses}", []).append(len(present) / responses)
        if present and not isinstance(present[0][0], str):
            for name, value in _prompt_metrics(present, responses, seed).items():
                averages.setdefault(name, []).append(value)
    return (
        {name: float(np.mean(per_prompt)) for name, per_prompt in {**coverages, **averages}.items()} if averages else {}
    )


def _prompt_metrics(present: Sequence[tuple[Any, str | None]], responses: int, seed: int) -> Metrics:
    """The metrics of one prompt: `present` are its values and votes, of `responses` responses."""
    values = [value for value, _ in present]
    metrics = {f"mean@{responses}": float(np.mean(values))}
    if responses > 1:
        with suppress(Exception):  # complex numbers have no order, fractions no root: their mean is logged all the same
            metrics |= _spread(values, [vote for _, vote in present], responses, seed)
    return metrics


def _spread(values: Sequence[Any], votes: Votes, responses: int, seed: int) -> Metrics:
    """verl's other metrics of one prompt: the deviation, and the best, worst and majority of some drawn responses."""
    from verl.trainer.ppo.metric_utils import bootstrap_metric, calc_maj_val

    metrics = {f"std@{responses}": float(np.std(values))}
    draw = partial(bootstrap_metric, n_bootstrap=BOOTSTRAPS, seed=seed)
    for size in _subset_sizes(responses):
        best, worst = draw(data=values, subset_size=size, reduce_fns=[np.max, np.min])
        drawn = {"best": best, "worst": worst}
        if None not in votes:
            drawn["maj"] = draw(
                data=[{"val": value, "pred": vote} for value, vote in zip(values, votes, strict=True)],
                subset_size=size,
                reduce_fns=[partial(calc_maj_val, vote_key="pred", val_key="val")],
            )[0]
        for name, (mean, std) in drawn.items():
            metrics |= {f"{name}@{size}/mean": mean, f"{name}@{size}/std": std}
    return metrics


def _subset_sizes(responses: int) -> list[int]:
    """The powers of two below the number of responses, and that number: the series that verl logs."""
    return [*(2**power for power in range(1, responses.bit_length()) if 2**power < responses), responses]
