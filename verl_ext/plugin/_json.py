"""Any value in a form that `json` writes to the end: numbers as numbers at any depth, and text where JSON has no form.

What a reward function returns may refer to itself, repeat its parts without end, or raise when it is looked at. Nothing
here raises, and no part is walked through twice.
"""

from __future__ import annotations

import json
import locale
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from itertools import islice, repeat
from types import NoneType
from typing import Any

import numpy as np

from verl_ext.errors import bare
from verl_ext.schema import is_tensor

MOST_REPEATED = 2**24
"""Values that are written for one value though it does not hold each of them: elements of arrays, ranges and the like,
and what several of its places share, each time but the first. `json` takes a gigabyte of memory for as many."""

CIRCULAR = "(circular reference)"
"""What is written where a value comes back to itself."""

_AS_IT_IS = frozenset((NoneType, bool, float))
_SURE_BITS = 2_000  # of an integer that Python prints, whatever `sys.set_int_max_str_digits` says
_SURE_DEPTH = 64
_DEEPEST = 20_000  # deeper than any Python lets `json` go
_MOST_TOLISTS = 64
_NOTHING = object()
_ENCODING = locale.getpreferredencoding(False)
"""Of verl's `open(filename, "w")`: UTF-8, unless the user's locale says otherwise."""


def free(name: str, taken: Container[str]) -> str:
    """`name`, with as many `_` after it as tell it from those that are taken."""
    while name in taken:
        name += "_"
    return name


class JsonForm:
    """The values of one reward key as `json` writes them.

    Args:
        tell: called with what is odd about a value, to be read after its key, as `holds a set, which ...`.
        dates_as_text: whether NumPy's dates and times are text; else they are what their `tolist` gives.
    """

    def __init__(self, tell: Callable[[str], None], dates_as_text: bool = True) -> None:
        self._tell = tell
        self._dates_as_text = dates_as_text
        self._repeated = 0

    def column(self, values: Iterable[Any]) -> list[Any]:
        """One value per row."""
        listed = list(values)
        return listed if _is_plain(listed) else [self.value(value) for value in listed]

    def value(self, value: Any) -> Any:
        """As `json` writes it; what JSON has no form for is text."""
        self._repeated = 0
        try:
            found = self._read(value)
            if not isinstance(found, _Parts):
                return found
            if found.left is not None:
                self._walk(found)
        except _NotWritableError as error:
            text = f"<{_name_of(value)}>"
            self._tell(f"holds {error}; it is written as {text!r}")
            return text
        return found.written

    def name(self, key: Any, taken: Container[str] = ()) -> str:
        """The name that `json` writes for a key, or its text where `json` refuses it; none of those that are taken."""
        kind = type(key)
        if issubclass(kind, str):
            name = self._text(key)
        elif issubclass(kind, int) and not _prints(key):
            name = hex(key)
        elif issubclass(kind, int | float | NoneType):
            name = json.dumps(key)
        else:
            name = self._text(_str_of(key))
        return free(name, taken)

    def _walk(self, top: _Parts) -> None:
        """Write all parts, without recursion: `json` goes deeper than Python's own functions can."""
        known = {id(top.source): top}
        path: list[tuple[str | None, _Parts]] = [(None, top)]
        while path:
            name, parts = path[-1]
            for inner, item in parts.left or ():
                found = known.get(id(item))
                if found is None:
                    found = self._read(item)
                    if not isinstance(found, _Parts):
                        parts.put(inner, found)
                        continue
                    known[id(item)] = found
                    if found.left is not None:
                        path.append((inner, found))
                        break
                elif found.left is not None:
                    self._tell(f"holds a circular reference, which JSON cannot; it is written as {CIRCULAR!r}")
                    parts.put(inner, CIRCULAR)
                    continue
                else:
                    self._repeat(found.size)
                parts.put_part(inner, found)
            else:
                path.pop()
                parts.left = None
                if path:
                    path[-1][1].put_part(name, parts)
            if len(path) > _DEEPEST:
                raise _NotWritableError("parts within parts without end")
        if top.depth > _SURE_DEPTH and not _writes_as_deep(1 + top.depth):  # the line is a dict, too
            raise _NotWritableError(f"parts within parts, {top.depth:,} deep, which JSON cannot")

    def _repeat(self, values: int) -> None:
        self._repeated += values
        if self._repeated > MOST_REPEATED:
            raise _NotWritableError(f"parts that repeat: more than {MOST_REPEATED:,} values, if each is written")

    def _read(self, value: Any) -> Any:
        """A leaf as JSON has it, or the `_Parts` of what it has as an array or an object."""
        simple = value
        try:
            for _ in range(_MOST_TOLISTS):
                kind = type(simple)
                if kind in _AS_IT_IS:
                    return simple
                if issubclass(kind, str):
                    return self._text(simple)
                if issubclass(kind, int):
                    return self._integer(simple)
                if issubclass(kind, float):
                    return float.__pos__(simple)  # as `json`, whatever a subclass makes of it
                if issubclass(kind, dict):
                    return self._object(value, simple)
                if issubclass(kind, list):
                    return self._array(value, simple, list.__len__(simple))
                if issubclass(kind, tuple):
                    return self._array(value, simple, tuple.__len__(simple))
                simple = self._simpler(simple, kind)
                if simple is _NOTHING:
                    break
        except (_NotWritableError, KeyboardInterrupt):
            raise
        except BaseException as error:  # whatever a user's own class raises: verl ends the run for it
            return self._as_text(value, f", and raises {_name_of(error)}")
        return self._as_text(value)

    def _simpler(self, value: Any, kind: type) -> Any:
        """What a value that is none of JSON's own kinds says that it holds, or `_NOTHING`."""
        if issubclass(kind, np.floating):
            return float(value)
        if self._dates_as_text and issubclass(kind, np.datetime64 | np.timedelta64):
            return _NOTHING
        if self._dates_as_text and issubclass(kind, np.ndarray) and value.dtype.kind in "mM":
            return list(value) if value.ndim else value[()]
        elements = _elements(value, kind)
        if elements > MOST_REPEATED:
            return _NOTHING
        self._repeat(elements)
        if callable(tolist := getattr(value, "tolist", None)):
            return tolist()
        return _all_of(value, elements) if _is_sequence(kind) else _NOTHING

    def _array(self, source: Any, sequence: Any, length: int) -> _Parts:
        items = _all_of(sequence, length)
        if _is_plain(items):
            return _Parts(source, items, None)
        return _Parts(source, [], zip(repeat(None), items, strict=False))

    def _object(self, source: Any, mapping: Any) -> _Parts:
        named: dict[str, Any] = {}
        for key, item in _all_of(mapping.items(), dict.__len__(mapping)):
            is_plain = type(key) is str and key.isascii() and key not in named
            named[key if is_plain else self.name(key, named)] = item
        if _is_plain(named.values()):
            return _Parts(source, named, None)
        return _Parts(source, {}, iter(named.items()))

    def _text(self, text: str) -> str:
        text = str.__str__(text)
        if _is_encodable(text):
            return text
        self._tell("holds half a character; it is written escaped")
        return text.encode(_ENCODING, "backslashreplace").decode(_ENCODING)

    def _integer(self, number: int) -> int | str:
        number = int.__pos__(number)
        if _prints(number):
            return number
        self._tell("holds an integer of more digits than Python prints; it is written in hexadecimal, as text")
        return hex(number)

    def _as_text(self, value: Any, why: str = "") -> str:
        self._tell(f"holds a {_name_of(value)}, which JSON cannot{why}; it is written as text")
        return self._text(_str_of(value))


