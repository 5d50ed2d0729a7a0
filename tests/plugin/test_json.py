"""Any value as `json` writes it: numbers as numbers at any depth, and text for what JSON has no form for."""

import array
import collections
import dataclasses
import datetime
import json
import math
import sys
import types
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.plugin import _json
from verl_ext.plugin._json import CIRCULAR, MOST_REPEATED, JsonForm, free


@pytest.fixture
def told():
    return []


@pytest.fixture
def written(told):
    """A function from a value to what is read of it, once `json` has written it into a file in UTF-8."""

    def write(value, **options):
        text = json.dumps(JsonForm(told.append, **options).value(value), ensure_ascii=False)
        return json.loads(text.encode())

    return write


class Steps(list):
    pass


class Celsius(float):
    __repr__ = __float__ = __str__ = lambda self: "hot"


class Count(int):
    __repr__ = __index__ = __str__ = lambda self: "many"


Turns = collections.namedtuple("Turns", "first second")


# --- what JSON has a form for ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.float16(0.5), 0.5),
        (np.longdouble(1) / 3, 1 / 3),  # as verl's v1 dump rounds it
        (np.int64(3), 3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array(2.5), 2.5),
        (np.array([[1, 2]]), [[1, 2]]),
        (np.array([0.5], np.longdouble), [0.5]),
        (np.array([{"a": np.int8(1)}, None], object), [{"a": 1}, None]),
        (np.array([(1, 0.5)], [("a", int), ("b", float)]), [[1, 0.5]]),
        (np.ma.masked_array([0.5, 1.5], [True, False]), [None, 1.5]),
        (torch.tensor(2), 2),
        (torch.tensor([1.0, 2.0], requires_grad=True), [1.0, 2.0]),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        ({"tokens": np.int64(7), "deep": [{"ok": np.bool_(False)}]}, {"tokens": 7, "deep": [{"ok": False}]}),
        ((1, "a", None), [1, "a", None]),
        (Turns(1, 2), [1, 2]),
        (Steps([1, Steps()]), [1, []]),
        (torch.Size([2, 3]), [2, 3]),
        (range(3), [0, 1, 2]),
        (collections.deque([0.5, np.int8(1)]), [0.5, 1]),
        (collections.UserList([1]), [1]),
        (array.array("d", [0.5]), [0.5]),
        (pd.Series([0.5, 1.5]), [0.5, 1.5]),
        (memoryview(b"ab"), [97, 98]),
        (collections.OrderedDict(a=1), {"a": 1}),
        (collections.defaultdict(list, {"a": [1]}), {"a": [1]}),
        (Celsius(0.5), 0.5),
        (Count(3), 3),
        ({1: "a", (2, 3): "b"}, {"1": "a", "(2, 3)": "b"}),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_numbers_are_numbers_at_any_depth_and_what_is_like_a_list_is_a_list(value, expected, written, told):
    found = written(value)
    assert found == expected
    assert type(found) is type(expected)
    assert told == []


SIMPLE = st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats(allow_nan=False) | st.text(max_size=3)
NAMES = st.text(max_size=2) | st.integers(-2, 2) | st.floats(allow_nan=False) | st.none() | st.booleans()
JSON = st.recursive(
    SIMPLE,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(NAMES, inner, max_size=3)
    ),
    max_leaves=12,
)


@given(value=JSON)
def test_what_json_writes_by_itself_is_written_to_the_letter(value):
    told = []
    ours = json.dumps(JsonForm(told.append).value(value), ensure_ascii=False)
    theirs = json.dumps(value, ensure_ascii=False)
    if list_of_names(value) is not None:  # two keys that json spells alike are two names with us
        assert ours == theirs
    assert told == []


def list_of_names(value):
    """All names in a value, or `None` where a dict in it has two keys that `json` spells alike."""
    if isinstance(value, dict):
        names = [json.loads(json.dumps({key: 0})).popitem()[0] for key in value]
        inner = list_of_names(list(value.values()))
        return names if len(set(names)) == len(names) and inner is not None else None
    if isinstance(value, list | tuple):
        return None if any(list_of_names(item) is None for item in value) else []
    return []


def test_nan_and_infinities_are_written_as_python_writes_them(written):
    assert math.isnan(written(float("nan")))
    assert written([np.float32("inf"), torch.tensor(-math.inf)]) == [math.inf, -math.inf]


def test_keys_are_spelt_as_json_spells_them_and_two_never_become_one(written, told):
    keys = {None: 1, True: 2, 1.5: 3, 2: 4, "2": 5, math.nan: 6, np.int64(7): 7, datetime.date(2026, 1, 2): 8}
    expected = {"null": 1, "true": 2, "1.5": 3, "2": 4, "2_": 5, "NaN": 6, "7": 7, "2026-01-02": 8}
    assert written(keys) == expected
    assert told == []


def test_a_free_name_is_none_of_those_that_are_taken():
    assert [free("a", ()), free("a", {"a"}), free("a", {"a", "a_"})] == ["a", "a_", "a__"]


