"""depl0: prune convolutional networks to a budget.

>>> import torch, depl0
>>> from depl0.app import models
>>> model = models.build("lenet5")
>>> gated = depl0.attach(model, torch.zeros(2, 1, 28, 28))
>>> compact = gated.extract()
>>> type(compact) is type(model)
True
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from depl0.analysis.plan import Group, Plan
    from depl0.config import GateConfig
    from depl0.costs import Cost, cost
    from depl0.equivalence.certificate import Certificate
    from depl0.errors import (
        CertificateError,
        Depl0Error,
        FormatError,
        GateError,
        InputError,
        NothingToPruneError,
        TraceError,
    )
    from depl0.gated import GatedModel, attach
    from depl0.gates.threshold import Budget
    from depl0.planning import plan
    from depl0.search.calibration import Calibration
    from depl0.search.one_shot import prune
    from depl0.search.rates import gate_learning_rate
    from depl0.search.search import Search, SearchConfig, SearchListener
    from depl0.surgery.files import load, save
    from depl0.surgery.record import CompactInfo, info
    from depl0.surgery.shrink import carry_over

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "Calibration",
    "Certificate",
    "CertificateError",
    "CompactInfo",
    "Cost",
    "Depl0Error",
    "FormatError",
    "GateConfig",
    "GateError",
    "GatedModel",
    "Group",
    "InputError",
    "NothingToPruneError",
    "Plan",
    "Search",
    "SearchConfig",
    "SearchListener",
    "TraceError",
    "attach",
    "carry_over",
    "cost",
    "gate_learning_rate",
    "info",
    "load",
    "plan",
    "prune",
    "save",
]

_HOMES = {
    "depl0.analysis.plan": ("Group", "Plan"),
    "depl0.gates.threshold": ("Budget",),
    "depl0.config": ("GateConfig",),
    "depl0.costs": ("Cost", "cost"),
    "depl0.errors": (
        "CertificateError",
        "Depl0Error",
        "FormatError",
        "GateError",
        "InputError",
        "NothingToPruneError",
        "TraceError",
    ),
    "depl0.surgery.files": ("load", "save"),
    "depl0.gated": ("GatedModel", "attach"),
    "depl0.planning": ("plan",),
    "depl0.search.one_shot": ("prune",),
    "depl0.search.calibration": ("Calibration",),
    "depl0.search.rates": ("gate_learning_rate",),
    "depl0.search.search": ("Search", "SearchConfig", "SearchListener"),
    "depl0.equivalence.certificate": ("Certificate",),
    "depl0.surgery.record": ("CompactInfo", "info"),
    "depl0.surgery.shrink": ("carry_over",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_PACKAGES = ("analysis", "app", "costs", "errors", "gated", "gates", "select", "surgery")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the command answers ``--help`` without waiting for torch."""
    if name in _PACKAGES:
        return import_module(f"depl0.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'depl0' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PACKAGES})
