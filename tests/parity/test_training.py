"""Advantages, their metrics and group filters over whatever a scorer returns: verl's own functions beside ours.

Where verl trains on finite numbers, ours are the same advantages, bit for bit. What is no number to verl, or NaN in all
advantages of a group, is an error that names the sample.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from on_stock import on_stock
from queue_in_memory import QueueInMemory
from sites import covers
from strategies import objects
from tensordict import TensorDict
from values import FAMILIES, each_family
from verl.protocol import DataProto
from verl.trainer.ppo import core_algos, ray_trainer

from verl_ext import MissingRewardError, assemble_reward_extra_info, plugin
from verl_ext.plugin import main_ppo_sync, trainer_v1

pytestmark = pytest.mark.filterwarnings("ignore")  # NumPy's, of what it makes of such values

EXAMPLES = settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.too_slow])
ROWS, PROMPT, RESPONSE = 4, 2, 3


@pytest.fixture(autouse=True)
def active_plugin():
    plugin.activate()


def values_of(family: str) -> st.SearchStrategy[list[Any]]:
    return st.lists(FAMILIES[family], min_size=ROWS, max_size=ROWS)


def outcome(run: Any) -> tuple[Any, Exception | None]:
    try:
        return run(), None
    except Exception as error:
        return None, error


def as_verl_trains(values: list[Any]) -> np.ndarray | None:
    """The numbers that verl trains on: the column of its managers, in float32; `None` where it fails on the way."""
    try:
        numbers = np.asarray(np.array(values), dtype=np.float32)
    except Exception:
        return None
    return numbers if numbers.shape == (len(values),) else None


def same(one: Any, other: Any) -> bool:
    """Bit for bit, NaN for NaN."""
    return one.dtype == other.dtype and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()


def is_there(module: str) -> bool:
    """Whether the installed verl has this module."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def algorithm(**more: Any) -> Any:
    return OmegaConf.create({"algorithm": {"gdpo_reward_keys": ["form", "acc"], **more}}).algorithm


def trainer_of(estimator: str) -> SimpleNamespace:
    """What a v1 trainer looks up in itself when it computes advantages."""
    settings = {
        "adv_estimator": estimator,
        "gdpo_reward_keys": ["form", "acc"],
        "use_kl_in_reward": False,
        "gamma": 1.0,
        "lam": 0.9,
        "use_pf_ppo": False,
    }
    return SimpleNamespace(config=OmegaConf.create({"algorithm": settings, "actor_rollout_ref": {"rollout": {"n": 2}}}))


class KVBatch:
    """The samples of a step, by their keys in the queue."""

    partition_id = "train"

    def __init__(self, keys: list[str]) -> None:
        self.keys = keys
        self.tags: list[dict[str, Any]] = [{} for _ in keys]

    def __len__(self) -> int:
        return len(self.keys)


def tensors() -> dict[str, Any]:
    made = torch.Generator().manual_seed(7)
    drawn = {
        name: torch.rand(ROWS, RESPONSE, generator=made)
        for name in ("token_level_rewards", "values", "old_log_probs", "sum_pi_squared")
    }
    return {
        **drawn,
        "prompts": torch.zeros(ROWS, PROMPT),
        "responses": torch.zeros(ROWS, RESPONSE),
        "response_mask": torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]).float(),
        "attention_mask": torch.tensor([[1] * 5, [1] * 4 + [0], [1] * 3 + [0] * 2, [1] * 5]),
        "rm_scores": torch.rand(ROWS, RESPONSE, generator=made),
    }


def batch_of(columns: dict[str, Any]) -> DataProto:
    return DataProto(
        batch=TensorDict(tensors(), batch_size=ROWS),
        non_tensor_batch={"uid": objects("uuvv"), "acc": np.array([1.0, 0.0, 1.0, 0.5]), **columns},
        meta_info={},
    )


# --- GDPO --------------------------------------------------------------------------------------------------------


