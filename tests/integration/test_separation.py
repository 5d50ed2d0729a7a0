"""verl's separation and one-step-off trainers: what they concatenate, slice and unite, on batches of mixed schemas."""

import pytest
from actors import release
from marks import slow_after
from planned import (
    REWARDS,
    answered,
    assert_bit_for_bit,
    assert_rows_hold,
    lost_keys,
    lost_or_raised,
    reward_columns,
    score,
)
from planned import rows_of as rows_of_plans

from verl_ext import FieldCollisionError, SparseNonTensor
from verl_ext.demo import rig

separation = pytest.importorskip("separation", reason="verl 0.7 comes without the code of the one-step-off trainer")

pytestmark = pytest.mark.ray

N = 2


# --- the surroundings --------------------------------------------------------------------------------------------


def greedy_client(rows, config):
    """The recorded client, which answers greedy requests with the last of n + 1 answers, and says which it gave."""

    class Greedy(rig.RecordedClient):
        async def generate(self, request_id, *, sampling_params, priority=0, **kwargs):
            answer = N if sampling_params["temperature"] == 0 else priority % N
            output = await super().generate(request_id, sampling_params=sampling_params, priority=answer, **kwargs)
            output.extra_fields["answer"] = answer
            return output

    return Greedy(rows, config)


@pytest.fixture(scope="module")
def config(model_dir):
    return rig.compose_config(
        model_dir,
        [*REWARDS, f"actor_rollout_ref.rollout.n={N}", "trainer.test_freq=-1", "trainer.save_freq=-1"],
    )


@pytest.fixture(scope="module")
def rewards(config):
    manager = rig.reward_loop_manager(config)
    yield manager
    release(manager)


@pytest.fixture(scope="module")
def client(config, rows):
    return greedy_client(answered(rows, N + 1), config)


@pytest.fixture(scope="module")
def with_scores(config, client, rewards):
    """An agent-loop manager of two workers, whose samples are scored in the loop."""
    manager = rig.agent_loop_manager(config, client, rewards.reward_loop_workers)
    yield manager
    release(manager)


@pytest.fixture(scope="module")
def without_scores(config, client):
    """An agent-loop manager that scores nothing, as where the reward model shares the trainer's GPUs."""
    config = config.copy()
    config.actor_rollout_ref.rollout.agent.num_workers = 1
    manager = rig.agent_loop_manager(config, client)
    yield manager
    release(manager)


@pytest.fixture(params=["in the loop", "by the trainer"])
def scored(request):
    """Where the samples are scored."""
    return request.param


@pytest.fixture
def train_on(config, with_scores, without_scores, rewards, scored, rows):
    """A function from a trainer class and plans to the batches on which it has trained."""

    def run(trainer_class, *batches, estimator="grpo", balance=False):
        settings = config.copy()
        settings.algorithm.adv_estimator = estimator
        settings.trainer.balance_batch = balance
        managers = [with_scores] if scored == "in the loop" else [without_scores, rewards]
        trainer = trainer_class(settings, *managers, steps=len(batches))
        return trainer.train_on([separation.loaded(rows_of_plans(rows, plans)) for plans in batches])

    return run


# --- what the answers earn ---------------------------------------------------------------------------------------

GSM8K = ("openai/gsm8k", [{"acc": 1.0}, {"acc": 0.0}, {"acc": 0.0}])
WRONG = {"score": -1.0, "acc": False, "pred": "[INVALID]"}
MATH_DAPO = ("math_dapo", [{"score": 1.0, "acc": True, "pred": "22"}, WRONG, WRONG])


def planned(*rewards):
    """What two sampled answers to a question and the greedy one earn beside their scores."""
    return ("planned", [{"score": 0.25 * number, **reward} for number, reward in enumerate(rewards)])


SCORES = ("float64", [0.0, 0.25, 0.0, 0.25])

