"""On real Ray: rows of one schema, whatever their values, come back from both managers as from verl's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray
import values
from actors import release
from compared import assert_same_columns, carried_by_stock, columns_of_all_families, rows_of
from hypothesis import HealthCheck, given, settings
from in_process_actors import row

from verl_ext.demo import rig

pytestmark = pytest.mark.ray
ray.cloudpickle.register_pickle_by_value(values)  # which Ray's processes cannot import


class Managers:
    """verl's managers, with two workers of each kind."""

    def __init__(self, model_dir):
        self.config = rig.compose_config(
            model_dir,
            [
                f"reward.custom_reward_function.path='{Path(__file__).with_name('answers.py')}'",
                "reward.custom_reward_function.name=as_the_row_says",
            ],
        )
        self.rewards = rig.reward_loop_manager(self.config)
        client = rig.RecordedClient([row(number) for number in range(2)], self.config)
        self.loops = rig.agent_loop_manager(self.config, client, self.rewards.reward_loop_workers)

    def columns(self, emitted):
        """By path, the columns of the reward keys."""
        rows = [row(number, emit=emit) for number, emit in enumerate(emitted)]
        batches = {
            "reward loop": self.rewards.compute_rm_score(rig.scored_batch(rows, self.config)),
            "agent loop": self.loops.generate_sequences(rig.prompt_batch(rows)),
        }
        return {
            path: {key: batch.non_tensor_batch[key] for key in batch.meta_info["reward_extra_keys"]}
            for path, batch in batches.items()
        }


@pytest.fixture(scope="module")
def managers(ray_session, model_dir):
    managers = Managers(model_dir)
    yield managers
    release(managers.loops)
    release(managers.rewards)


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(columns_of_all_families(2))
def test_uniform_rows_come_back_from_both_managers_as_on_stock_verl(managers, stock, columns):
    carried = carried_by_stock(columns)
    emitted = [{"score": 0.5, **row} for row in rows_of(carried)]
    ours = managers.columns(emitted)
    with stock():
        theirs = managers.columns(emitted)
    for path, their_columns in theirs.items():
        assert_same_columns(ours[path], their_columns, carried)
