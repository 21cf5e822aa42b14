"""Measure how many images per second a data set in memory gives: shuffled, cropped, mirrored and normalised.

Run ``python benchmarks/data_speed.py`` for random pixels in the shape of CIFAR-10, or with ``--data cifar10:DIR`` for
the real ones. One thread; the median of several epochs is printed, with the slowest and the fastest.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from depl0.app.data import Batches, DataSettings, Target, open_data
from depl0.app.data.memory import Arrays, open_arrays


def main() -> None:
    """Print images per second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="a data set, such as cifar10:DIR; without it, random pixels")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--augment", default="crop-flip")
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    settings = DataSettings(batch_size=arguments.batch_size, augment=arguments.augment)
    train = open_data(arguments.data, settings).train if arguments.data else random_pixels(settings)
    time_epoch(train, 0)  # the first one also pages the images in
    speeds = [train.size / time_epoch(train, epoch) for epoch in range(1, arguments.epochs + 1)]
    print(
        f"{statistics.median(speeds):,.0f} images/s "
        f"(from {min(speeds):,.0f} to {max(speeds):,.0f}, n={len(speeds)} epochs of {train.size:,}; "
        f"batch {arguments.batch_size}, {arguments.augment}, {arguments.threads} thread(s), torch {torch.__version__})"
    )


def random_pixels(settings: DataSettings) -> Batches:
    """Make a data set in the shape of CIFAR-10, without any file."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(256, (50_000, 3, 32, 32), dtype=torch.uint8, generator=rng)
    labels = torch.randint(10, (50_000,), generator=rng)
    part = (images, labels)
    arrays = Arrays("random", part, (images[:1], labels[:1]), 10, (0.5,) * 3, (0.25,) * 3, augment="crop-flip")
    return open_arrays(arrays, settings, Target(torch.device("cpu"))).train


def time_epoch(batches: Batches, number: int) -> float:
    """Measure the seconds of one epoch of training batches."""
    start = time.perf_counter()
    for _ in batches.epoch(number):
        pass
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