class _NotWritableError(Exception):
    """Why a value is not written part by part; the message goes on after `holds`."""


class _Parts:
    """A list or a dict on its way into JSON: what is left of it, and what is written, how much that is and how deep."""

    __slots__ = ("depth", "left", "size", "source", "written")

    def __init__(self, source: Any, written: Any, left: Iterator[tuple[Any, Any]] | None) -> None:
        self.source = source  # kept alive, since it is known by its id
        self.written = written
        self.left = left  # None as soon as all is written
        self.size = 1 + len(written)
        self.depth = 1

    def put(self, name: str | None, value: Any) -> None:
        """Write a leaf: under its name in a dict, at the end of a list."""
        if name is None:
            self.written.append(value)
        else:
            self.written[name] = value
        self.size += 1

    def put_part(self, name: str | None, part: _Parts) -> None:
        """The same for a part of which all is written."""
        self.put(name, part.written)
        self.size += part.size - 1
        self.depth = max(self.depth, 1 + part.depth)


# --- what the form asks about a value ----------------------------------------------------------------------------


def _is_plain(values: Collection[Any]) -> bool:
    """Whether `json` writes all of them as they are."""
    kinds = set(map(type, values))
    if kinds <= _AS_IT_IS:
        return True
    if not kinds <= _PLAIN.keys():
        return False
    return all(_PLAIN[type(value)](value) for value in values)


def _is_encodable(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode(_ENCODING)
    except UnicodeEncodeError:
        return False
    return True


def _prints(number: int) -> bool:
    """Whether Python makes digits of an integer: of more than 4,300 it does not, and `json` raises."""
    if int.bit_length(number) < _SURE_BITS:
        return True
    try:
        int.__repr__(number)
    except ValueError:
        return False
    return True


_PLAIN: dict[type, Callable[[Any], bool]] = {
    **dict.fromkeys(_AS_IT_IS, lambda value: True),
    int: _prints,
    str: _is_encodable,
}
"""The kinds of leaves of JSON, and whether one is written as it is."""


def _is_sequence(kind: type) -> bool:
    """Whether values of this type are sequences of values, as a range or a deque is; not those of bytes."""
    return issubclass(kind, Sequence) and not issubclass(kind, bytes | bytearray | memoryview)


def _elements(value: Any, kind: type) -> int:
    """How many values there will be of one that says so before it is made a list."""
    if issubclass(kind, np.ndarray):
        return int(value.size)
    if is_tensor(kind):
        return int(value.numel())
    return len(value) if _is_sequence(kind) else 1


def _all_of(items: Iterable[Any], stored: int) -> list[Any]:
    """What an object says that it holds: of a class of the user's own, this may have no end."""
    most = max(stored, MOST_REPEATED)
    found = list(islice(items, most + 1))
    if len(found) > most:
        raise _NotWritableError("parts without end")
    return found


def _writes_as_deep(depth: int) -> bool:
    """Whether `json` does here, which is deeper in Python's own calls than verl's call of it."""
    nested: list[Any] = []
    for _ in range(depth):
        nested = [nested]
    try:
        json.dumps(nested)
    except RecursionError:
        return False
    return True


def _str_of(value: Any) -> str:
    try:
        return str(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return f"<{_name_of(value)} whose text raises {_name_of(error)}>"


def _name_of(value: Any) -> str:
    """The name of its type, past whatever a metaclass makes of it."""
    return bare(_TYPE_NAME.__get__(type(value)))


_TYPE_NAME: Any = vars(type)["__name__"]
