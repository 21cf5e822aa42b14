"""A torchvision without its compiled operators, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import torch
from depl0.app.models.spec import factory
network = factory({spec!r}, num_classes=7, in_channels=3, image_size=32)().eval()
assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 7)
"""


@pytest.mark.parametrize("spec", ["torchvision:resnet18", "timm:mobilenetv3_small_050"])
def test_networks_are_built_whether_or_not_its_operators_are_there(spec: str) -> None:
    pytest.importorskip(spec.partition(":")[0])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(spec=spec)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