def gdpo(columns: dict[str, Any]) -> torch.Tensor:
    given = batch_of(columns)
    return core_algos.compute_gdpo_outcome_advantage(
        token_level_rewards=given.batch["token_level_rewards"],
        response_mask=given.batch["response_mask"],
        index=given.non_tensor_batch["uid"],
        config=algorithm(),
        non_tensor_batch=given.non_tensor_batch,
        batch=given.batch,
    )[0]


@covers("advantage", "compute_gdpo_outcome_advantage")
@each_family()
@EXAMPLES
@given(data=st.data())
def test_gdpo_trains_on_what_verl_makes_finite_numbers_of_and_refuses_the_rest_by_name(family, data):
    values = data.draw(values_of(family), label="values")
    ours, error = outcome(lambda: gdpo(assemble_reward_extra_info([{"form": value} for value in values])))
    numbers = as_verl_trains(values)
    if numbers is not None and np.isfinite(numbers).all():
        with on_stock():
            stock = gdpo({"form": np.array(values)})
        assert error is None, error
        assert same(ours, stock)
    elif numbers is not None:  # NaN in every advantage of the group
        assert isinstance(error, MissingRewardError)
    else:
        assert isinstance(error, MissingRewardError) or ours.isfinite().all()


# --- every estimator ---------------------------------------------------------------------------------------------


NEED_A_CONFIGURATION = ("gae", "grpo_passk", "reinforce_plus_plus")


@covers("trainer", "compute_advantage", "compute_timing_metrics")
@pytest.mark.parametrize("with_config", [True, False], ids=["config", "no config"])
@pytest.mark.parametrize("estimator", [*core_algos.ADV_ESTIMATOR_REGISTRY, core_algos.AdvantageEstimator.GDPO])
@EXAMPLES
@given(data=st.data())
def test_every_estimator_gives_verls_own_advantages_and_timing_metrics_however_it_is_called(
    estimator, with_config, data
):
    values = data.draw(st.sampled_from(sorted(FAMILIES)).flatmap(values_of), label="values")
    positional = data.draw(st.booleans(), label="positional")
    columns, error = outcome(lambda: {"form": np.array(values)})
    if error is not None:
        return  # stock verl has failed before
    if estimator == "gdpo" and with_config:
        numbers = as_verl_trains(values)
        if numbers is None or not np.isfinite(numbers).all():
            return  # the test above says what is done
    given = (1.0, 0.9, 2, True) if positional else ()
    config = {"config": algorithm(norm_adv_by_std_in_grpo=True, use_pf_ppo=False, gamma=0.9)} if with_config else {}

    def trained(columns: Any) -> tuple[Any, Any]:
        batch = batch_of(columns)
        if estimator == "remax":  # which alone takes them
            batch.batch["reward_baselines"] = torch.rand(ROWS, generator=torch.Generator().manual_seed(3))
        batch = ray_trainer.compute_advantage(batch, estimator, *given, **config)
        return batch, ray_trainer.compute_timing_metrics(batch, {"gen": 1.5, "adv": 0.25})

    ours, ours_error = outcome(lambda: trained(assemble_reward_extra_info([{"form": value} for value in values])))
    with on_stock():
        stock, error = outcome(lambda: trained(columns))
    assert (type(ours_error), str(ours_error)) == (type(error), str(error))
    assert stock is not None or (not with_config and estimator in NEED_A_CONFIGURATION), error
    if stock is not None:
        assert same(ours[0].batch["advantages"], stock[0].batch["advantages"])
        assert same(ours[0].batch["returns"], stock[0].batch["returns"])
        assert list(ours[0].batch.keys()) == list(stock[0].batch.keys())
        assert ours[1] == stock[1]


