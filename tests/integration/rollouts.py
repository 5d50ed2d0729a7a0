"""Real agent loop managers that share their worker processes, batches for them, and what tests ask of the results."""

import copy
import json
from pathlib import Path

import agent_loops
import numpy as np
import ray
from actors import release
from verl.utils import hf_tokenizer

from verl_ext.demo import rig

HERE = Path(__file__).parent
ray.cloudpickle.register_pickle_by_value(agent_loops)  # worker classes, which Ray's processes cannot import
SOURCES = {"gsm8k": "openai/gsm8k", "dapo": "math_dapo"}
SCORED_BY_ROWS = [
    "reward.reward_manager.source=importlib",
    "reward.reward_manager.name=AsTheRowSays",
    f"reward.reward_manager.module.path='{HERE / 'scorers.py'}'",
    "reward.num_workers=1",
]


def collisions():
    """The kinds of names that a reward key may collide with: name, key, and where it is taken or that it is allowed."""
    return json.loads((HERE.parent / "data" / "collisions.json").read_text())


class Rollouts:
    """Agent loop workers and a reward worker, and managers on any number of them.

    A process that imports verl takes seconds to start, and a batch some milliseconds. So the workers are shared, and
    told anew by whom their samples are scored: all that their constructor does with these handles is to keep them.
    """

    def __init__(self, model_dir, rows, workers):
        # verl reads its own agent_loop_config_path; JSON is YAML.
        loops = model_dir / "agent_loops.yaml"
        names = {name: f"agent_loops.{loop.__name__}" for name, loop in agent_loops.NAMES.items()}
        loops.write_text(json.dumps([{"name": name, "_target_": target} for name, target in names.items()]))
        self.config = rig.compose_config(
            model_dir,
            [
                *SCORED_BY_ROWS,
                f"actor_rollout_ref.rollout.agent.num_workers={workers}",
                f"actor_rollout_ref.rollout.agent.agent_loop_config_path='{loops}'",
            ],
        )
        self.rows = rows
        self.tokenizer = hf_tokenizer(str(model_dir))
        self.client = rig.RecordedClient(rows, self.config)
        self.rewards = rig.reward_loop_manager(self.config)
        self.scorers = self.rewards.reward_loop_workers
        self.loops = rig.agent_loop_manager(self.config, self.client, self.scorers)
        self.workers = self.loops.agent_loop_workers

        def learn_path(worker):  # as it would come from a user's PYTHONPATH: verl imports the loops by name
            import sys

            sys.path += [str(HERE), str(HERE.parent)]

        ray.get([worker.__ray_call__.remote(learn_path) for worker in (*self.workers, *self.scorers)])

    def start(self, worker_class, env=None):
        """One more worker, of this class, in a process with these variables."""
        remote = ray.remote(worker_class).options(runtime_env={"env_vars": env} if env else None)
        return remote.remote(self.config, self.client, None, self.scorers)

    def manager(self, workers=2, *, scorers=(), config=None):
        """verl's manager on these workers (or so many of the shared ones); no `scorers`: nothing scores in the loop."""
        workers = self.workers[:workers] if isinstance(workers, int) else workers
        handles = list(scorers) or None
        manager = agent_loops.AgentLoopManager(config or self.config, self.client, reward_loop_worker_handles=handles)
        manager.agent_loop_workers = workers

        def be_scored_by(worker, handles):
            worker.reward_loop_worker_handles = handles

        ray.get([worker.__ray_call__.remote(be_scored_by, handles) for worker in workers])
        return manager

    def release(self):
        release(self.loops)
        release(self.rewards)

    def kinds(self, *chunks):
        """Rows of these kinds, chunk by chunk: `gsm8k` and `dapo` for verl's scorers, others as `row_of` says."""
        left = {kind: [row for row in self.rows if row["data_source"] == source] for kind, source in SOURCES.items()}
        others = iter([row for row in self.rows if row["data_source"] not in SOURCES.values()])
        return [
            left[kind].pop(0) if kind in left else row_of(kind, number, next(others))
            for number, kind in enumerate(kind for chunk in chunks for kind in chunk.split())
        ]

    def emitted(self, rows):
        """What is emitted for each row, and its score: asked of the reward worker, without any manager in between."""
        if not rows:
            return [], []
        scored = ray.get(self.scorers[0].compute_score_batch.remote(rig.scored_batch(rows, self.config)))
        return [row["reward_extra_info"] for row in scored], [row["reward_score"] for row in scored]


def row_of(kind, number, row):
    """`row` with what is to be emitted for it."""
    emit = {
        "nothing": {},
        "none": None,
        # every kind of value that stock verl bends or refuses
        "odd": {"judge": f"{number}" if number % 2 else number, "steps": [0.5] * (number % 3), "why": {"n": number}},
        "plain": {"acc": number % 2 == 0, "score": number / 7, "pred": str(number * 37), "steps": [number, 0.5]},
    }[kind]
    return emitting(row, emit, number / 4)


def emitting(row, emit, reward=1.0):
    """A copy of `row` for which `emit` is emitted."""
    row = copy.deepcopy(row)
    row["extra_info"].update(emit=emit, reward=reward)
    return row


def prompts(rows, *, agent=None, validate=False):
    """The batch as the trainer hands it to the manager; `agent` names the rows' agent loop, or each row's."""
    batch = rig.prompt_batch(rows)
    if agent is not None:
        names = [agent] * len(rows) if isinstance(agent, str) else agent
        batch.non_tensor_batch["agent_name"] = np.array(names, dtype=object)
    if validate:
        batch.meta_info["validate"] = True
    return batch


def lost(columns, infos):
    """The emitted (row, key, value) that are not in the columns, by the plainest comparison there is."""
    gone = []
    for row, info in enumerate(infos):
        for key, value in (info or {}).items():
            found = columns[key][row] if key in columns else "no such column"
            found = found.tolist() if isinstance(found, np.ndarray | np.generic) else found
            if found != value or isinstance(found, str) != isinstance(value, str):
                gone.append((row, key, value))
    return gone


def lost_or_raised(job, infos):
    """What `job`, which returns a batch, loses of the emitted values, or the exception that it raises."""
    try:
        output = job()
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        return error
    return lost(output.non_tensor_batch, infos)


def up_to_extra_fields(columns):
    """The columns' names in order, up to the first of those that verl's worker writes in the order of a set."""
    names = list(columns)
    return names[: names.index("multi_modal_inputs") + 1] if "multi_modal_inputs" in names else names
