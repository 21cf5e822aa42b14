"""A narrow VGG16 for CIFAR-10, and its training: a network whose layers are unevenly redundant, small enough for a CPU.

    python benchmarks/narrow_vgg.py weights.safetensors --data cifar10:DIR --epochs 6
    depl0 compare … --model benchmarks/narrow_vgg.py:make --weights weights.safetensors

VGG16's layers with a quarter of their channels. One cycle of SGD with label smoothing, as far as the time allows; the
comparison of benchmarks/results/comparison starts from it.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from depl0.app.data import DataSettings, open_data

WIDTHS = ((16, 16), (32, 32), (64, 64, 64), (128, 128, 128), (128, 128, 128))
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class NarrowVGG(nn.Module):
    """VGG16 with a quarter of the channels: 20 M MACs and 0.9 M parameters on 32x32 images."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for stage in WIDTHS:
            for width in stage:
                layers += [nn.Conv2d(before, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
                before = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(before, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return one score per class: (batch, 3, 32, 32) to (batch, classes)."""
        scores: Tensor = self.classifier(self.features(images).flatten(1))
        return scores


def make(num_classes: int = 10) -> NarrowVGG:
    """Build the network, untrained."""
    return NarrowVGG(num_classes)


@torch.no_grad()
def accuracy(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the share of images that are classified rightly, in per cent."""
    model.eval()
    right = [(model(x).argmax(1) == y).float() for x, y in batches]
    return 100.0 * float(torch.cat(right).mean())


def main() -> None:
    """Train, evaluate once, and save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    settings = DataSettings(batch_size=args.batch_size, mean=MEAN, std=STD, augment="crop-flip", seed=args.seed)
    data = open_data(args.data, settings)
    model = make().to(memory_format=torch.channels_last)
    sgd = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    steps = args.epochs * math.ceil(data.info.train_size / args.batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(sgd, args.lr, total_steps=steps, pct_start=0.2)
    for epoch in range(args.epochs):
        model.train()
        start, total, number = time.perf_counter(), 0.0, 0
        for x, y in data.train.epoch(epoch):
            loss = F.cross_entropy(model(x.to(memory_format=torch.channels_last)), y, label_smoothing=0.05)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            if schedule.last_epoch < steps - 1:
                schedule.step()
            total, number = total + float(loss.detach()), number + 1
        print(f"epoch {epoch + 1}: loss {total / number:.3f}, {time.perf_counter() - start:.0f} s", flush=True)
    print(f"test accuracy {accuracy(model, data.test.epoch(0)):.2f} %")
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, args.out)


if __name__ == "__main__":
    main()
