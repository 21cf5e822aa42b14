"""Time attach and extract on one thread, and check that the time does not grow with the square of the channels.

    python benchmarks/attach_speed.py [--large | --only NAME]

Prints seconds for ResNet-50 and for MobileNetV2 at four widths (needs torchvision); with --large for ResNet-152 and
DenseNet-201 too. With --only, prints the CPU seconds of one network of torchvision.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import depl0
from depl0.app.models import build

sys.path.insert(0, str(Path(__file__).parents[1]))


def timed(model: nn.Module, size: int, clock: Callable[[], float]) -> tuple[int, float, float]:
    """Attach gates, close half of them and extract; return the channels, and the seconds of attach and extract."""
    inputs, start = torch.randn(1, 3, size, size), clock()
    gated = depl0.attach(model, inputs)
    attached = clock()
    gated.fix_gates((torch.rand(gated.plan.num_gates) < 0.5).float())
    gated.extract()
    return gated.plan.channels, attached - start, clock() - attached


def measure(name: str, model: nn.Module, size: int = 224) -> None:
    """Print the seconds of one network."""
    channels, attach, extract = timed(model, size, time.perf_counter)
    both = attach + extract
    print(
        f"{name:<24} {channels:>8} {attach:>8.1f} {extract:>8.1f} {both:>8.1f} {1000 * both / channels:>10.2f}",
        flush=True,
    )


def measure_cpu(name: str) -> None:
    """Print the CPU seconds of attach and of extract with half of the gates closed, after torch.export is imported."""
    from depl0._util.optional import import_torchvision

    importlib.import_module("torch.export")
    _, attach, extract = timed(import_torchvision().models.get_model(name, weights=None), 224, time.process_time)
    print(f"{name}: attach {attach:.2f}, extract {extract:.2f}, both {attach + extract:.2f} CPU seconds")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true", help="ResNet-152 and DenseNet-201 too")
    parser.add_argument("--only", metavar="NAME", help="the CPU seconds of one network of torchvision")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if options.only is not None:
        measure_cpu(options.only)
        return
    print(f"{'network':<24} {'channels':>8} {'attach':>8} {'extract':>8} {'seconds':>8} {'ms/channel':>10}")
    measure("ResNet-50", build("resnet50"))
    from depl0._util.optional import import_torchvision

    models = import_torchvision().models
    for width in (0.5, 1.0, 2.0, 4.0):
        measure(f"MobileNetV2, width {width:g}", models.mobilenet_v2(weights=None, width_mult=width), 64)
    if options.large:
        measure("ResNet-152", models.resnet152(weights=None))
        measure("DenseNet-201", models.densenet201(weights=None))


if __name__ == "__main__":
    main()