@covers("trainer", "compute_timing_metrics")
def test_timing_metrics_of_a_sparse_component_are_those_of_the_samples_that_have_it():
    batch = batch_of({"form": objects([0.5, None, 1.0, 0.0])})
    config = OmegaConf.create(
        {"algorithm": {"gdpo_reward_keys": ["form", "acc"]}, "verl_ext": {"fill": {"form": 9.0}}}
    ).algorithm
    batch = ray_trainer.compute_advantage(batch, "gdpo", config=config)
    ours = ray_trainer.compute_timing_metrics(batch, {"gen": 1.5})
    with on_stock():
        stock = ray_trainer.compute_timing_metrics(batch, {"gen": 1.5})
    added = {"gdpo/form/mean": 0.5, "gdpo/form/max": 1.0, "gdpo/form/min": 0.0}
    added["gdpo/form/std"] = float(np.std(np.array([0.5, 1.0, 0.0], dtype=np.float32)))
    assert ours == {**stock, **added}


# --- the v1 trainer, and its earlier form ------------------------------------------------------------------------

PREDECESSOR = "verl.trainer.main_ppo_sync"
FORMS = [form for form in ("verl.trainer.ppo.v1.trainer_base", PREDECESSOR) if is_there(form)]
"""The modules of this trainer that the installed verl has."""

in_each_form = pytest.mark.parametrize("module", FORMS, indirect=True)
KEYS = ["u_0_0", "u_1_0", "v_0_0", "v_1_0"]


@pytest.fixture(scope="module")
def module(request):
    return import_module(request.param)


def queue_of(values: list[Any]) -> QueueInMemory:
    """A queue with two prompts of two samples each, as the agent loop puts them there."""
    made, lengths = tensors(), (3, 2, 1, 3)
    queue = QueueInMemory()
    queue.partitions["train"] = {
        key: {
            "uid": key[0],
            "data_source": f"source {key[0]}",
            "prompts": torch.ones(PROMPT),
            **{
                name: made[name][row][: lengths[row]]
                for name in ("responses", "response_mask", "rm_scores", "values", "old_log_probs")
            },
            "extra_fields": {"reward_extra_info": {"form": values[row], "acc": row / 4}},
        }
        for row, key in enumerate(KEYS)
    }
    return queue


def stepped(module: Any, estimator: str, values: list[Any]) -> dict[str, dict[str, Any]]:
    """The samples in the queue, once the trainer has computed their advantages."""
    metrics: dict[str, Any] = {}
    with queue_of(values).in_place() as queue:
        module.PPOTrainer._compute_advantage(trainer_of(estimator), KVBatch(KEYS), metrics)
    assert metrics == {}
    return queue.partitions["train"]


@covers("trainer_v1", "PPOTrainer._compute_advantage", "tq.kv_batch_get")
@covers("main_ppo_sync", "PPOTrainer._compute_advantage", "tq.kv_batch_get")
@pytest.mark.parametrize("estimator", ["gae", "grpo", "rloo", "gpg", "opo", "reinforce_plus_plus_baseline"])
@in_each_form
@EXAMPLES
@given(data=st.data())
def test_a_v1_step_puts_verls_own_advantages_into_the_queue(module, estimator, data):
    values = data.draw(st.sampled_from(sorted(FAMILIES)).flatmap(values_of), label="values")
    ours = stepped(module, estimator, values)
    with on_stock():
        stock = stepped(module, estimator, values)
    for key in KEYS:
        assert ours[key].keys() == stock[key].keys() >= {"advantages", "returns"}
        assert all(same(ours[key][name], stock[key][name]) for name in ("advantages", "returns"))


@covers("trainer_v1", "PPOTrainer._compute_advantage", "compute_advantage_for_multi_trajectories")
@covers("main_ppo_sync", "PPOTrainer._compute_advantage", "compute_advantage_for_multi_trajectories")
@each_family()
@in_each_form
@EXAMPLES
@given(data=st.data())
def test_gdpo_in_a_v1_step_which_stock_verl_cannot_do_trains_as_verls_estimator_on_the_same_components(
    module, family, data
):
    values = data.draw(values_of(family), label="values")

    def trained() -> list[torch.Tensor]:
        samples = stepped(module, "gdpo", values)
        return [samples[key]["advantages"] for key in KEYS]

    ours, error = outcome(trained)
    numbers = as_verl_trains(values)
    with on_stock():
        assert isinstance(outcome(trained)[1], KeyError)
        if numbers is None or not np.isfinite(numbers).all():
            assert isinstance(error, MissingRewardError) or (numbers is None and torch.cat(ours).isfinite().all())
            return
        stock = core_algos.compute_gdpo_outcome_advantage(
            tensors()["rm_scores"],
            tensors()["response_mask"],
            objects("uuvv"),
            config=algorithm(),
            non_tensor_batch={"form": np.array(values), "acc": np.arange(4) / 4},
            batch=tensors(),
        )[0]
    assert error is None, error
    assert all(same(one, other[: len(one)]) for one, other in zip(ours, stock, strict=True))