# --- what it has none for ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text", "kind"),
    [
        (1j, "1j", "complex"),
        (np.complex64(1j), "1j", "complex64"),
        ({1}, "{1}", "set"),
        (b"x", "b'x'", "bytes"),
        (np.bytes_(b"x"), "b'x'", "bytes_"),
        (Decimal("0.5"), "0.5", "Decimal"),
        (Fraction(1, 4), "1/4", "Fraction"),
        (datetime.date(2026, 1, 2), "2026-01-02", "date"),
        (pd.Timestamp("2026-01-02"), "2026-01-02 00:00:00", "Timestamp"),
        (np.datetime64("2026-01-02"), "2026-01-02", "datetime64"),
        (np.datetime64(1, "ns"), "1970-01-01T00:00:00.000000001", "datetime64"),
        (np.timedelta64(3, "ns"), "3 nanoseconds", "timedelta64"),
        (np.ndarray, "<class 'numpy.ndarray'>", "type"),  # has a `tolist`, which raises
        (torch.empty(2, device="meta"), "tensor(..., device='meta', size=(2,))", "Tensor"),
        (range(10**12), "range(0, 1000000000000)", "range"),
        (range(10**30), f"range(0, {10**30})", "range"),
        (types.MappingProxyType({"a": 1}), "{'a': 1}", "mappingproxy"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_json_cannot_hold_is_text_at_any_depth_and_said(value, text, kind, written, told):
    assert written(value) == text
    assert written([{"a": value}]) == [{"a": text}]
    assert all(what.startswith(f"holds a {kind}, which JSON cannot") for what in told)
    assert len(told) == 2


def test_a_sparse_tensor_is_text_and_an_array_of_dates_a_list_of_texts(written):
    assert "indices" in written(torch.eye(2).to_sparse())
    assert written(np.array([1, 2], "datetime64[ns]")) == [f"1970-01-01T00:00:00.00000000{n}" for n in (1, 2)]


def test_dates_are_what_their_tolist_says_where_the_dump_of_stock_verl_writes_that(written):
    values = [np.datetime64(1, "ns"), np.timedelta64(3, "ns"), np.array([1, 2], "datetime64[ns]")]
    assert written(values, dates_as_text=False) == [1, 3, [1, 2]]
    assert written(np.datetime64("2026-01-02"), dates_as_text=False) == "2026-01-02"


@pytest.mark.parametrize("number", [10**5000, -(10**5000), Count(10**5000)], ids=["long", "negative", "subclass"])
def test_an_integer_that_python_does_not_print_is_hexadecimal_text(number, written, told):
    assert int(written([number])[0], 16) == int.__pos__(number)
    assert list(written({number: 1})) == [hex(int.__pos__(number))]
    assert len(told) == 1


def test_half_a_character_is_escaped_in_texts_and_names(written, told):
    assert written(["a\ud800", {"b\udfff": "c"}]) == ["a\\ud800", {"b\\udfff": "c"}]
    assert set(told) == {"holds half a character; it is written escaped"}


def test_what_the_encoding_of_the_users_locale_lacks_is_escaped(monkeypatch):
    monkeypatch.setattr(_json, "_ENCODING", "latin-1")
    assert JsonForm(lambda what: None).value(["é", "日"]) == ["é", "\\u65e5"]


# --- what refers to itself, repeats, or has no end ---------------------------------------------------------------


def test_a_value_that_refers_to_itself_is_written_but_for_the_reference(written, told):
    node = {"name": "root", "children": []}
    node["children"] += [{"name": name, "parent": node} for name in "ab"]
    assert written(node) == {
        "name": "root",
        "children": [{"name": "a", "parent": CIRCULAR}, {"name": "b", "parent": CIRCULAR}],
    }
    twice = []
    twice += [twice, twice]
    assert written([twice, 1]) == [[CIRCULAR, CIRCULAR], 1]
    through_an_array = np.empty(1, object)
    through_an_array[0] = {"again": through_an_array}
    assert written(through_an_array) == [{"again": CIRCULAR}]
    assert set(told) == {"holds a circular reference, which JSON cannot; it is written as '(circular reference)'"}


def test_a_graph_in_which_everything_refers_to_everything_is_told_as_circular_and_takes_no_longer_than_its_size(
    written, told
):
    nodes = [{"name": number} for number in range(400)]
    for node in nodes:
        node["friends"] = list(nodes)  # 400! ways through it
    assert written(nodes[0]) == "<dict>"
    assert "circular reference" in told[0]


def test_a_part_that_several_places_share_is_written_at_each_as_json_does(written, told):
    row = [0.5, "a", {"b": None}]
    shared = [row, {"again": row, "more": [row] * 100}]
    assert written(shared) == json.loads(json.dumps(shared))
    assert told == []


def test_parts_that_repeat_beyond_what_json_can_write_are_one_text(written, told):
    doubled = [0]
    for _ in range(100):
        doubled = [doubled, doubled]
    assert written(doubled) == "<list>"
    assert told == [
        "holds parts that repeat: more than 16,777,216 values, if each is written; it is written as '<list>'"
    ]


def test_a_large_value_that_repeats_nothing_is_written(monkeypatch, written, told):
    monkeypatch.setattr(_json, "MOST_REPEATED", 100)
    large = {"rows": [[number, str(number)] for number in range(200)]}
    assert written(large) == large
    assert told == []
    assert written({"few": range(100), "many": range(101)}) == {"few": list(range(100)), "many": "range(0, 101)"}
    assert written([np.zeros(60), np.zeros(60)]) == "<list>"


@pytest.mark.parametrize("depth", [64, 65, 900])
def test_what_json_writes_however_deep_is_written(depth, written, told):
    nested = 0.5
    for level in range(depth):
        nested = {"deeper": nested} if level % 2 else [nested, np.int64(level)]
    found = written(nested)
    for level in reversed(range(depth)):
        found = found["deeper"] if level % 2 else found[0]
    assert found == 0.5
    assert told == []


@pytest.mark.parametrize("depth", [sys.getrecursionlimit() + 100, 50_000])
def test_what_is_too_deep_for_json_is_one_text(depth, written, told):
    nested = [0.5]
    for _ in range(depth):
        nested = [nested]
    if fails_on_stock(nested):
        assert written([nested, 1]) == "<list>"
        assert len(told) == 1


def fails_on_stock(value):
    try:
        json.dumps(value)
    except RecursionError:
        return True
    return False


class Fresh:
    """Something that holds ever more of its kind."""

    def tolist(self):
        return [Fresh(), Fresh()]


class Endless(list):
    def __iter__(self):
        while True:
            yield 1


class EndlessDict(dict):
    def items(self):
        return ((str(number), number) for number in iter(int, 1))


class Itself:
    def tolist(self):
        return self


@pytest.mark.parametrize(
    ("value", "text"), [(Fresh(), "<Fresh>"), (Endless([1]), "<Endless>"), (EndlessDict(a=1), "<EndlessDict>")]
)
def test_what_has_no_end_is_one_text(value, text, written, told, monkeypatch):
    monkeypatch.setattr(_json, "MOST_REPEATED", 10_000)
    assert written(value) == text
    assert len(told) == 1


def test_what_is_its_own_list_is_text(written):
    assert "Itself object" in written([Itself()])[0]


# --- what raises -------------------------------------------------------------------------------------------------

RAISED = [ValueError("no"), SystemExit(), GeneratorExit(), MemoryError(), RecursionError(), StopIteration()]


def raising(error, *names, base=object):
    """A class whose methods raise."""

    def method(*_, **__):
        raise error

    return type("Bad", (base,), dict.fromkeys(names, method))


@pytest.mark.parametrize("error", RAISED, ids=repr)
def test_what_raises_when_it_is_looked_at_is_text_that_says_so(error, written, told):
    name = type(error).__name__
    assert written(raising(error, "__str__", "__repr__")()) == f"<Bad whose text raises {name}>"
    assert written(raising(error, "tolist", "__str__")()) == f"<Bad whose text raises {name}>"
    assert written({raising(error, "__str__")(): 1}) == {f"<Bad whose text raises {name}>": 1}
    assert written(raising(error, "items", base=dict)(a=1)) == "{'a': 1}"
    assert written([raising(error, "__iter__", base=list)([1])]) == ["[1]"]
    assert any(f"and raises {name}" in what for what in told)


def test_ctrl_c_is_not_kept_from_a_process(written):
    with pytest.raises(KeyboardInterrupt):
        written(raising(KeyboardInterrupt(), "__str__")())


class Meta(type):
    @property
    def __name__(cls):
        raise ValueError("no name")


class Nameless(metaclass=Meta):
    @property
    def __class__(self):
        raise ValueError("no class")

    def __getattr__(self, name):
        raise ValueError("no attribute")

    def __str__(self):
        return "nameless \ud800"


def test_a_class_that_hides_what_it_is_is_text(written, told):
    assert written([Nameless()]) == ["nameless \\ud800"]
    assert told[0].startswith("holds a Nameless, which JSON cannot")


@dataclasses.dataclass
class Odd:
    """A value that does another thing each time."""

    chance: object

    def __getattr__(self, name):
        return getattr(super(), name) if name.startswith("__") else self.chance.draw(ODD_ANSWERS)


ODD_ANSWERS = st.sampled_from([None, 1, lambda: [1], lambda: {"a": [b"x"]}, lambda: 1 / 0, print])


@given(data=st.data(), value=st.recursive(SIMPLE, lambda inner: st.lists(inner, max_size=3), max_leaves=5))
def test_whatever_its_attributes_are_a_value_is_written(data, value):
    form = JsonForm(lambda what: None)
    json.dumps(form.value([value, Odd(data), {1: Odd(data)}])).encode()


def test_a_column_is_handed_on_as_it_is_where_json_writes_it_so(told):
    form = JsonForm(told.append)
    for values in ([1.0, None, True], ["a", "é"], [1, True], []):
        assert form.column(values) == values
    assert form.column(np.array([1, 2])) == [1, 2]
    assert form.column(np.array([[0.5], [1.5]])) == [[0.5], [1.5]]
    assert told == []
    assert MOST_REPEATED == 2**24
