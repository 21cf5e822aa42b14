"""Measure the images per second of a data set in memory: shuffled, cropped, mirrored and normalised.

Run ``python benchmarks/data_speed.py`` for random pixels in the shape of CIFAR-10, or with ``--data cifar10:DIR`` for
the real ones. One thread; the median of several epochs is printed, with the slowest and the fastest.

``--files N`` writes N JPEG files of 256x256 pixels instead, and reads them at 224x224, in turns, as ``folder:`` does
and as torchvision's ImageFolder with its transforms (v2) in a DataLoader of torch, with as many workers.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from depl0._util.optional import import_torchvision
from depl0.app.data import Batches, DataSettings, Target, open_data
from depl0.app.data.batches import Source, open_source


def main() -> None:
    """Print images per second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a data set, such as cifar10:DIR; without it, random pixels")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--augment", default="crop-flip")
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--files", type=int, help="compare with torchvision on so many JPEG files")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    if arguments.files:
        compare_files(arguments.files, arguments.batch_size, arguments.workers, arguments.epochs)
        return
    settings = DataSettings(batch_size=arguments.batch_size, augment=arguments.augment)
    train = open_data(arguments.data, settings).train if arguments.data else random_pixels(settings)
    time_epoch(train, 0)  # the first one also pages the images in
    speeds = [train.size / time_epoch(train, epoch) for epoch in range(1, arguments.epochs + 1)]
    print(
        f"{statistics.median(speeds):,.0f} images/s "
        f"(from {min(speeds):,.0f} to {max(speeds):,.0f}, n={len(speeds)} epochs of {train.size:,}; "
        f"batch {arguments.batch_size}, {arguments.augment}, {arguments.threads} thread(s), torch {torch.__version__})"
    )


def compare_files(count: int, batch_size: int, workers: int, epochs: int) -> None:
    """Print images per second of both ways to read files, and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), count)
        settings = DataSettings(batch_size=batch_size, augment="imagenet", workers=workers, image_size=224)
        train = open_data(f"folder:{folder}", settings).train
        other = torchvision_epoch(folder, settings)
        readers = {"folder:": lambda number: time_epoch(train, number), "torchvision": other}
        rounds = [{name: count / read(number) for name, read in readers.items()} for number in range(epochs + 1)][1:]
    for name in readers:
        print(f"{name:12} {statistics.median(speeds[name] for speeds in rounds):,.0f} images/s")
    ratios = [speeds["folder:"] / speeds["torchvision"] for speeds in rounds]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}, n={epochs} rounds, {workers} workers"
    print(f"ratio {statistics.median(ratios):.2f} ({spread})")


def write_files(folder: Path, count: int) -> None:
    """Write smooth random images, which are as large as photographs when compressed."""
    from PIL import Image

    rng = torch.Generator().manual_seed(0)
    for part, images in (("train", count), ("test", 4)):
        for number in range(images):
            coarse = torch.rand(1, 3, 32, 32, generator=rng)
            pixels = torch.nn.functional.interpolate(coarse, size=256, mode="bicubic").clamp(0, 1)[0].permute(1, 2, 0)
            path = folder / part / f"class{number % 2}"
            path.mkdir(parents=True, exist_ok=True)
            Image.fromarray((pixels * 255).byte().numpy()).save(path / f"{number}.jpg", quality=90)


def torchvision_epoch(folder: str, settings: DataSettings) -> Callable[[int], float]:
    """Return a function that reads the same files as users of torchvision do, and measures the seconds."""
    import_torchvision()
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    steps = [v2.ToImage(), v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    images = ImageFolder(str(Path(folder) / "train"), v2.Compose([*steps, v2.Normalize(mean, std)]))
    loader = torch.utils.data.DataLoader(
        images, settings.batch_size, shuffle=True, num_workers=settings.workers or 0, drop_last=True
    )

    def read(number: int) -> float:
        start = time.perf_counter()
        for _ in loader:
            pass
        return time.perf_counter() - start

    return read


def random_pixels(settings: DataSettings) -> Batches:
    """Make a data set in the shape of CIFAR-10, without any file."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(256, (50_000, 3, 32, 32), dtype=torch.uint8, generator=rng)
    labels = torch.randint(10, (50_000,), generator=rng)
    part = (images, labels)
    augmentations = ("crop-flip", "crop", "none")
    source = Source("random", part, (images[:1], labels[:1]), num_classes=10, augmentations=augmentations)
    return open_source(source, settings, Target(torch.device("cpu"))).train


def time_epoch(batches: Batches, number: int) -> float:
    """Measure the seconds of one epoch of training batches."""
    start = time.perf_counter()
    for _ in batches.epoch(number):
        pass
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
