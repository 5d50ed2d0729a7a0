"""Generated rewards, of every kind that a scorer might return, through the real reward loop and the real agent loop.

Each batch comes back with every value at its row, or a named error says why not. `make soak` sends ten thousand.
"""

import os
import pickle
from collections import Counter

import pytest
import rollouts
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from oracle import keys_of
from rollouts import emitting, prompts
from slow_schema import slowly_assembled
from strategies import alike, reward_rows, reward_values

from verl_ext import FieldCollisionError
from verl_ext.demo import rig

pytestmark = pytest.mark.ray

BATCHES = int(os.environ.get("VERL_EXT_BATCHES", "150"))
MOST_ROWS = 6
TAKEN = ("responses", "attention_mask")
"""Reward keys that name a tensor on either path."""


@pytest.fixture(scope="module")
def loops(model_dir, rows):
    loops = rollouts.Rollouts(model_dir, rows, workers=2)
    yield loops
    loops.release()


@pytest.fixture(scope="module")
def paths(loops):
    """By name: a function from rows with their rewards to the batch that verl's manager makes of them."""

    def agent_loop(scorers, agent):
        def generate(rows):
            workers = 1 if len(rows) % 2 else 2  # verl gives each worker as many rows
            return loops.manager(workers, scorers=scorers).generate_sequences(prompts(rows, agent=agent))

        return generate

    return {
        "reward loop": lambda rows: loops.rewards.compute_rm_score(rig.scored_batch(rows, loops.config)),
        "agent loop, scored in it": agent_loop(loops.scorers, None),
        "agent loop, scored by itself": agent_loop((), "scores_itself"),
    }


@pytest.fixture(scope="module")
def count():
    """What was sent, said at the end."""
    count = Counter()
    yield count
    print(f"\n{count}")  # for `make soak`


@st.composite
def batches(draw):
    """Rows of a batch, at least one, of which some may return a key that is taken."""
    rows = draw(reward_rows(MOST_ROWS).filter(bool))
    # NumPy's own pickling drops a NUL at the end of its `str_`.
    assume(all(alike(row, pickle.loads(pickle.dumps(row))) for row in rows))  # noqa: S301
    if draw(st.integers(0, 9)) == 0:
        place = draw(st.integers(0, len(rows) - 1))
        rows[place] = {**(rows[place] or {}), draw(st.sampled_from(TAKEN)): draw(reward_values())}
    return rows


@pytest.mark.slow
@settings(max_examples=BATCHES, report_multiple_bugs=False)
@given(
    emitted=batches(), path=st.sampled_from(["reward loop", "agent loop, scored in it", "agent loop, scored by itself"])
)
@example(emitted=[{"acc": 1.0, "responses": 1}, None], path="reward loop")
def test_every_value_that_was_emitted_is_found_again_or_a_named_error_says_why_not(emitted, path, paths, rows, count):
    count[path] += 1
    sent = [emitting(row, emit) for row, emit in zip(rows, emitted, strict=False)]
    taken = [key for key in keys_of(emitted) if key in TAKEN]
    if taken:
        count["refused by name"] += 1
        with pytest.raises(FieldCollisionError) as refused:
            paths[path](sent)
        assert sorted(refused.value.collisions) == sorted(taken)
        return

    batch = paths[path](sent)

    assert batch.meta_info["reward_extra_keys"] == keys_of(emitted)
    expected = slowly_assembled(emitted)
    for key in keys_of(emitted):
        column = batch.non_tensor_batch[key]
        assert (column.dtype, column.shape) == (expected[key].dtype, expected[key].shape)
        for found, emit in zip(column, emitted, strict=True):
            assert alike(found, (emit or {}).get(key)), f"{key!r}: {found!r} for {emit!r}"
            count["values"] += key in (emit or {})
