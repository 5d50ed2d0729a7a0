"""`python memory.py VALUES SCHEMAS`: what assembly takes at its peak, beside what it returns, as JSON in bytes.

In a process of its own: the resident set never shrinks, so only its first growth can be measured.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import tracemalloc
from pathlib import Path

from inputs import make_rows

from verl_ext import assemble_reward_extra_info as assemble

ROWS = 262_144


def rows_of(values: str, schemas: int) -> list:
    """Three keys: numbers, and text of lengths that are mixed, long, or those of one letter."""
    if values in ("numbers", "mixed"):
        return make_rows(ROWS, schemas, 3, values)
    draw = random.Random(0)  # noqa: S311
    length = {
        "lengths": lambda: draw.randrange(400),
        "long": lambda: draw.randrange(380, 400),
        "outlier": lambda: 20_000 if draw.random() < 1 / 16_384 else draw.randrange(8),
        "letters": lambda: 1,
    }[values]
    # Long text comes from few objects, so that the rows themselves fit into memory.
    texts = [chr(97 + number % 26) * length() for number in range(50_000)]
    rows = make_rows(ROWS // 4 if values in ("lengths", "long") else ROWS, schemas, 3, "numbers")
    return [{key: value if key == "key_0" else draw.choice(texts) for key, value in row.items()} for row in rows]


def main() -> None:
    rows = rows_of(*(int(word) if word.isdigit() else word for word in sys.argv[1:]))
    assemble(rows[:2000])
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = _status("VmRSS")
    columns = assemble(rows)
    resident = _status("VmHWM") - before
    returned = sum(column.nbytes for column in columns.values())
    del columns
    gc.collect()
    tracemalloc.start()
    assemble(rows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(json.dumps({"rows": len(rows), "returned": returned, "tracemalloc": peak, "resident": resident}))


def _status(name: str) -> int:
    """A field of the kernel's own account, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


if __name__ == "__main__":
    main()
