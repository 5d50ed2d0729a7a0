"""The rig is no part of the plugin."""

import subprocess
import sys


def test_the_plugin_loads_nothing_of_the_rig():
    program = "import sys, verl_ext.autoload, verl; print([name for name in sys.modules if 'verl_ext.cpu' in name])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"
