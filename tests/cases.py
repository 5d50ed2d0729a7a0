"""Small inputs from public reports: as they are kept beside a checkout, where they are, else the copies in `data/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

COPIES = Path(__file__).parent / "data"
ORIGINALS = Path(__file__).parents[2] / "shared" / "cases"


def cases(name: str) -> list[dict[str, Any]]:
    """The cases of one file."""
    original = ORIGINALS / name
    return json.loads((original if original.exists() else COPIES / name).read_text())
