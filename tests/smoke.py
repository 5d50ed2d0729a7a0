"""What an installed verl-ext must do in an environment without verl: run by `make dist`, from outside the clone."""

import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path

import verl_ext
from verl_ext import core

assert "site-packages" in verl_ext.__file__, verl_ext.__file__
assert version("verl-ext") == verl_ext.__version__
assert (Path(verl_ext.__file__).parent / "py.typed").exists()
assert "verl_ext" in entry_points(group="verl.plugins").names
assert verl_ext.assemble_reward_extra_info([{"a": 1}, {"b": "x"}])["b"].tolist() == [None, "x"]
script = str(Path(sys.executable).with_name("verl-ext"))
said = subprocess.run([script, "--version"], check=True, capture_output=True, text=True).stdout
assert said == f"verl-ext {verl_ext.__version__}\n"
assert subprocess.run([script, "doctor"], capture_output=True, text=True).returncode == 1
wheel = sys.argv[1] if len(sys.argv) > 1 else ""
assert "-abi3-" not in wheel or core.COMPILED, core.VERSION
assert "-none-any" not in wheel or not core.COMPILED, core.VERSION
print(f"{verl_ext.__file__}: works, rows are read by {core.VERSION}")
