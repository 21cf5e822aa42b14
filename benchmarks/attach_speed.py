"""Time attach and extract on one thread, and check that the time does not grow with the square of the channels.

    python benchmarks/attach_speed.py [--large | --only NAME]

Prints seconds for ResNet-50 and for MobileNetV2 at four widths (needs torchvision); with --large for ResNet-152 and
DenseNet-201 too. With --only, prints the CPU seconds of one network of torchvision.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from torch import nn

import depl0
from depl0.app.models import build

sys.path.insert(0, str(Path(__file__).parents[1]))


def measure(name: str, model: nn.Module, size: int = 224) -> None:
    """Attach gates, close half of them, extract; print the seconds of each."""
    inputs = torch.randn(1, 3, size, size)
    start = time.perf_counter()
    gated = depl0.attach(model, inputs)
    attached = time.perf_counter()
    gated.fix_gates((torch.rand(gated.plan.num_gates) < 0.5).float())
    gated.extract()
    done = time.perf_counter()
    print(
        f"{name:<24} {gated.plan.channels:>8} {attached - start:>8.1f} {done - attached:>8.1f} {done - start:>8.1f}"
        f" {1000 * (done - start) / gated.plan.channels:>10.2f}",
        flush=True,
    )


def measure_cpu(name: str) -> None:
    """Print the CPU seconds of attach and of extract with half of the gates closed, after torch.export is imported."""
    import torch.export

    from depl0._util.optional import import_torchvision

    model, inputs = import_torchvision().models.get_model(name, weights=None), torch.randn(1, 3, 224, 224)
    start = time.process_time()
    gated = depl0.attach(model, inputs)
    attached = time.process_time()
    gated.fix_gates((torch.rand(gated.plan.num_gates) < 0.5).float())
    gated.extract()
    done = time.process_time()
    print(f"{name}: attach {attached - start:.2f}, extract {done - attached:.2f}, both {done - start:.2f} CPU seconds")


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