MIXED = {
    "gsm8k first": (
        [GSM8K, MATH_DAPO],
        {
            "acc": ("float64", [1.0, 0.0, 1.0, 0.0]),
            "score": ("object", [None, None, 1.0, -1.0]),
            "pred": ("object", [None, None, "22", "[INVALID]"]),
        },
        {"in the loop": "AssertionError", "by the trainer": ["pred", "score"]},
    ),
    "math_dapo first": (
        [MATH_DAPO, GSM8K],
        {
            "score": ("object", [1.0, -1.0, None, None]),
            "acc": ("float64", [1.0, 0.0, 1.0, 0.0]),
            "pred": ("object", ["22", "[INVALID]", None, None]),
        },
        {"in the loop": "AssertionError", "by the trainer": "KeyError"},
    ),
}
"""Prompts, each with what its n sampled answers and its greedy one earn; the reward columns of the sampled answers,
written out by hand; what becomes of the sampled answers on stock verl, by where they are scored: the exception, or the
keys that lose values."""

REMAX = {
    "gsm8k first": (*MIXED["gsm8k first"][:2], {"in the loop": "KeyError", "by the trainer": ["pred", "score"]}),
    "math_dapo first": (*MIXED["math_dapo first"][:2], {"in the loop": "KeyError", "by the trainer": "KeyError"}),
    "a key that only greedy answers have": (
        [planned({"a": 1}, {"a": 2}, {"a": 3, "b": 4}), planned({"a": 5}, {"a": 6}, {"a": 7, "b": 8})],
        {"score": SCORES, "a": ("int64", [1, 2, 5, 6])},
        {"in the loop": [], "by the trainer": "AssertionError"},
    ),
    "a key that greedy answers lack": (
        [planned({"a": 1}, {"a": 2}, {}), planned({"a": 5}, {"a": 6}, {})],
        {"score": SCORES, "a": ("int64", [1, 2, 5, 6])},
        {"in the loop": "KeyError", "by the trainer": "AssertionError"},
    ),
    "text beside numbers": (
        [planned({"a": 1}, {"a": 2}, {"a": "3"}), planned({"a": "5"}, {"a": 6}, {"a": 7})],
        {"score": SCORES, "a": ("object", [1, 2, "5", 6])},
        {"in the loop": ["a"], "by the trainer": ["a"]},
    ),
}
"""The same for REMAX, where the greedy answers are in one batch with the sampled ones."""

IN_ONE_BATCH = {
    "a key that only greedy answers have": {"b": ("object", [None] * 4)},
    "a key that greedy answers lack": {"a": ("object", [1, 2, 5, 6])},
}
"""What the greedy answers change in the sampled ones' columns, where the loop scores both in one batch."""

UNIFORM = [
    planned({"a": 1, "b": [1, 2], "c": "x"}, {"a": 2, "b": [3, 4], "c": ""}, {"a": 3, "b": [5, 6], "c": "yz"}),
    planned({"a": 0, "b": [0, 1], "c": "x"}, {"a": 1, "b": [2, 3], "c": ""}, {"a": 2, "b": [4, 5], "c": "yz"}),
]
"""Prompts whose answers all have the same keys."""

TRAINERS = {
    "separation": (separation.SeparationTrainer, "grpo"),
    "separation, REMAX": (separation.SeparationTrainer, "remax"),
    "one-step-off": (separation.OneStepOffTrainer, "grpo"),
}


def sampled(prompts):
    """What the sampled answers earn, in row order."""
    return [info for _, rewards in prompts for info in rewards[:N]]


# --- what the trainers train on ----------------------------------------------------------------------------------


@pytest.mark.parametrize("case", slow_after(2, REMAX))
def test_sampled_and_greedy_answers_of_remax_in_one_batch_come_apart_again_with_their_own_rewards(
    case, train_on, scored, stock
):
    prompts, by_hand, on_stock = REMAX[case]
    if scored == "in the loop":
        by_hand = by_hand | IN_ONE_BATCH.get(case, {})
    emitted = sampled(prompts)

    (batch,) = train_on(separation.SeparationTrainer, prompts, estimator="remax")

    found = reward_columns(batch)
    assert (list(found), found) == (list(by_hand), by_hand)
    assert batch.non_tensor_batch["answer"].tolist() == [0, 1, 0, 1]
    assert "__do_sample__" not in batch.non_tensor_batch
    assert not any(isinstance(column, SparseNonTensor) for column in batch.non_tensor_batch.values())
    greedy = [score(rewards[N]) for _, rewards in prompts for _ in range(N)]
    assert batch.batch["reward_baselines"].tolist() == greedy
    assert batch.batch["advantages"][:, 0].tolist() == [
        score(info) - baseline for info, baseline in zip(emitted, greedy, strict=True)
    ]

    with stock():
        outcome = lost_or_raised(lambda: train_on(separation.SeparationTrainer, prompts, estimator="remax")[0], emitted)
    assert outcome == on_stock[scored]


