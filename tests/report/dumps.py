"""Dumps as verl writes them, of runs over mixed rows: on stock verl, and with verl-ext."""

import json
import math
import random
from pathlib import Path

OWN = ("input", "output", "gts", "score", "step")


def emitted(source, step, chance):
    """What the reward function of a data source returns for one sample."""
    right = chance.random() < 1 - math.exp(-step / 12)
    if source == "openai/gsm8k":
        return {"acc": float(right), "format": 1.0 if chance.random() < 0.9 else 0.0}
    if source == "math_dapo":
        return {"acc": right, "pred": "42" if right else "[INVALID]", "length_penalty": -chance.random() / (1 + step)}
    return {"acc": right, "judge": chance.choice(["good", "poor", "unsure"]), "judge_score": chance.gauss(step / 10, 1)}


def batch(step, rows=24, sources=("openai/gsm8k", "math_dapo", "judge/essays"), seed=0):
    """Data sources and reward dicts of one batch; which source comes first differs from step to step."""
    chance = random.Random(1000 * seed + step)  # noqa: S311
    order = list(sources)
    chance.shuffle(order)
    named = [order[row * len(order) // rows] for row in range(rows)]
    return named, [emitted(source, step, chance) for source in named]


def columns(infos, stock):
    """The reward columns as `_write_generations` gets them: on stock, of the keys of sample 0 that all rows have."""
    keys = dict.fromkeys(key for info in infos for key in info)
    if stock:
        keys = [key for key in infos[0] if all(key in info for info in infos)]
    return {key: [info.get(key) for info in infos] for key in keys}


def lines(step, named, reward_columns):
    """The lines of a step's file, as `_write_generations` of verl 0.9.1 writes them."""
    for row, source in enumerate(named):
        acc = reward_columns["acc"][row]
        own = [f"Question {row} of {source}?", f"It is {row}.", str(row), float(acc), step]
        info = {key: values[row] for key, values in reward_columns.items()}
        yield json.dumps({**dict(zip(OWN, own, strict=True)), "data_source": source, **info}, ensure_ascii=False)


def write_run(directory: Path, steps=12, stock=False, every=4, **batches):
    """A run's `rollout` and `validation`; on stock, some steps hold one data source only, and keep its keys."""
    for name, chosen in (("rollout", range(1, steps + 1)), ("validation", range(0, steps + 1, every))):
        (directory / name).mkdir(parents=True)
        for step in chosen:
            alone = {"sources": ["math_dapo"]} if stock and step % 3 == 0 else {}
            named, infos = batch(step, seed=len(name), **{**batches, **alone})
            write_step(directory / name, step, lines(step, named, columns(infos, stock)))
    return directory


def write_step(directory: Path, step, rows):
    """One file; rows are lines, or dicts."""
    directory.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)
    (directory / f"{step}.jsonl").write_text(text, encoding="utf-8", errors="surrogatepass")
    return directory / f"{step}.jsonl"