@covers("trainer_v1", "compute_advantage_for_multi_trajectories")
@covers("main_ppo_sync", "compute_advantage_for_multi_trajectories")
@pytest.mark.parametrize("estimator", [*core_algos.ADV_ESTIMATOR_REGISTRY])
@pytest.mark.parametrize("how", ["by name", "by position", "without a configuration"])
@in_each_form
def test_sessions_of_several_outputs_get_verls_own_advantages_however_the_function_is_called(module, how, estimator):
    config = algorithm(norm_adv_by_std_in_grpo=True, use_pf_ppo=False, gamma=0.9)

    def computed() -> DataProto:
        batch = batch_of({"form": np.array([0.5, 1.0, 0.0, 0.25])})
        if estimator == "remax":
            batch.batch["reward_baselines"] = torch.full((ROWS,), 0.5)
        compute, keys = module.compute_advantage_for_multi_trajectories, ["u_0_0", "u_0_1", "u_1_0", "v_0_0"]
        if how == "by position":
            return compute(batch, keys, estimator, 1.0, 0.9, 2, True, config)
        if how == "by name":
            return compute(data=batch, batch_keys=keys, adv_estimator=estimator, config=config)
        return compute(batch, keys, estimator)

    ours, ours_error = outcome(computed)
    with on_stock():
        stock, error = outcome(computed)
    assert (type(ours_error), str(ours_error)) == (type(error), str(error))
    assert error is None or (how == "without a configuration" and estimator in NEED_A_CONFIGURATION)
    if stock is not None:
        assert list(ours.batch.keys()) == list(stock.batch.keys())
        assert all(same(ours.batch[name], stock.batch[name]) for name in ("advantages", "returns"))


def test_the_earlier_form_of_the_v1_trainer_is_given_the_very_same_patches():
    given = {patch.target: patch.teach for patch in trainer_v1.site._patches}
    assert all(patch.teach is given[patch.target] for patch in main_ppo_sync.site._patches)


# --- group filters -----------------------------------------------------------------------------------------------


@covers("replay_buffer", "ReplayBuffer._dapo_filtered_keys")
@pytest.mark.skipif(not is_there("verl.trainer.ppo.v1.replay_buffer"), reason="this verl has no replay buffer")
@each_family()
@EXAMPLES
@given(data=st.data())
def test_a_group_filter_takes_out_what_verls_does_and_says_whose_metric_is_no_number(family, data):
    replay_buffer = import_module("verl.trainer.ppo.v1.replay_buffer")
    values = data.draw(values_of(family), label="values")
    if data.draw(st.booleans(), label="alike"):
        values[1] = values[0]

    def filtered() -> Any:
        buffer = SimpleNamespace(
            filter_groups_metric="form",
            trainer_config=OmegaConf.create({}),
            finished_keys={"train": {"u", "v"}},
            partitions={"train": dict.fromkeys(KEYS)},
            _dapo_classification_cache={"train": {}},
        )
        with queue_of(values).in_place():
            found = replay_buffer.ReplayBuffer._dapo_filtered_keys(buffer, "train")
        return found, buffer._dapo_classification_cache

    ours, ours_error = outcome(filtered)
    with on_stock():
        stock, error = outcome(filtered)
    if error is None:
        assert ours_error is None, ours_error
        assert ours == stock
    else:
        assert isinstance(ours_error, MissingRewardError)
