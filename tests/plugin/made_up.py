"""A module made up for the patch mechanism, a site for it, and all that the module holds."""

from types import ModuleType

from verl_ext.plugin import State
from verl_ext.plugin._site import PatchSite


def made_up_module():
    class Batch:
        @staticmethod
        def concat(data):
            return [f"stock {item}" for item in data]

        @classmethod
        def load(cls, path):
            return cls, path

        def union(self, other):
            return self, other

        async def score(self, data):
            return data

    def advantages(scores, mask=None):
        return scores

    module = ModuleType("verl.made_up")
    module.Batch, module.advantages = Batch, advantages
    return module


def made_up_site(name="made_up"):
    site = PatchSite(name, "verl.made_up", "rows are lost", State.WAITING)

    @site.wraps("Batch.concat", "data")
    def _concat(stock):
        return lambda data: [f"taught {item}" for item in stock(data)]

    @site.wraps("Batch.load", "cls", "path")
    def _load(stock):
        return lambda cls, path: ("taught", *stock(cls, path))

    @site.wraps("Batch.union", "self", "other")
    def _union(stock):
        return lambda self, other: ("taught", *stock(self, other))

    @site.wraps("advantages", "scores", "mask")
    def _advantages(stock):
        return lambda scores, mask=None: ("taught", stock(scores, mask))

    @site.wraps("Batch.score", "self", "data")
    def _score(stock):
        async def score(self, data):
            return "taught", await stock(self, data)

        return score

    return site


def moved_to_a_base_class(module):
    module.Batch = type("Batch", (module.Batch,), {})


def place(module, path, attribute, value):
    owner = module
    if path:
        owner = vars(module).get(path[0])
        if owner is None or getattr(owner, "__module__", None) != __name__:
            owner = type(path[0], (), {"__module__": __name__})
            setattr(module, path[0], owner)
    if value is not None:
        setattr(owner, attribute, value)
    elif not path:
        delattr(owner, attribute)


def contents(module):
    """All that a module and the classes of this file in it hold: functions compare by identity."""
    classes = [value for value in vars(module).values() if getattr(value, "__module__", "") == __name__]
    return [dict(vars(module)), *(dict(vars(found)) for found in classes if isinstance(found, type))]
