"""Networks of the paper and its neighbours, written as plain PyTorch.

Every module of this folder is imported here, so that a new network is one new file whose constructors carry
``@register``; it can then be built by name.

>>> sum(parameter.numel() for parameter in build("lenet5").parameters())
431080
"""

from __future__ import annotations

from depl0._util.registry import import_modules_of
from depl0.app.models.plain import VGG16, LeNet5, lenet5, vgg16
from depl0.app.models.resnet import CifarResNet, resnet20, resnet50, resnet56
from depl0.app.models.spec import build, names, register

__all__ = [
    "VGG16",
    "CifarResNet",
    "LeNet5",
    "build",
    "lenet5",
    "names",
    "register",
    "resnet20",
    "resnet50",
    "resnet56",
    "vgg16",
]

import_modules_of(__name__)
