"""Teaches the v1 trainer's replay buffer about a group filter (DAPO) whose metric some samples lack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl_ext.dump_fields import ABSTAINED
from verl_ext.errors import MissingRewardError
from verl_ext.plugin._abstain import as_a_scored_one, unscored
from verl_ext.plugin._site import Function, PatchSite
from verl_ext.plugin.trainer_v1 import column_of, put_column, reading, reward_rows, with_rewards
from verl_ext.settings import COMPARED, Settings, training_values

site = PatchSite(
    name="replay_buffer",
    module="verl.trainer.ppo.v1.replay_buffer",
    purpose="a group filter whose metric some samples lack ends the run without saying which data sources lack it",
)


@site.wraps("ReplayBuffer._dapo_filtered_keys", "self", "partition_id", vital=False)
def _dapo_filtered_keys(stock: Function) -> Function:
    def _dapo_filtered_keys(self: Any, partition_id: str) -> Any:
        metric, settings = self.filter_groups_metric, Settings.of(self.trainer_config)

        def fill(data: Any, keys: Sequence[str], partition_id: str) -> None:
            import transfer_queue as tq

            groups = [key.split("_")[0] for key in keys]  # as verl itself
            if "extra_fields" not in data.keys():  # the metric `reward`, which verl takes from the scores
                if settings.abstains:
                    _give_unscored_a_score(data, groups)
                return
            extra_fields = column_of(data, "extra_fields")
            rows = reward_rows(extra_fields)
            values = [row.get(metric) for row in rows]
            if settings.abstains:
                values = as_a_scored_one(values, [row.get(ABSTAINED) for row in rows], groups, 0.0)
            try:
                numbers = training_values(metric, values, settings, None, COMPARED)
            except MissingRewardError:
                sources = tq.kv_batch_get(keys=list(keys), partition_id=partition_id, select_fields=["data_source"])
                training_values(metric, values, settings, column_of(sources, "data_source"), COMPARED)
                raise
            rows = [{**row, metric: number} for row, number in zip(rows, numbers.tolist(), strict=True)]
            put_column(data, "extra_fields", with_rewards(extra_fields, rows))

        with reading(fill):
            return stock(self, partition_id)

    return _dapo_filtered_keys


def _give_unscored_a_score(data: Any, groups: Sequence[str]) -> None:
    """Put the score of a scored sample of the same group in the place of a missing one: the filter compares them."""
    import torch

    missing = unscored(data).tolist()
    if any(missing):
        scores = list(data["rm_scores"].unbind())
        told = as_a_scored_one(scores, missing, groups, torch.zeros_like(scores[0]))
        data["rm_scores"] = torch.nested.as_nested_tensor(told, layout=torch.jagged)
