"""The metrics of reward keys that verl's default trainer logs, against the dicts that the scorers returned."""

import ast

import pytest
from marks import slow_after
from plain_series import logged, series

from e2e_v1.stock import STOCK

if STOCK is None:
    pytest.skip("verl before 0.8 has no trainer on TransferQueue", allow_module_level=True)
pytest.importorskip("transfer_queue", reason="verl's v1 trainer needs TransferQueue")

from e2e_v1 import v1
from e2e_v1.v1 import planned

pytestmark = pytest.mark.ray


DENSE = [
    planned(f"dense {n}", "{'score': 1.0, 'acc': 1}", "{'score': 0.0, 'acc': 0}", source="planned/dense")
    for n in range(4)
]
SPARSE = [
    planned(f"sparse {n}", "{'score': 1.0, 'acc': 1, 'judge': 0.5}", "{'score': 0.0}", source="planned/sparse")
    for n in range(4)
]


def in_batches_of(size, *overrides):
    return [f"data.train_batch_size={size}", f"actor_rollout_ref.actor.ppo_mini_batch_size={size}", *overrides]


def samples(*rows):
    return [(row["data_source"], ast.literal_eval(answer)) for row in rows for answer in row["responses"]]


def of_steps(run, count):
    """The reward metrics of a run's steps."""
    logs = [metrics for metrics in run.fit() if "training/global_step" in metrics]
    assert len(logs) == count
    return [logged(metrics) for metrics in logs]


NO_VALIDATION = ["trainer.test_freq=-1", "trainer.val_before_train=false"]


@pytest.mark.parametrize("mode", slow_after(1, v1.form.MODES))
def test_a_run_logs_of_each_step_what_its_samples_say_from_the_step_on_that_lacks_a_key(mode, ours, stock):
    mixed, modes = [*DENSE[:2], *SPARSE[:2]], [*v1.form.MODES[mode], *NO_VALIDATION]
    expected = list(series([samples(*mixed[:2]), samples(*mixed[2:])]))
    assert expected[0] == {}
    assert "reward_extra/planned/sparse/acc/mean" in expected[1]
    overrides = in_batches_of(2, *modes)
    assert of_steps(ours(train=mixed, overrides=overrides), 2) == [pytest.approx(step) for step in expected]
    if mode == "sync":
        assert of_steps(stock(train=mixed, overrides=overrides), 2) == [{}, {}]


@pytest.mark.slow
def test_what_verl_adds_to_fill_up_the_batch_counts_for_nothing_and_makes_no_uniform_run_sparse(ours, stock):
    overrides = ["actor_rollout_ref.actor.ppo_mini_batch_size=2"]  # of three prompts: one is added
    run = ours(train=DENSE[:3], overrides=[*overrides, "+verl_ext.metrics=all"])
    assert logged(run.step()) == pytest.approx(next(series([samples(*DENSE[:3])], every_key=True)))
    assert len(run.rollout_dump()) == 8
    uniform = [start(train=DENSE[:3], overrides=overrides).step() for start in (ours, stock)]
    assert uniform[0].keys() == uniform[1].keys()


@pytest.mark.skipif(not STOCK.filters_groups, reason="this verl's trainer has no group filter")
def test_groups_that_the_filter_has_taken_out_are_not_counted(ours):
    alike = planned("alike", "{'score': 1.0, 'acc': 1}", "{'score': 1.0, 'acc': 1}", source="planned/alike")
    kept = [planned(f"kept {n}", "{'score': 1.0, 'acc': 1, 'judge': 1}", "{'score': 0.0, 'acc': 0}") for n in range(3)]
    filter_groups = ["algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=acc"]
    run = ours(train=[alike, *kept], overrides=in_batches_of(2, *filter_groups))
    metrics = run.step()
    trained = [ast.literal_eval(line["output"]) for line in run.rollout_dump()]
    assert metrics["training/filter_groups/evicted_samples"] == 1
    assert len(trained) == 4
    assert logged(metrics) == pytest.approx(next(series([[("planned", info) for info in trained]])))


def test_each_output_of_a_session_counts_with_the_sessions_reward_and_none_where_its_loop_reported_nothing(ours):
    own = planned("own", "{}", "{}", source="planned/own", agent_name="scores_itself")
    metrics = logged(ours(train=[own, DENSE[0]]).step())
    nothing = [("planned/own", {})] * 4  # two outputs of each of two sessions
    assert metrics == pytest.approx(next(series([[*nothing, *samples(DENSE[0])]])))


def test_settings_hold_in_training_and_in_validation(ours):
    judged = [planned(f"judged {n}", "{'score': 1.0, 'judge': 'good'}", "{'score': 0.0}") for n in range(2)]
    run = ours(train=judged, overrides=["+verl_ext.text_metrics=[judge]"])
    metrics = run.step()
    assert len(run.rollout_dump()) == 4, "verl has trained on other samples than the planned ones"
    assert logged(metrics) == {
        "reward_extra/judge/count": 2,
        "reward_extra/judge/coverage": 0.5,
        "reward_extra/judge/share/good": 1.0,
    }
    assert logged(ours(train=SPARSE[:2], overrides=["+verl_ext.metrics=off"]).step()) == {}

    run = ours(train=SPARSE[:2])
    metrics = run.validate()
    assert metrics["val-aux/planned/sparse/judge/coverage@2"] == 0.5
    assert metrics["val-aux/planned/sparse/judge/mean@2"] == 0.5
    assert not any("score/coverage" in name for name in metrics)
