"""Prune with Lightning: one callback."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import depl0
from depl0.integrations.lightning import SearchCallback

# depl0 comes first, so that a torchvision of another build does not stop the trainer's imports.
# isort: split
import lightning.pytorch as pl
from lightning.pytorch.callbacks import EMAWeightAveraging

BUDGET = 0.5


def checkers(count: int, seed: int) -> TensorDataset:
    """Noisy 16×16 checkerboards; the class is the size of their squares, one of three."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=rng)
    y, x = torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    boards = torch.stack([((y // size + x // size) % 2).float() for size in (1, 2, 4)])
    images = boards[labels] * 2 - 1 + 1.5 * torch.randn(count, 16, 16, generator=rng)
    return TensorDataset(images.unsqueeze(1), labels)


def network() -> nn.Module:
    """Return a small convolutional classifier."""
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Conv2d(24, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 3),
    )


class Classifier(pl.LightningModule):
    """A module as any other; the network that it calls has gates."""

    def __init__(self) -> None:
        super().__init__()
        self.gated = depl0.attach(network(), torch.zeros(2, 1, 16, 16), budget=BUDGET)

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        """Return the loss of a batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self.gated(images), labels)

    def configure_optimizers(self) -> dict[str, object]:
        """Return one optimizer for weights and gates, and a schedule."""
        steps = int(self.trainer.estimated_stepping_batches)
        optimizer = torch.optim.AdamW(self.gated.parameter_groups(lr=5e-3, steps=steps))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def main() -> None:
    """Train, prune, and tell what was reached."""
    pl.seed_everything(0, verbose=False)
    data, test = checkers(768, seed=0), checkers(512, seed=1)
    search = SearchCallback(calibrate=[data[:128]], loss=nn.functional.cross_entropy)
    trainer = pl.Trainer(
        max_epochs=5,
        accelerator="cpu",
        precision="bf16-mixed",
        callbacks=[EMAWeightAveraging(decay=0.9), search],  # the search last: it takes the averaged weights
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), DataLoader(data, batch_size=32, shuffle=True))
    compact = search.compact
    print(depl0.info(compact))
    print(f"accuracy {accuracy(compact, test):.1%}")


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Return the share of images whose class is found."""
    model.eval()
    images, labels = data.tensors
    return float((model(images).argmax(1) == labels).float().mean())


if __name__ == "__main__":
    main()
