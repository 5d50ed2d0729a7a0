"""Functions that other code holds, wraps or inherits: patched there too, never twice, and theirs are left in place."""

import functools
import sys
from types import ModuleType

import pytest
from made_up import contents, made_up_module, made_up_site
from patched import standing

from verl_ext.plugin import State


def test_a_function_that_others_hold_by_value_is_taught_and_undone_there_too(monkeypatch):
    module, site = made_up_module(), made_up_site()
    stock = module.advantages
    module.REGISTRY = {"gae": stock, "other": len}
    reader, stranger = ModuleType("verl.reader"), ModuleType("stranger")
    reader.advantages, stranger.advantages = stock, len
    for other in (reader, stranger):
        monkeypatch.setitem(sys.modules, other.__name__, other)

    site.apply(module)
    assert reader.advantages is module.REGISTRY["gae"] is module.advantages is not stock
    site.undo()
    assert reader.advantages is module.REGISTRY["gae"] is module.advantages is stock
    assert stranger.advantages is module.REGISTRY["other"] is len


@pytest.mark.parametrize("wraps", [functools.wraps, lambda function: lambda wrapper: wrapper])
def test_a_function_that_others_wrapped_since_acts_as_verls_own_inside_theirs_while_the_site_is_off(wraps):
    module, site = made_up_module(), made_up_site()
    before = contents(module)
    site.apply(module)
    ours = module.Batch.concat

    @wraps(ours)
    def theirs(data):
        return ["theirs", *ours(data)]

    module.Batch.concat = theirs_standing = staticmethod(theirs)

    assert module.Batch.concat([1]) == ["theirs", "taught stock 1"]
    site.undo()
    assert module.Batch.concat([1]) == ["theirs", "stock 1"]
    assert standing(module, "Batch.concat") is theirs_standing
    module.Batch.concat = before[1]["concat"]
    assert contents(module) == before


def test_a_function_that_others_wrapped_before_is_wrapped_with_theirs_inside_and_theirs_comes_back():
    module, site = made_up_module(), made_up_site()
    stock = module.Batch.union

    @functools.wraps(stock)
    def theirs(self, other):
        return ("theirs", *stock(self, other))

    module.Batch.union = theirs
    site.apply(module)
    assert module.Batch.union(1, 2) == ("taught", "theirs", 1, 2)
    site.undo()
    assert module.Batch.union is theirs


def test_activation_again_under_the_wrapper_of_others_wraps_nothing_twice():
    module, site = made_up_module(), made_up_site()
    site.apply(module)
    ours = module.Batch.union

    @functools.wraps(ours)
    def theirs(self, other):
        return ("theirs", *ours(self, other))

    module.Batch.union = theirs
    site.undo()
    site.state = State.WAITING
    site.apply(module)
    assert site.state is State.ACTIVE
    assert module.Batch.union is theirs
    assert module.Batch.union(1, 2) == ("theirs", "taught", 1, 2)


def test_activation_again_under_a_wrapper_that_hides_ours_acts_once():
    module, site = made_up_module(), made_up_site()
    site.apply(module)
    ours = module.Batch.union
    module.Batch.union = lambda self, other: ("theirs", *ours(self, other))
    site.undo()
    site.state = State.WAITING
    site.apply(module)
    assert module.Batch.union(1, 2) == ("taught", "theirs", 1, 2)


def test_subclasses_that_were_defined_before_activation_are_taught_by_what_they_inherit_and_call():
    module, site = made_up_module(), made_up_site()

    class Inherits(module.Batch): ...

    class Overrides(module.Batch):
        def union(self, other):
            return ("own", *super().union(other))

    site.apply(module)
    batch, other = Inherits(), object()
    assert batch.union(other) == ("taught", batch, other)
    own = Overrides()
    assert own.union(other) == ("own", "taught", own, other)
    site.undo()
    assert own.union(other) == ("own", own, other)
