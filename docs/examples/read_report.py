"""Read a finished run's report: which reward keys came, for how many samples, and which came and went.

    python3 read_report.py [DIRECTORY]

DIRECTORY is the run's `trainer.rollout_data_dir`; without it, one of two steps is made up.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path


def made_up(directory: Path) -> Path:
    """Two steps as verl writes them; the second lost the judge's word."""
    for step, judge in ((1, {"judge": "good"}), (2, {})):
        lines = [
            {"input": "2 + 2 =", "output": "4", "gts": "4", "score": 1.0, "step": step, "acc": True, **judge},
            {"input": "2 + 3 =", "output": "6", "gts": "5", "score": 0.0, "step": step, "acc": False},
        ]
        (directory / f"{step}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return directory


def main() -> None:
    """Print the keys of a run, from what `verl-ext report --json` says."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(sys.argv[1]) if len(sys.argv) > 1 else made_up(Path(scratch))
        command = [sys.executable, "-m", "verl_ext", "report", str(run), "--json"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode == 2:  # nothing to read; the report has said so on standard error
        sys.exit(2)
    for dump in json.loads(done.stdout)["dumps"]:
        for key, found in dump["keys"].items():
            print(f"{key}: {found['present']} of {dump['rows']} rows")
        for finding in dump["findings"]:
            print(f"! {finding['key']} {finding['kind']}: {finding['text']}")


if __name__ == "__main__":
    main()