@pytest.mark.parametrize("trainer", ["separation", "one-step-off"])
@pytest.mark.parametrize("case", MIXED)
def test_batches_of_different_schemas_one_after_another_each_keep_their_own(case, trainer, train_on, scored, stock):
    trainer_class, _ = TRAINERS[trainer]
    prompts, by_hand, on_stock = MIXED[case]

    batches = train_on(trainer_class, [GSM8K, GSM8K], prompts, [MATH_DAPO, MATH_DAPO])

    assert reward_columns(batches[0]) == {"acc": ("float64", [1.0, 0.0, 1.0, 0.0])}
    assert (list(reward_columns(batches[1])), reward_columns(batches[1])) == (list(by_hand), by_hand)
    assert list(reward_columns(batches[2])) == ["score", "acc", "pred"]
    for batch, plans in zip(batches, [[GSM8K, GSM8K], prompts, [MATH_DAPO, MATH_DAPO]], strict=True):
        emitted = sampled(plans)
        assert lost_keys(batch, emitted) == []
        assert batch.batch["token_level_scores"].sum(dim=1).tolist() == [score(info) for info in emitted]
        # what the three unions with the models' answers brought along
        assert {"old_log_probs", "ref_log_prob", "values", "advantages"} <= set(batch.batch.keys())

    with stock():
        assert lost_or_raised(lambda: train_on(trainer_class, prompts)[0], sampled(prompts)) == on_stock[scored]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_trainer_trains_on_uniform_answers_bit_for_bit_as_on_stock_verl(trainer, train_on, stock):
    trainer_class, estimator = TRAINERS[trainer]
    (ours,) = train_on(trainer_class, UNIFORM, estimator=estimator)
    with stock():
        (theirs,) = train_on(trainer_class, UNIFORM, estimator=estimator)

    assert lost_keys(theirs, sampled(UNIFORM)) == []
    assert ours.non_tensor_batch.pop("uid").shape == theirs.non_tensor_batch.pop("uid").shape  # made anew each time
    assert_bit_for_bit(ours, theirs)


@pytest.mark.parametrize("trainer", ["separation", "one-step-off"])
def test_rows_that_the_trainer_reorders_keep_their_rewards(trainer, train_on, rows):
    prompts = [MATH_DAPO, planned({"a": 1}, {"a": "2", "b": [3]}), GSM8K, planned({"b": 4}, {})]
    emitted = {
        (row["prompt"][0]["content"], answer): info
        for row, (_, infos) in zip(rows_of_plans(rows, prompts), prompts, strict=True)
        for answer, info in enumerate(infos)
    }

    (batch,) = train_on(TRAINERS[trainer][0], prompts, balance=True)

    asked = [messages[0]["content"] for messages in batch.non_tensor_batch["raw_prompt"]]
    found = list(zip(asked, batch.non_tensor_batch["answer"], strict=True))
    assert found != list(emitted), "the rows are in the order in which they came: this case proves nothing"
    assert_rows_hold(batch, [emitted[row] for row in found])


@pytest.mark.parametrize("trainer", ["separation, REMAX", "one-step-off"])
def test_a_reward_key_that_names_a_column_of_the_trainers_batch_is_refused_at_the_first_batch(trainer, train_on):
    trainer_class, estimator = TRAINERS[trainer]
    prompts = [planned(*[{"uid": "mine"}] * (N + 1)), GSM8K]
    with pytest.raises(FieldCollisionError, match="'uid'") as caught:
        train_on(trainer_class, prompts, estimator=estimator)
    assert list(caught.value.collisions) == ["uid"]
