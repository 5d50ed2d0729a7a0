"""Every patch acts as verl's own function for the length of a `with`, as it does where its site is off.

The fixture `stock` takes the patches back and finds them again, which takes a third of a second: too long for each
example of a property.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from verl_ext import plugin
from verl_ext.plugin import State


@contextmanager
def on_stock(*, but: str = "") -> Iterator[None]:
    """Every patch, but for those of one site."""
    with ExitStack() as stack:
        for name, site in plugin._sites.items():
            if site.state is State.ACTIVE and name != but:
                stack.enter_context(mock.patch.object(site, "state", State.DISABLED))
        yield
