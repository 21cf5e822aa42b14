"""depl0: make convolutional networks really smaller.

>>> import torch, depl0
>>> model = depl0.models.build("lenet5")
>>> gated = depl0.attach(model, torch.zeros(2, 1, 28, 28))
>>> compact = gated.extract()
>>> type(compact) is type(model)
True
"""

from depl0 import models
from depl0.analysis.plan import Group, Plan
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

__version__ = "0.1.0"

__all__ = [
    "CertificateError",
    "Cost",
    "Depl0Error",
    "FormatError",
    "GateError",
    "GatedModel",
    "Group",
    "InputError",
    "NothingToPruneError",
    "Plan",
    "TraceError",
    "attach",
    "cost",
    "load",
    "models",
    "plan",
    "save",
]
