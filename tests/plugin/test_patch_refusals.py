"""What a site was not written for: nothing is patched, and status and log say why."""

import logging

import pytest
from made_up import contents, made_up_module, made_up_site, moved_to_a_base_class

from verl_ext.plugin import State
from verl_ext.plugin._site import REST, PatchSite


def test_a_parameter_that_verl_adds_at_the_end_is_known_only_to_a_patch_that_hands_the_rest_on():
    for parameters, state in ((("scores", "mask"), State.UNKNOWN), (("scores", "mask", REST), State.ACTIVE)):
        module = made_up_module()
        module.advantages = lambda scores, mask=None, gamma=1.0: scores
        site = PatchSite("made_up", module.__name__, "nothing", State.WAITING)
        site.wraps("advantages", *parameters)(lambda stock: lambda *args, **kwargs: stock(*args, **kwargs))
        site.apply(module)
        assert site.state is state


def a_number(module):
    module.advantages = 3


def no_class(module):
    del module.Batch


def a_number_for_a_class(module):
    module.Batch = 3


def a_property(module):
    module.Batch.union = property(lambda self: None)


def no_known_signature(module):
    module.advantages = min


def plain_for_coroutine(module):
    module.Batch.score = lambda self, data: data


def coroutine_for_plain(module):
    async def advantages(scores, mask=None): ...

    module.advantages = advantages


def fewer_parameters(module):
    module.Batch.union = lambda self: None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (a_number, "advantages is no function"),
        (no_class, "Batch.concat is not there"),
        (a_number_for_a_class, "Batch.concat is not there"),
        (a_property, "Batch.union is no function"),
        (moved_to_a_base_class, "Batch.concat is not there"),
        (no_known_signature, "advantages does not tell its parameters"),
        (plain_for_coroutine, "Batch.score changed between plain and coroutine function"),
        (coroutine_for_plain, "advantages changed between plain and coroutine function"),
        (fewer_parameters, "Batch.union takes (self), not (self, other)"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_the_site_was_not_written_for_leaves_every_function_as_it_is_and_is_said(change, said, caplog):
    module, site = made_up_module(), made_up_site()
    change(module)
    before = contents(module)
    site.apply(module)
    assert (site.state, site.detail) == (State.UNKNOWN, said)
    assert contents(module) == before
    message = (
        f"verl.made_up is not what this version knows ({said}). Its patch site 'made_up' stays off, so rows are lost."
    )
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, f"verl-ext: {message}")
    ]


def test_an_error_while_a_function_is_taught_names_it_shows_its_traceback_and_undoes_the_others(caplog):
    module, site = made_up_module(), made_up_site()

    @site.wraps("Batch.__init__", "self")
    def _init(stock):
        return stock.__wrapped__

    module.Batch.__init__ = lambda self: None
    before = contents(module)
    site.apply(module)
    assert site.state is State.UNKNOWN
    assert "Batch.__init__ cannot be taught: AttributeError(" in site.detail
    assert contents(module) == before
    assert "stock.__wrapped__" in caplog.text


def test_an_error_while_a_site_asks_whether_it_is_needed_is_reported_and_never_raised(caplog):
    module, site = made_up_module(), made_up_site()
    site.wraps("Batch.gone", needed=lambda found: found.Gone.fields)(lambda stock: stock)
    before = contents(module)
    site.apply(module)
    assert site.state is State.UNKNOWN
    assert "Gone" in site.detail
    assert contents(module) == before
    assert "Traceback" in caplog.text


def test_a_function_that_moved_to_a_base_class_is_unknown_code_although_no_value_is_lost_without_it():
    module, site = made_up_module(), PatchSite("made_up", "verl.made_up", "rows are lost", State.WAITING)
    site.wraps("Batch.union", "self", "other", vital=False)(lambda stock: stock)
    moved_to_a_base_class(module)
    site.apply(module)
    assert (site.state, site.detail) == (State.UNKNOWN, "Batch.union is not there")


def test_a_second_patch_of_the_same_function_is_refused_by_name(caplog):
    module, first, second = made_up_module(), made_up_site("first"), made_up_site("second")
    first.apply(module)
    taught = contents(module)
    second.apply(module)
    assert second.state is State.UNKNOWN
    assert second.detail == "Batch.concat is taught already, by the site 'first'"
    assert second.detail in caplog.text
    assert contents(module) == taught
