"""Prune with the Hugging Face Trainer: one callback, here for a text classifier with convolutions over characters."""

from __future__ import annotations

import tempfile

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import depl0
from depl0.integrations.transformers import SearchCallback

# depl0 comes first, so that a torchvision of another build does not stop the trainer's imports.
# isort: split
from transformers import Trainer, TrainingArguments

BUDGET = 0.5
EPOCHS, BATCH, LENGTH = 5, 32, 32
WORDS = {0: ("rain", "cloud", "storm", "wind"), 1: ("bread", "cheese", "apple", "soup")}


class Sentences(Dataset[dict[str, Tensor]]):
    """Characters in disorder with a word of the class somewhere among them."""

    def __init__(self, count: int, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(2, (count,), generator=rng)
        self.characters = torch.randint(26, (count, LENGTH), generator=rng)
        for sentence, label in zip(self.characters, self.labels.tolist(), strict=True):
            word = WORDS[label][int(torch.randint(4, (), generator=rng))]
            start = int(torch.randint(LENGTH - len(word), (), generator=rng))
            sentence[start : start + len(word)] = torch.tensor([ord(letter) - ord("a") for letter in word])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"characters": self.characters[place], "labels": self.labels[place]}


class TextNet(nn.Module):
    """Convolutions over embedded characters, and the largest answer of each filter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(26, 16)
        self.first = nn.Sequential(nn.Conv1d(16, 32, 3, padding=1), nn.BatchNorm1d(32), nn.ReLU())
        self.second = nn.Sequential(nn.Conv1d(32, 32, 3, padding=1), nn.BatchNorm1d(32), nn.ReLU())
        self.last = nn.Linear(32, 2)

    def forward(self, characters: Tensor) -> Tensor:
        """Return the scores of both classes."""
        x = self.embed(characters).transpose(1, 2)
        return self.last(self.second(self.first(x)).amax(2))


class Classifier(nn.Module):
    """What the Trainer wants of a model: arguments by name, and a loss among the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.gated = depl0.attach(TextNet(), torch.zeros(2, LENGTH, dtype=torch.long), budget=BUDGET)

    def forward(self, characters: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return loss and scores."""
        logits = self.gated(characters)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    """Train, prune, and tell what was reached."""
    torch.manual_seed(0)
    data, test = Sentences(1024, seed=0), Sentences(512, seed=1)
    model = Classifier()
    steps = EPOCHS * len(data) // BATCH
    optimizer = torch.optim.AdamW(model.gated.parameter_groups(lr=5e-3, steps=steps))
    search = SearchCallback(calibrate=[(data.characters[:128], data.labels[:128])], loss=nn.functional.cross_entropy)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=EPOCHS,
            per_device_train_batch_size=BATCH,
            lr_scheduler_type="cosine",
            save_steps=100,  # trainer.train(resume_from_checkpoint=True) would go on from there
            use_cpu=True,
            disable_tqdm=True,
            logging_strategy="no",
            report_to=[],
            seed=0,
        )
        trainer = Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None), callbacks=[search])
        trainer.train()
    compact = search.compact.eval()
    print(depl0.info(compact))
    with torch.no_grad():
        right = compact(test.characters).argmax(1) == test.labels
    print(f"accuracy {right.float().mean():.1%}")


if __name__ == "__main__":
    main()
