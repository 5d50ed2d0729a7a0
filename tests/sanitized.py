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
FLAGS = (
    "-O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined -Wall -Wextra -Werror"
)
COMPILER = shutil.which("gcc") or "gcc"
TESTS = ("tests/schema/test_core.py", "tests/schema/test_fast_and_slow.py", "tests/schema/test_rows_and_keys.py")
BATCHES = os.environ.get("VERL_EXT_READ", "10000")


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        shutil.copytree(ROOT / "verl_ext", copy / "verl_ext", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        include = sysconfig.get_paths()["include"]
        flags = [*FLAGS.split(), "-shared", "-fPIC", "-DPy_LIMITED_API=0x030A0000", f"-I{include}"]
        built = str(copy / "verl_ext" / "_core.abi3.so")
        subprocess.run([COMPILER, *flags, str(ROOT / "verl_ext" / "_core.c"), "-o", built], check=True)
        libraries = [
            subprocess.run(
                [COMPILER, f"-print-file-name={name}"], check=True, capture_output=True, text=True
            ).stdout.strip()
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
        leaving_out = "not resident and not environment"  # sanitizers keep memory, and load slowly into a child
        # From the copy, which Python then has before the clone.
        where = "import verl_ext._core as core; print(core.__file__)"
        loaded = subprocess.run(
            [sys.executable, "-c", where], cwd=copy, env=environment, check=True, capture_output=True, text=True
        )
        assert loaded.stdout.strip() == built, loaded.stdout
        options = ["-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}", "-c", str(ROOT / "pyproject.toml")]
        command = [sys.executable, "-m", "pytest", *options, "-k", leaving_out, *(str(ROOT / test) for test in TESTS)]
        return subprocess.run(command, cwd=copy, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
