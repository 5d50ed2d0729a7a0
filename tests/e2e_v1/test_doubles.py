"""The scorer that the runs of the v1 trainer use, in several threads as verl's reward worker runs it."""

import gc
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from e2e_v1.stock import STOCK

if STOCK is None:
    pytest.skip("verl before 0.8 has no trainer on TransferQueue", allow_module_level=True)

from e2e_v1 import doubles


@pytest.fixture
def collected_while_reading():
    """The garbage collector runs in the midst of each syntax tree, and lets other threads run."""

    def collect(phase, info):
        frame = sys._getframe().f_back
        if phase == "start" and frame is not None and frame.f_code.co_name == "parse":
            time.sleep(0.001)

    before = gc.get_threshold()
    gc.callbacks.append(collect)
    gc.set_threshold(4)
    yield
    gc.set_threshold(*before)
    gc.callbacks.remove(collect)


def test_answers_that_several_threads_score_at_once_earn_what_they_say(collected_while_reading):
    answer = "{'score': 1.0, 'judge': 'good', 'steps': [1, 2, {'of': 3}]}"
    with ThreadPoolExecutor(4) as threads:
        earned = list(threads.map(lambda _: doubles.as_answered("planned", answer, "none", {}), range(40)))
    assert earned == [{"score": 1.0, "judge": "good", "steps": [1, 2, {"of": 3}]}] * 40
