"""Each patch site on real verl: its functions look as verl's own do, and it is off as a whole where one changed."""

import inspect
import logging
import pickle
import sys
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest
from held import HELD
from made_up import contents, place
from patched import STOCK, TARGETS, function_at, marks, standing

from verl_ext import plugin
from verl_ext.plugin import SITES, State
from verl_ext.plugin._site import REST, PatchSite, taught_by


@pytest.mark.parametrize(("name", "target"), TARGETS)
def test_a_taught_function_keeps_its_names_signature_and_kind_and_pickles_by_reference(name, target, taught_verl):
    taught = function_at(name, target)
    kind = type(standing(sys.modules[SITES[name]], target))
    assert taught_by(taught) == name
    attribute = reduce(getattr, target.split("."), sys.modules[SITES[name]])
    assert pickle.loads(pickle.dumps(attribute)) == attribute  # noqa: S301
    if kind is not classmethod:  # whose functions cloudpickle sends by value, those of stock verl too
        assert cloudpickle.loads(cloudpickle.dumps(attribute)) is attribute

    plugin.deactivate()
    stock = function_at(name, target)
    assert taught is not stock
    assert taught_by(stock) is None
    assert type(standing(sys.modules[SITES[name]], target)) is kind
    assert inspect.signature(taught) == inspect.signature(stock)
    assert inspect.iscoroutinefunction(taught) == inspect.iscoroutinefunction(stock)
    for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(taught, attribute) == getattr(stock, attribute)


def test_every_file_of_the_plugin_holds_the_site_that_is_listed_under_its_name():
    files = {file.stem for file in Path(plugin.__file__).parent.glob("*.py") if not file.stem.startswith("_")}
    assert files == set(SITES)
    for name, module in SITES.items():
        site = import_module(f"verl_ext.plugin.{name}").site
        assert (site.name, site.module) == (name, module)
        assert site.purpose


def vanished(patch, found):
    return None


def renamed_parameter(patch, found):
    function = getattr(found, "__func__", found)
    parameters = inspect.signature(function).parameters.values()
    last_known = next(name for name in reversed(patch.parameters) if name != REST)
    renamed = [p.replace(name="renamed") if p.name == last_known else p for p in parameters]
    return _like(found, lambda *args, **kwargs: None, inspect.Signature(renamed))


def plain_instead_of_coroutine_or_the_other_way_round(patch, found):
    function = getattr(found, "__func__", found)

    def plain(*args, **kwargs): ...

    async def coroutine(*args, **kwargs): ...

    other = plain if inspect.iscoroutinefunction(function) else coroutine
    return _like(found, other, inspect.signature(function))


def _like(found, function, signature):
    function.__signature__ = signature
    return type(found)(function) if isinstance(found, staticmethod | classmethod) else function


LEFT_OUT = {
    (name, patch.target)
    for name in HELD
    for patch in import_module(f"verl_ext.plugin.{name}").site._patches
    if not patch.vital or patch.target == "PPOTrainer._log_rollout_data"
}
"""Functions that some clones of verl lack, and without which no value is lost: their site is applied without them."""

KNOWN = {(plain_instead_of_coroutine_or_the_other_way_round, "AgentLoopManager.generate_sequences")}
"""Changes that are known: verl's `auto_await` may be around it, or not."""

CHANGES = [
    (name, target, change)
    for name, target in TARGETS
    for change in (vanished, renamed_parameter, plain_instead_of_coroutine_or_the_other_way_round)
    if (change, target) != (renamed_parameter, "get_ppo_ray_runtime_env")  # all of its parameters are handed on
    if change is not vanished or (name, target) not in LEFT_OUT
    if (change, target) not in KNOWN
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target", "change"), CHANGES)
def test_a_site_whose_verl_function_changed_is_off_as_a_whole_and_says_which(name, target, change, taught_verl, caplog):
    plugin.deactivate()
    site = import_module(f"verl_ext.plugin.{name}").site
    # The module as it is, but for classes of the same name that hold nothing but the functions the site teaches.
    module = ModuleType(site.module)
    vars(module).update(vars(sys.modules[site.module]))
    for patch in site._patches:
        *path, attribute = patch.target.split(".")
        found = standing(sys.modules[site.module], patch.target)
        if found is not None:
            place(module, path, attribute, change(patch, found) if patch.target == target else found)
    before = contents(module)

    site = PatchSite(site.name, site.module, site.purpose, State.WAITING, _patches=list(site._patches))
    site.apply(module)

    assert site.state is State.UNKNOWN
    assert target in site.detail
    assert contents(module) == before
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert all(part in caplog.text for part in (site.module, target, site.purpose))
    assert marks() == STOCK
