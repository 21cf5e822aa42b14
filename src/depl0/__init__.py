"""depl0: channel pruning of neural networks to a budget.

>>> import torch, depl0
>>> from depl0.app import models
>>> model = models.build("lenet5")
>>> gated = depl0.attach(model, torch.zeros(2, 1, 28, 28))
>>> compact = gated.extract()
>>> type(compact) is type(model)
True
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from depl0.analysis.planning import plan as plan
    from depl0.config import GateConfig as GateConfig
    from depl0.costs.count import cost as cost
    from depl0.errors import Depl0Error as Depl0Error
    from depl0.gated import GatedModel as GatedModel
    from depl0.gated import attach as attach
    from depl0.search.config import SearchConfig as SearchConfig
    from depl0.search.one_shot import prune as prune
    from depl0.search.search import Search as Search
    from depl0.surgery.files import load as load
    from depl0.surgery.files import save as save
    from depl0.surgery.record import info as info

__version__ = "0.1.0"

_HOMES = {
    "Depl0Error": "errors",
    "GateConfig": "config",
    "GatedModel": "gated",
    "Search": "search.search",
    "SearchConfig": "search.config",
    "attach": "gated",
    "cost": "costs.count",
    "info": "surgery.record",
    "load": "surgery.files",
    "plan": "analysis.planning",
    "prune": "search.one_shot",
    "save": "surgery.files",
}
"""Public names and their modules."""
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that the command answers ``--help`` without importing torch."""
    if name in _HOMES:
        value = getattr(import_module(f"depl0.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if any(module.name == name for module in iter_modules(__path__)):
        return import_module(f"depl0.{name}")
    raise AttributeError(f"module 'depl0' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *(module.name for module in iter_modules(__path__))})
