"""What a reward worker answers, on its way to another process: it arrives as it is then, or is refused by name."""

import copy
import pickle
import threading
import traceback

import pytest

pytest.importorskip("ray")

from verl_ext import NotSendableError
from verl_ext.plugin._sendable import refuse_unsendable, sendable


class Raises:
    """An object that does not pickle, in the way that its error says."""

    def __init__(self, error):
        self.error = error

    def __reduce__(self):
        raise self.error


class Evaluated(Raises):
    """An object that pickles, and on arrival is what this code makes of it."""

    def __reduce__(self):
        return eval, (self.error,)


class Unseen(Raises):
    def __repr__(self):
        raise SystemExit(3)


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("not to be said")


class WithLock(dict):
    def __init__(self, *args):
        super().__init__(*args)
        self.lock = threading.Lock()


def knot():
    found = [1.0]
    found.append(found)
    return found


def answer(row, score=1.0, **more):
    return {"reward_score": score, "reward_extra_info": row, **more}


@pytest.mark.parametrize(
    "row",
    [
        None,
        {},
        {"acc": 1.0, "pred": "42", "ok": True, "none": None, "bytes": b"x"},
        {"acc": 1.0, 7: 2, None: 3, True: 4, b"x": 5},
    ],
)
def test_an_answer_of_simple_values_is_handed_on_as_it_is(row):
    given = answer(row)
    assert sendable(given, "a sample") is given


@pytest.mark.parametrize("given", [answer({"k": knot()}), answer({}, knot()), answer({}, x=knot()), answer(knot())])
def test_what_holds_itself_arrives_in_a_plain_dict(given):
    found = pickle.loads(pickle.dumps(sendable(given, "a sample")))  # noqa: S301
    assert type(found) is dict
    assert repr(found) == repr(given)


def test_what_is_written_to_an_answer_later_travels_with_it():
    given = sendable(answer({"steps": [1]}), "a sample")
    given["reward_extra_info"]["latency"] = 1.5
    given["reward_extra_info"]["steps"].append(2)
    given["more"] = 3
    expected = answer({"steps": [1, 2], "latency": 1.5}, more=3)
    for found in (pickle.loads(pickle.dumps(given)), copy.copy(given), copy.deepcopy(given)):  # noqa: S301
        assert found == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (answer({"a": 1, "lock": threading.Lock()}), "the reward key 'lock' of a sample holds a lock .*cannot pickle"),
        (answer({"a": [{"b": threading.Lock()}]}), "the reward key 'a' of a sample holds a list"),
        (answer({threading.Lock(): 1}), "a reward key of a sample holds a lock"),
        (answer(WithLock({"a": 1})), "the reward info of a sample holds a WithLock"),
        (answer([threading.Lock()]), "the reward info of a sample holds a list"),
        (answer({}, threading.Lock()), "the field 'reward_score' of the answer for a sample holds a lock"),
        (answer({}, x=threading.Lock()), "the field 'x' of the answer for a sample holds a lock"),
        (answer({"v": Raises(SystemExit(3))}), "the reward key 'v' of a sample .*SystemExit: 3"),
        (answer({"v": Raises(KeyboardInterrupt())}), "the reward key 'v' of a sample .*KeyboardInterrupt"),
        (answer({"v": Raises(GeneratorExit())}), "the reward key 'v' of a sample .*GeneratorExit"),
        (answer({"a": 1, 7: threading.Lock()}), "the reward key 7 of a sample holds a lock"),
        (answer({None: threading.Lock(), "a": 1}), "the reward key None of a sample holds a lock"),
        (answer({"v": Evaluated("1 / 0")}), "the reward key 'v' of a sample .* send .*: ZeroDivisionError: division"),
        (answer({"v": [Evaluated("exit(3)")]}), "the reward key 'v' of a sample holds a list .*SystemExit: 3"),
        (answer({}, Evaluated("1 / 0")), "the field 'reward_score' of the answer for a sample .*ZeroDivisionError"),
        (
            answer({"v": Raises(MuteError())}),
            "the reward key 'v' of a sample .*MuteError: its text cannot be had \\(RuntimeError",
        ),
        (
            answer({"v": Unseen(TypeError("no"))}),
            "the reward key 'v' of .* whose repr raised SystemExit.* TypeError: no",
        ),
    ],
)
def test_what_does_not_reach_another_process_is_refused_by_its_key_its_sample_and_the_reason(given, message):
    with pytest.raises(NotSendableError, match=message):
        sendable(given, "a sample")


def test_a_reason_a_megabyte_long_and_hostile_is_cut_also_in_the_traceback():
    row = {"v": Raises(TypeError("\x1b[31mnope\n" * 100_000))}
    with pytest.raises(NotSendableError) as caught:
        refuse_unsendable(row, "a sample")
    told = "".join(traceback.format_exception(caught.value))
    assert str(caught.value).isprintable()
    assert "\x1b" not in told
    assert len(told) < 5_000
