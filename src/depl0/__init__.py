"""depl0: prune convolutional networks to a budget.

>>> import torch, depl0
>>> model = depl0.models.build("lenet5")
>>> gated = depl0.attach(model, torch.zeros(2, 1, 28, 28))
>>> compact = gated.extract()
>>> type(compact) is type(model)
True
"""

from depl0 import models
from depl0.analysis.plan import Group, Plan
from depl0.budgets.threshold import Budget
from depl0.config import GateConfig
from depl0.costs import Cost, cost
from depl0.errors import (
    CertificateError,
    Depl0Error,
    FormatError,
    GateError,
    InputError,
    NothingToPruneError,
    TraceError,
)
from depl0.files import load, save
from depl0.gated import GatedModel, attach
from depl0.planning import plan
from depl0.pruning.at_once import prune
from depl0.pruning.calibration import Calibration
from depl0.pruning.rates import gate_learning_rate
from depl0.pruning.search import Search, SearchConfig, SearchListener
from depl0.surgery.certificate import Certificate
from depl0.surgery.description import CompactInfo, info
from depl0.surgery.narrow import carry_over

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
    "models",
    "plan",
    "prune",
    "save",
]
