"""The compiled core, where a compiler is at hand; everything else about the package is in setup.cfg.

`VERL_EXT_PURE=1` builds without it. Without the GIL there is no stable ABI, and the core is not written for it.
"""

import os
import sysconfig

from setuptools import Extension, setup

CORE = Extension(
    "verl_ext._core",
    ["verl_ext/_core.c"],
    define_macros=[("Py_LIMITED_API", "0x030A0000")],
    py_limited_api=True,
    optional=True,
)

if os.environ.get("VERL_EXT_PURE", "") not in ("", "0") or sysconfig.get_config_var("Py_GIL_DISABLED"):
    setup()
else:
    setup(ext_modules=[CORE], options={"bdist_wheel": {"py_limited_api": "cp310"}})
