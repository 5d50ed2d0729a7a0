"""One leg of the demo, in a process of its own: the rows through verl's real managers, stock or with the plugin.

`python -m verl_ext.demo.leg DIRECTORY [ROWS]` writes what happened as JSON, one event per line, and knows nothing of
how it is shown. Its files go to the empty DIRECTORY, which whoever starts it removes: a leg may be killed. Whether the
plugin is on is decided by the environment, as for any user.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from verl_ext.demo import rig
from verl_ext.demo.data import read_rows
from verl_ext.errors import VerlExtError, shown
from verl_ext.reward_metrics import RewardMetrics, Step
from verl_ext.schema import same_value

Row = dict[str, Any]
Emitted = list[dict[str, Any]]
Job = Callable[[Sequence[Row]], Any]

WORKERS = 2
MOST_AGENT_WORKERS = 3
ROWS_SHOWN = 12


class ScorerError(VerlExtError, RuntimeError):
    """A scorer of verl's cannot score a row of the demo."""


def main() -> None:
    """Run every path in every row order; one JSON event per line on standard output."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # by which we are ended; a job of `&` ignores it
    directory, *rows_file = map(Path, sys.argv[1:])
    for event in run(read_rows(*rows_file), directory):
        print(json.dumps(event), flush=True)


def run(rows: Sequence[Row], directory: Path) -> Iterator[dict[str, Any]]:
    """The events of one leg.

    `{"step": ...}` while it works, `{"outcome": ...}` for each path and row order, and `{"failed": ...}` at the end
    where a scorer cannot score a row.
    """
    yield {"step": "composing verl's configuration"}
    config = _config(rows, directory)
    yield {"step": "starting Ray"}
    with rig.local_ray():
        yield {"step": "starting the workers, scoring each row by itself"}
        scorer = rig.reward_loop_manager(config)
        manage = rig.fully_async_manager if rig.has_fully_async() else rig.agent_loop_manager
        roller = manage(config, rig.RecordedClient(rows, config), scorer.reward_loop_workers)
        try:
            emitted = _emitted(scorer, rows, config)
        except ScorerError as error:
            yield {"failed": str(error)}
            return
        for path, order, numbers, job in _jobs(rows, scorer, roller, config):
            yield {"step": f"{path}, {order}"}
            ordered = [rows[number] for number in numbers]
            yield {"outcome": outcome(path, order, ordered, [emitted[number] for number in numbers], job)}


def _jobs(rows: Sequence[Row], scorer: Any, roller: Any, config: Any) -> Iterator[tuple[str, str, list[int], Job]]:
    """Every path in every row order: its name, the order's, the rows' numbers, and what makes a batch of them."""
    from verl.protocol import pad_dataproto_to_divisor, unpad_dataproto

    def reward_loop(ordered: Sequence[Row]) -> Any:
        # verl < 0.9 leaves it to the caller that the workers get equal shares
        padded, added = pad_dataproto_to_divisor(rig.scored_batch(ordered, config), len(scorer.reward_loop_workers))
        return unpad_dataproto(scorer.compute_rm_score(padded), added)

    def agent_loop(ordered: Sequence[Row]) -> Any:
        padded, added = pad_dataproto_to_divisor(rig.prompt_batch(ordered), len(roller.agent_loop_workers))
        return unpad_dataproto(roller.generate_sequences(padded), added)

    def fully_async(ordered: Sequence[Row]) -> Any:
        return asyncio.run(_one_by_one(roller, ordered, config))

    by_source: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        by_source.setdefault(row["data_source"], []).append(number)
    for source, numbers in by_source.items():
        yield "reward loop", f"{source} first", [*range(numbers[0], len(rows)), *range(numbers[0])], reward_loop
    groups = list(by_source.values())
    evenly = len(groups) == len(roller.agent_loop_workers) and len(set(map(len, groups))) == 1
    grouped = "one data source per worker" if evenly else "grouped by data source"
    for first, source in list(enumerate(by_source))[:2]:
        turned = [*groups[first:], *groups[:first]]
        yield "agent loop", f"{grouped}, {source} first", list(chain.from_iterable(turned)), agent_loop
    if rig.has_fully_async():
        yield "fully async", "samples finished one by one", list(range(len(rows))), fully_async


def _config(rows: Sequence[Row], directory: Path) -> Any:
    prompt = max(sum(len(str(turn["content"]).encode()) + 32 for turn in row["prompt"]) for row in rows)
    response = max(len(row["response"].encode()) for row in rows)
    sources = len({row["data_source"] for row in rows})
    return rig.compose_config(
        rig.build_model_dir(directory),
        [
            f"reward.num_workers={WORKERS}",
            f"actor_rollout_ref.rollout.agent.num_workers={min(sources, MOST_AGENT_WORKERS)}",
            f"data.max_prompt_length={prompt + 32}",
            f"data.max_response_length={response + 1}",
        ],
    )


async def _one_by_one(roller: Any, rows: Sequence[Row], config: Any) -> Any:
    """Each row alone through the fully-async manager, and together again as the fully-async trainer does it."""
    from verl.experimental.fully_async_policy.detach_utils import RolloutSample, assemble_batch_from_rollout_samples

    outputs = await asyncio.gather(*(roller.generate_sequences_single(rig.prompt_batch([row])) for row in rows))
    samples = [
        RolloutSample(full_batch=output, sample_id=str(number), epoch=0, rollout_status={})
        for number, output in enumerate(outputs)
    ]
    return assemble_batch_from_rollout_samples(samples, None, config)


def _emitted(scorer: Any, rows: Sequence[Row], config: Any) -> Emitted:
    """What verl's scorers return for each row, asked of the first worker without any manager in between.

    Raises:
        ScorerError: a scorer cannot score a row; names the row, its data source and the scorer's own error.
    """
    import ray

    emitted: Emitted = []
    batch, worker = rig.scored_batch(rows, config), scorer.reward_loop_workers[0]
    for number, row in enumerate(rows):
        try:
            emitted.append(ray.get(worker.compute_score.remote(batch[number : number + 1]))["reward_extra_info"])
        except Exception as error:
            cause = getattr(error, "cause", error)
            raise ScorerError(
                f"verl's scorer cannot score row {number} (data source {shown(row['data_source'])}, ground_truth "
                f"{shown(row['reward_model']['ground_truth'])}): {type(cause).__name__}: {shown(str(cause))}"
            ) from error
    return emitted


def outcome(path: str, order: str, rows: Sequence[Row], emitted: Emitted, job: Job) -> dict[str, Any]:
    """Run `job`, which makes a batch of the rows, and hold its columns against what the scorers emitted."""
    report: dict[str, Any] = {"path": path, "order": order, "values": sum(map(len, emitted))}
    try:
        found = job(rows).non_tensor_batch
    except Exception as error:  # on stock verl, the exception is the outcome
        return {**report, "error": f"{type(error).__name__}: {shown(str(error))}", "lost": report["values"]}
    keys = list(dict.fromkeys(key for row in emitted for key in row))
    lost = {
        key: sum(_is_lost(found.get(key), n, row[key]) for n, row in enumerate(emitted) if key in row) for key in keys
    }
    columns = {key: found[key] for key in found if key in keys}
    return {
        **report,
        "lost": sum(lost.values()),
        "lost_by_key": {key: count for key, count in lost.items() if count},
        "columns": [
            {"key": key, "dtype": str(column.dtype), "coverage": _coverage(key, rows, emitted)}
            for key, column in columns.items()
        ],
        "metrics": _metrics(columns, rows),
        "table": [
            {"data source": row["data_source"], **{key: _cell(column[number]) for key, column in columns.items()}}
            for number, row in enumerate(rows[:ROWS_SHOWN])
        ],
    }


def _is_lost(column: Any, row: int, value: Any) -> bool:
    """Whether a value is not at its row, equal and of its kind (text is text, a number is a number)."""
    return (
        column is None or not same_value(column[row], value) or isinstance(column[row], str) != isinstance(value, str)
    )


def _coverage(key: str, rows: Sequence[Row], emitted: Emitted) -> dict[str, list[int]]:
    """By data source, how many rows emitted `key`, and of how many."""
    coverage: dict[str, list[int]] = {}
    for row, infos in zip(rows, emitted, strict=True):
        have = coverage.setdefault(row["data_source"], [0, 0])
        have[0] += key in infos
        have[1] += 1
    return coverage


def _metrics(columns: Mapping[str, Any], rows: Sequence[Row]) -> list[dict[str, str]]:
    """By key and data source, what training logs of these rows with `+verl_ext.metrics=all`."""
    run = RewardMetrics("all")
    run.step(columns, [row["data_source"] for row in rows], len(rows))
    step = run.take() or Step()
    found = []
    for (source, key), summary in step.summaries.items():
        numbers = {name.rpartition("/")[2]: f"{value:.3g}" for name, value in summary.metrics(key).items()}
        if source is None or len(step.rows) > 2:  # with one data source, all rows are its
            found.append({"key": key, "data source": "all" if source is None else source, **numbers})
    return found


def _cell(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else str(value)


if __name__ == "__main__":
    main()
