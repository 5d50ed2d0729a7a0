"""A scorer that goes wrong outside of the reward worker's event loop, where its caller hears of it by a future only."""

import pytest
from test_faults import REFUSED, Paths, assert_right, on_both_paths

pytestmark = [pytest.mark.ray, pytest.mark.slow]

IN_THREADS = ["reward.custom_reward_function.name=as_told_in_a_thread"]
PLACES = {
    "in a thread": IN_THREADS,
    "in a process of its own": [*IN_THREADS, "reward.reward_manager.name=remote", "reward.num_workers=1"],
}


@pytest.fixture(scope="module", params=PLACES)
def paths(request, model_dir, rows):
    paths = Paths(model_dir, rows, PLACES[request.param])
    yield paths
    paths.release()


@on_both_paths
@pytest.mark.parametrize("wrong", ["raises", "raises StopIteration"])
def test_a_scorer_that_goes_wrong_is_named_and_the_next_batch_is_right(wrong, path, paths):
    error, message = REFUSED[wrong]
    with pytest.raises(error, match=message):
        getattr(paths, path)(paths.told(wrong={4: wrong}))
    assert_right(getattr(paths, path)(paths.rows), paths.rows)
