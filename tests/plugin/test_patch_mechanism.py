"""The patch mechanism alone, on a module made up for it: functions of every kind are patched, once, and put back."""

import pytest
from made_up import contents, made_up_module, made_up_site

from verl_ext.plugin import State
from verl_ext.plugin._site import PatchSite
from verl_ext.plugin._trial import unless


def test_functions_methods_static_and_class_methods_are_taught_and_undone():
    module, site = made_up_module(), made_up_site()
    before = contents(module)
    site.apply(module)
    batch = module.Batch()
    assert module.Batch.concat([1]) == batch.concat([1]) == ["taught stock 1"]
    assert module.Batch.load("x") == ("taught", module.Batch, "x")
    assert batch.union(2) == ("taught", batch, 2)
    assert module.advantages(3) == ("taught", 3)
    with pytest.raises(StopIteration) as returned:
        batch.score(4).send(None)
    assert returned.value.value == ("taught", 4)

    site.undo()
    assert contents(module) == before
    assert site.state is State.DISABLED


def test_applying_twice_or_undoing_twice_changes_nothing():
    module, site = made_up_module(), made_up_site()
    before = contents(module)
    site.apply(module)
    taught = contents(module)
    site.apply(module)
    assert contents(module) == taught
    site.undo()
    site.undo()
    assert contents(module) == before


def test_a_patch_that_is_not_needed_is_left_out_and_status_says_so():
    module, site = made_up_module(), made_up_site()
    site.wraps("Batch.gone", needed=lambda found: False)(lambda stock: stock)
    site.apply(module)
    assert site.state is State.ACTIVE
    assert site.detail.endswith("Batch.score, Batch.gone (not needed)")


def test_a_patch_without_which_no_value_is_lost_is_left_out_where_there_is_no_such_function():
    module, site = made_up_module(), made_up_site()
    site.wraps("Batch.gone", vital=False)(lambda stock: stock)
    site.apply(module)
    assert site.state is State.ACTIVE
    assert site.detail.endswith("Batch.score, Batch.gone (not there)")


def test_patches_that_hang_together_ask_verls_module_once():
    asked = []

    def works(module):
        asked.append(module)
        return False

    module, site = made_up_module(), PatchSite("made_up", "verl.made_up", "rows are lost", State.WAITING)
    for target, parameters in (("Batch.union", ("self", "other")), ("advantages", ("scores", "mask"))):
        site.wraps(target, *parameters, needed=unless(works))(lambda stock: lambda *args: stock(*args))
    site.apply(module)
    assert (site.state, site.detail) == (State.ACTIVE, "Batch.union, advantages")
    assert asked == [module]
