"""Which patch sites the installed verl has a module for."""

from importlib.util import find_spec

from verl_ext.plugin import SITES


def importable(module):
    """Whether this verl has the module."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


HELD = {name: module for name, module in SITES.items() if importable(module)}
