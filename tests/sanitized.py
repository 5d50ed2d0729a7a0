"""`make sanitize`: the compiled core built with AddressSanitizer and UBSan, and its tests run on that build.

Everything else is as it is installed: the sanitizers' library is loaded before Python, and leaks are not looked for,
since Python and NumPy keep much until the end. (`tests/schema/test_core.py` looks at references and memory.)
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLAGS = "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined -Wall -Wextra -Werror"
TESTS = ("tests/schema/test_core.py", "tests/schema/test_fast_and_slow.py", "tests/schema/test_rows_and_keys.py")
BATCHES = os.environ.get("VERL_EXT_READ", "10000")


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        shutil.copytree(ROOT / "verl_ext", copy / "verl_ext", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        include = sysconfig.get_paths()["include"]
        flags = [*FLAGS.split(), "-shared", "-fPIC", "-DPy_LIMITED_API=0x030A0000", f"-I{include}"]
        built = str(copy / "verl_ext" / "_core.abi3.so")
        subprocess.run(["gcc", *flags, str(ROOT / "verl_ext" / "_core.c"), "-o", built], check=True)
        libraries = [
            subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
            for name in ("libasan.so", "libubsan.so", "libstdc++.so")
        ]
        environment = {
            **os.environ,
            "LD_PRELOAD": " ".join(libraries),
            "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:allocator_may_return_null=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONMALLOC": "malloc",  # so that each object is an allocation of its own
            "PYTHONPATH": str(copy),
            "VERL_EXT_READ": BATCHES,
            "VERL_EXT_PURE": "",
        }
        leaving_out = "not resident and not processes and not environment"  # sanitizers keep memory, and are in no child
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", leaving_out, *TESTS]
        return subprocess.run(command, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
