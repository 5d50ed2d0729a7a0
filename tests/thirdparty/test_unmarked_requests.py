"""Workers that are asked otherwise than by verl's manager, which marks its requests: what they return is whole, too.

As it stands in a process of Ray's: `test_processes.py`.
"""

import numpy as np
import pytest
from verl import DataProto

from .actors import Handle
from .surroundings import (
    DAPO,
    GSM8K,
    AgentLoopWorker,
    assert_same_content,
    assert_whole,
    infos_of,
    loaded,
    lost,
    orders,
    outcome,
    prompts,
    rows_of,
)
from .workers import PromptByPrompt


@pytest.fixture(autouse=True)
def forwarded(monkeypatch):
    """This process has the variables that a driver with the plugin gives to its workers: it is both here."""
    from verl.trainer import constants_ppo

    for name, value in constants_ppo.get_ppo_ray_runtime_env()["env_vars"].items():
        if name.startswith("VERL_EXT_"):
            monkeypatch.setenv(name, value)


def prompt_by_prompt(verl, infos):
    """As the partial_rollout recipe: a worker rolls out the samples of one prompt, which are united one prompt at a
    time, and joined where there are enough."""
    worker, parts = verl.worker(PromptByPrompt), []
    for start in range(0, len(infos), 2):
        rows = rows_of(infos[start : start + 2], start)
        output = worker.generate_for_prompt.remote(prompts(rows)).get()
        output.meta_info.pop("metrics")
        parts.append(loaded(rows).union(output))
    return DataProto.concat(parts)


@pytest.mark.parametrize("order", orders(rows=4))
def test_all_orders_of_two_schemas_over_prompts_that_are_put_together_by_the_recipe_come_out_whole(order, verl):
    infos = infos_of(order)
    assert_whole(prompt_by_prompt(verl, infos), infos)


def test_on_stock_they_are_lost_or_an_assertion(verl, stock):
    with stock():
        assert lost(prompt_by_prompt(verl, [GSM8K, DAPO, GSM8K, GSM8K]), [GSM8K, DAPO, GSM8K, GSM8K]) != []
        assert isinstance(outcome(lambda: prompt_by_prompt(verl, [GSM8K, GSM8K, DAPO, DAPO])), AssertionError)


def directly(verl, infos):
    """As the async_flow recipe: the worker's own `generate_sequences`, by a manager that marks nothing."""
    return verl.worker(AgentLoopWorker).generate_sequences.remote(prompts(rows_of(infos))).get()


@pytest.mark.parametrize("infos", [[GSM8K, DAPO], [DAPO, GSM8K], [{}, DAPO]], ids=["short first", "long first", "none"])
def test_a_worker_that_is_called_directly_answers_with_aligned_columns_and_their_list(infos, verl):
    """Columns, not dicts that somebody else must finalize: who asks it so knows nothing of us."""
    assert_whole(directly(verl, infos), infos)


@pytest.mark.parametrize("infos", [[GSM8K] * 2, [DAPO] * 2, [{}] * 2], ids=["gsm8k", "dapo", "nothing"])
def test_one_schema_comes_out_of_such_requests_as_on_stock(infos, verl, stock):
    with stock():
        theirs = [directly(verl, infos), prompt_by_prompt(verl, infos * 2)]
    for ours, expected in zip([directly(verl, infos), prompt_by_prompt(verl, infos * 2)], theirs, strict=True):
        assert_same_content(ours, expected)


def test_one_answer_to_each_of_two_direct_calls_is_joined(verl):
    parts = [directly(verl, [GSM8K]), directly(verl, [DAPO])]
    for part in parts:
        part.meta_info.pop("metrics")
    assert_whole(DataProto.concat(parts), [GSM8K, DAPO])


class Borrows:
    """A manager that calls verl's `_postprocess` as a function, as nemo_gym does; it is no worker."""

    reward_loop_worker_handles = None

    def __init__(self, verl):
        self.worker = Handle(lambda: PromptByPrompt(verl.config, verl.client, None, [verl.scorer]))
        self.samples = []

    def generated(self, infos):
        """The samples come from a worker of verl's, and are put together here."""

        def keep(worker, inputs, *args, **kwargs):
            kept.extend(inputs)
            return DataProto.from_dict(non_tensors={"none": np.zeros(1)})

        kept = []
        self.worker.__ray_call__.remote(
            lambda worker: setattr(worker, "_postprocess", lambda inputs, **_: keep(worker, inputs))
        ).get()
        self.worker.generate_for_prompt.remote(prompts(rows_of(infos))).get()
        return AgentLoopWorker._postprocess(self, kept, input_non_tensor_batch={}, validate=False)


@pytest.mark.parametrize("infos", [[GSM8K, DAPO], [DAPO, GSM8K]], ids=["the short schema first", "the long one first"])
def test_postprocess_that_is_borrowed_by_a_class_that_is_no_worker_returns_every_key(infos, verl):
    assert_whole(Borrows(verl).generated(infos), infos)


def test_postprocess_that_is_borrowed_does_for_one_schema_what_it_does_on_stock(verl, stock):
    with stock():
        theirs = Borrows(verl).generated([DAPO, DAPO])
    assert_same_content(Borrows(verl).generated([DAPO, DAPO]), theirs)


def test_samples_that_a_recipe_scores_itself_one_by_one_come_as_the_plain_dicts_of_the_reward_worker(verl, stock):
    """As reward_queue and uni-agent ask the reward worker: nothing of ours may show in what it answers."""
    output = verl.manager(scores=False).generate_sequences(prompts(rows_of([DAPO])))
    output.non_tensor_batch["extra_info"][0] = rows_of([DAPO])[0]["extra_info"]
    with stock():
        theirs = verl.scorer.compute_score.remote(output).get()
    ours = verl.scorer.compute_score.remote(output).get()
    assert ours == theirs == {"reward_score": 0.0, "reward_extra_info": DAPO}
    assert type(ours) is dict
