"""The backport for `AgentLoopOutput.as_dict`: repaired where verl drops `extra_fields` that were only added to.

The fault of verl 0.8.0 and 0.9.0 is written anew, on top of the installed verl's own class.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from verl_ext.plugin._site import PatchSite, State
from verl_ext.plugin.agent_loop import _as_dict

verl_agent_loop = pytest.importorskip("verl.experimental.agent_loop.agent_loop")

TEACHER = ("teacher_ids", "teacher_logprobs")


def promote(output):
    for name in TEACHER:
        value = output["extra_fields"].pop(name, None)
        if value is not None:
            output[name] = value
    return output


def as_in_0_9_0(self):
    """Pydantic leaves out what was never set as a whole, and this asks for it."""
    return promote(self.model_dump(exclude_unset=True))


def lossy(self):
    """The same fault, had it been silent."""
    return promote({"extra_fields": {}, **self.model_dump(exclude_unset=True)})


def right(self):
    output = self.model_dump(exclude_unset=True)
    output.setdefault("extra_fields", dict(self.extra_fields))
    return promote(output)


def verl_with(as_dict) -> ModuleType:
    """A module that looks like verl's, with this `as_dict`."""

    class AgentLoopOutput(verl_agent_loop.AgentLoopOutput):
        pass

    AgentLoopOutput.as_dict = as_dict
    module = ModuleType("verl_like")
    module.AgentLoopOutput, module.AgentLoopMetrics = AgentLoopOutput, verl_agent_loop.AgentLoopMetrics
    return module


def applied(module: ModuleType) -> PatchSite:
    site = PatchSite("agent_loop", module.__name__, "extra fields are lost", State.WAITING, _patches=[_as_dict])
    site.apply(module)
    assert site.state in (State.ACTIVE, State.NOT_NEEDED)
    return site


def sample(module: ModuleType, **fields):
    given = {"prompt_ids": [1, 2], "response_ids": [3], "response_mask": [1], "metrics": module.AgentLoopMetrics()}
    return module.AgentLoopOutput(**given, **fields)


@pytest.fixture(params=[as_in_0_9_0, lossy], ids=["verl 0.9.0", "silent"])
def faulty(request):
    return verl_with(request.param)


@pytest.fixture
def repaired(faulty):
    applied(faulty)
    return faulty


def test_without_the_repair_fields_that_were_added_are_lost():
    output = sample(verl_with(as_in_0_9_0))
    output.extra_fields["min_global_steps"] = 7
    with pytest.raises(KeyError, match="extra_fields"):
        output.as_dict()


def test_fields_that_were_added_are_restored(repaired):
    output = sample(repaired)
    output.extra_fields["min_global_steps"] = 7
    assert output.as_dict()["extra_fields"] == {"min_global_steps": 7}


def test_an_output_without_any_extra_field_has_an_empty_dict_of_them(repaired):
    assert sample(repaired).as_dict()["extra_fields"] == {}


def test_what_is_restored_is_a_shallow_copy(repaired):
    output = sample(repaired)
    steps = output.extra_fields["steps"] = [np.arange(2)]
    restored = output.as_dict()["extra_fields"]
    assert restored is not output.extra_fields
    assert restored["steps"] is steps
    restored["more"] = 1
    assert list(output.extra_fields) == ["steps"]


def test_explicit_fields_stay_as_they_are_serialized(repaired):
    output = sample(repaired, extra_fields={"own": repaired.AgentLoopMetrics(tool_calls=2.0), "steps": [1]})
    expected = sample(verl_with(right), extra_fields=output.extra_fields).as_dict()
    assert output.as_dict() == expected
    assert output.as_dict()["extra_fields"]["own"] == {"tool_calls": 2.0}


def test_explicit_fields_that_were_added_to_stay_as_they_are_serialized(repaired):
    output = sample(repaired, extra_fields={})
    output.extra_fields["own"] = repaired.AgentLoopMetrics()
    assert isinstance(output.as_dict()["extra_fields"]["own"], dict)


@pytest.mark.parametrize("explicit", [False, True])
def test_teacher_outputs_are_promoted_and_are_no_extra_fields_any_more(explicit, repaired):
    output = sample(repaired, **({"extra_fields": {}} if explicit else {}))
    output.extra_fields.update(teacher_ids=[5, 6], teacher_logprobs=[-0.5, -1.0], kept=True)
    assert (made := output.as_dict())["extra_fields"] == {"kept": True}
    assert [made[name] for name in TEACHER] == [[5, 6], [-0.5, -1.0]]


def test_teacher_outputs_that_are_none_are_dropped_as_verl_drops_them(repaired):
    output = sample(repaired)
    output.extra_fields.update(teacher_ids=None, teacher_logprobs=[-0.5])
    made = output.as_dict()
    assert "teacher_ids" not in made
    assert made["teacher_logprobs"] == [-0.5]
    assert made["extra_fields"] == {}


def test_the_model_is_not_mutated(repaired):
    output = sample(repaired)
    output.extra_fields.update(teacher_ids=[5], kept=[1])
    before, was_set = dict(output.extra_fields), set(output.model_fields_set)
    first = output.as_dict()
    assert output.extra_fields == before
    assert output.model_fields_set == was_set
    assert output.as_dict() == first


def test_a_repaired_verl_answers_as_a_right_one(repaired):
    for fields in ({}, {"added": 1}, {"teacher_ids": [5], "teacher_logprobs": None, "reward_extra_info": {"acc": 1.0}}):
        outputs = [sample(repaired, reward_score=0.5), sample(verl_with(right), reward_score=0.5)]
        for output in outputs:
            output.extra_fields.update(fields)
        assert outputs[0].as_dict() == outputs[1].as_dict()


def test_a_class_that_users_derive_is_repaired_too(repaired):
    class Mine(repaired.AgentLoopOutput):
        verdict: str = "none"

    given = {"prompt_ids": [], "response_ids": [], "response_mask": [], "metrics": repaired.AgentLoopMetrics()}
    output = Mine(**given, verdict="right")
    output.extra_fields["added"] = 1
    assert output.as_dict()["extra_fields"] == {"added": 1}
    assert output.as_dict()["verdict"] == "right"


def test_where_verl_is_right_nothing_is_patched():
    module = verl_with(right)
    site = applied(module)
    assert vars(module.AgentLoopOutput)["as_dict"] is right
    assert (site.state, site.detail) == (State.NOT_NEEDED, "AgentLoopOutput.as_dict (not needed)")


def test_where_verl_has_no_as_dict_nothing_is_patched():
    module = ModuleType("verl_0_7_1_like")
    module.AgentLoopOutput = type("AgentLoopOutput", (), {})
    applied(module)
    assert not hasattr(module.AgentLoopOutput, "as_dict")


def test_undoing_puts_verls_own_back(faulty):
    before = faulty.AgentLoopOutput.as_dict
    site = applied(faulty)
    assert faulty.AgentLoopOutput.as_dict is not before
    site.undo()
    assert faulty.AgentLoopOutput.as_dict is before


def test_the_installed_verl_keeps_fields_that_were_added():
    """Right by itself, or repaired since the plugin is active in this process."""
    if not hasattr(verl_agent_loop.AgentLoopOutput, "as_dict"):
        pytest.skip("this verl has no as_dict")
    output = sample(verl_agent_loop)
    output.extra_fields["added"] = 1
    assert output.as_dict()["extra_fields"] == {"added": 1}
