"""What a value of JSON is, as a bit: what is known of many values is the bits of them all."""

from __future__ import annotations

import math
from typing import Any

from verl_ext.errors import encodable

BOOL, INTEGER, LARGE, HUGE, FLOAT, NAN, INFINITE, TEXT, ODD_TEXT, LIST, DICT = (1 << bit for bit in range(11))
"""What a value may be, as bits: `LARGE` integers are beyond 2**53, `HUGE` beyond int64, `ODD_TEXT` is not in UTF-8."""

INTEGERS = INTEGER | LARGE | HUGE
FLOATS = FLOAT | NAN | INFINITE
NUMBERS = BOOL | INTEGERS | FLOATS
TEXTS = TEXT | ODD_TEXT

TYPES = {"bool": BOOL, "int": INTEGERS, "float": FLOATS, "text": TEXTS, "list": LIST, "dict": DICT}
FAMILIES = {"number": NUMBERS, "text": TEXTS, "list": LIST, "dict": DICT}
"""Types between which a key changes; bool, int and float are one, since NumPy and Python count them so."""

_KIND_OF = {bool: BOOL, int: INTEGER, float: FLOAT, str: TEXT, list: LIST, dict: DICT}


def kind_of(value: Any) -> int:
    """The bit for one value of JSON, other than null."""
    kind = _KIND_OF[type(value)]
    if kind == INTEGER and not -(2**53) <= value <= 2**53:
        return LARGE if -(2**63) <= value < 2**63 else HUGE
    if kind == FLOAT and not math.isfinite(value):
        return NAN if math.isnan(value) else INFINITE
    if kind == TEXT and not encodable(value):
        return ODD_TEXT
    return kind


def named(kinds: int, names: dict[str, int] = TYPES) -> list[str]:
    """The types that these bits stand for."""
    return [name for name, bits in names.items() if kinds & bits]
