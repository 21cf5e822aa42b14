"""Prune a YOLO of Ultralytics: train it on drawn shapes, halve its cost, train it on, export it."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from ultralytics import YOLO

import depl0
from depl0.host.inputs import ExampleInputs
from depl0.integrations import ultralytics as pruning
from depl0.latency import time_networks

BUDGET = 0.5
CLASSES = ["circle", "square", "triangle"]


def draw(folder: Path, count: int, size: int, rng: np.random.Generator) -> None:
    """Write images of one to three shapes on a noisy ground, and a file of boxes for each."""
    labels = Path(str(folder).replace("images", "labels"))
    folder.mkdir(parents=True), labels.mkdir(parents=True)
    for number in range(count):
        image = Image.fromarray(rng.integers(0, 110, (size, size, 3), dtype=np.uint8))
        pen, boxes = ImageDraw.Draw(image), []
        for _ in range(rng.integers(1, 4)):
            side = int(rng.integers(size // 5, size // 2))
            x, y = (int(at) for at in rng.integers(0, size - side, 2))
            color = tuple(int(value) for value in rng.integers(90, 256, 3))
            kind, ends = int(rng.integers(len(CLASSES))), (x, y, x + side, y + side)
            if CLASSES[kind] == "circle":
                pen.ellipse(ends, fill=color)
            elif CLASSES[kind] == "square":
                pen.rectangle(ends, fill=color)
            else:
                pen.polygon([(x, y + side), (x + side, y + side), (x + side // 2, y)], fill=color)
            box = ((x + side / 2) / size, (y + side / 2) / size, side / size, side / size)
            boxes.append(f"{kind} " + " ".join(f"{value:.4f}" for value in box))
        image.save(folder / f"{number}.png")
        (labels / f"{number}.txt").write_text("\n".join(boxes))


def main() -> None:
    """Print mAP and milliseconds of the dense network, at the cut, and after training on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="yolo11n.yaml")
    parser.add_argument("--images", type=int, default=320)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--epochs", type=int, default=30, help="of the dense network; the compact one has a third")
    parser.add_argument("--export", action="store_true", help="write small.onnx too")
    given = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as temporary:
        root, rng = Path(temporary).resolve(), np.random.default_rng(0)
        draw(root / "images" / "train", given.images, given.size, rng)
        draw(root / "images" / "val", max(given.images // 4, 8), given.size, rng)
        data = root / "shapes.yaml"
        data.write_text(f"path: {root}\ntrain: images/train\nval: images/val\nnames: {CLASSES}\n")
        common: dict[str, Any] = {"data": str(data), "imgsz": given.size, "workers": 0, "plots": False}
        train: dict[str, Any] = {**common, "batch": 16, "project": str(root), "seed": 0, "verbose": False}

        yolo = YOLO(given.network)
        before = yolo.train(epochs=given.epochs, **train).box.map

        batches = pruning.images(yolo, str(root / "images" / "train"), count=128)
        small = pruning.prune(yolo, batches, budget=BUDGET)
        at_the_cut = small.val(**common, verbose=False).box.map
        after = pruning.train(small, epochs=max(given.epochs // 3, 1), **train).box.map

        pruning.save(small, root / "small.pt")
        opened = YOLO(root / "small.pt")  # as anybody would, without depl0
        assert sum(p.numel() for p in opened.model.parameters()) == sum(p.numel() for p in small.model.parameters())
        if given.export:
            print("exported:", opened.export(format="onnx", imgsz=given.size, simplify=False))

        example = torch.rand(1, 3, given.size, given.size)
        fused = {"dense": yolo.model.eval().fuse(verbose=False), "compact": opened.model.eval().fuse(verbose=False)}
        times = time_networks(fused, ExampleInputs.of(example), repeats=30, seconds=15.0)
        info = depl0.info(small.model)
        print(f"mAP50-95: dense {before:.3f}, at the cut {at_the_cut:.3f}, trained on {after:.3f}")
        print(f"milliseconds: {1e3 * median(times['dense']):.1f} -> {1e3 * median(times['compact']):.1f}")
        print(f"parameters: {info.dense.params:,} -> {info.compact.params:,}")
        print(f"left are {100 * info.macs_left:.1f}% of the MACs")


if __name__ == "__main__":
    main()
