"""Prune in a loop with Hugging Face Accelerate; `accelerate launch` runs it in several processes."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import depl0

BUDGET = 0.4
EPOCHS = 6


def blobs(count: int, seed: int) -> TensorDataset:
    """12×12 images with a bright spot in one of four corners, in colours that say nothing."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=rng)
    images = 0.7 * torch.randn(count, 3, 12, 12, generator=rng)
    for number, label in enumerate(labels.tolist()):
        row, column = 2 + 5 * (label // 2), 2 + 5 * (label % 2)
        images[number, :, row : row + 3, column : column + 3] += torch.rand(3, 1, 1, generator=rng)
    return TensorDataset(images, labels)


def network() -> nn.Module:
    """Return a small convolutional classifier that keeps places apart."""
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Conv2d(24, 24, 3, stride=2, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.AvgPool2d(3),
        nn.Flatten(),
        nn.Linear(96, 4),
    )


def main() -> None:
    """Train, prune, and tell what was reached."""
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    data = blobs(768, seed=0)
    loader = DataLoader(data, batch_size=16, shuffle=True)
    gated = depl0.attach(network(), torch.zeros(2, 3, 12, 12), budget=BUDGET)
    steps = EPOCHS * len(loader) // accelerator.gradient_accumulation_steps
    optimizer = torch.optim.AdamW(gated.parameter_groups(lr=3e-3, steps=steps))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    model, optimizer, loader, schedule = accelerator.prepare(gated, optimizer, loader, schedule)
    # The search takes the gated network itself, not what prepare has wrapped around it. With cut="auto", the default,
    # nothing is cut before the end where there are several processes; otherwise: when search.step() returns True,
    # model = accelerator.prepare(gated).
    search = depl0.Search(
        gated, steps, optimizers=[optimizer], calibrate=[data[:128]], loss=nn.functional.cross_entropy
    )
    begins = True
    for _ in range(EPOCHS):
        for x, y in loader:
            if begins:
                search.step()  # once for every step of the optimizer, before the first of its batches
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            begins = accelerator.sync_gradients
    compact = search.finish()
    accelerator.print(depl0.info(compact))
    accelerator.print(f"accuracy {accuracy(compact, blobs(512, seed=1)):.1%}")


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Return the share of images whose class is found."""
    model.eval()
    images: Tensor
    images, labels = data.tensors
    return float((model(images).argmax(1) == labels).float().mean())


if __name__ == "__main__":
    main()
