"""verl's managers on a Ray of their own; for each line that is read, one round of both paths, and its seconds.

Whether the plugin is on is decided by the environment, as for any user.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from verl_ext.demo import rig
from verl_ext.demo.data import read_rows

ROWS = 64


def main() -> None:
    rows = [row for row in read_rows() if row["data_source"] == "openai/gsm8k"]
    rows = (rows * ROWS)[:ROWS]
    with tempfile.TemporaryDirectory() as directory, rig.local_ray():
        config = rig.compose_config(rig.build_model_dir(Path(directory)))
        scorer = rig.reward_loop_manager(config)
        client = rig.RecordedClient(rows, config)
        roller = rig.agent_loop_manager(config, client, scorer.reward_loop_worker_handles)
        scored, prompts = rig.scored_batch(rows, config), rig.prompt_batch(rows)
        print("leg: {}", flush=True)
        for _ in sys.stdin:
            took = {}
            for name, call, batch in (
                ("compute_rm_score", scorer.compute_rm_score, scored),
                ("generate_sequences", roller.generate_sequences, prompts),
            ):
                start = perf_counter()
                call(batch)
                took[name] = perf_counter() - start
            print(f"leg: {json.dumps(took)}", flush=True)


if __name__ == "__main__":
    main()
