"""Prune with the Hugging Face Trainer: one callback, here for a small BERT that classifies sentences."""

from __future__ import annotations

import tempfile

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import depl0
from depl0.integrations.transformers import SearchCallback, save_pretrained

# depl0 comes first, so that a torchvision of another build does not stop the trainer's imports.
# isort: split
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
)

BUDGET = 0.5
EPOCHS, BATCH, LENGTH = 6, 32, 16
WORDS, TELLING = 64, 4
"""all words, of which the first four mean class 0 and the next four class 1"""


class Sentences(Dataset[dict[str, Tensor]]):
    """Between 8 and 16 words, two of which tell the class; shorter sentences are padded."""

    def __init__(self, count: int, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(2, (count,), generator=rng)
        self.input_ids = torch.randint(2 * TELLING, WORDS, (count, LENGTH), generator=rng)
        telling = torch.randint(TELLING, (count, 2), generator=rng) + TELLING * self.labels[:, None]
        places = torch.randint(1, LENGTH // 2, (count, 2), generator=rng)
        self.input_ids.scatter_(1, places, telling)
        lengths = torch.randint(LENGTH // 2, LENGTH + 1, (count, 1), generator=rng)
        self.attention_mask = (torch.arange(LENGTH) < lengths).long()

    def inputs(self, count: int) -> dict[str, Tensor]:
        """Return the first sentences as a tokenizer would."""
        return {"input_ids": self.input_ids[:count], "attention_mask": self.attention_mask[:count]}

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        names = ("input_ids", "attention_mask", "labels")
        return {name: getattr(self, name)[place] for name in names}


class Classifier(nn.Module):
    """A model as the Trainer calls it: arguments by name, and a loss among the outputs."""

    def __init__(self, network: nn.Module, example: dict[str, Tensor]) -> None:
        super().__init__()
        self.gated = depl0.attach(network, example, budget=BUDGET)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return loss and scores."""
        logits = self.gated(input_ids=input_ids, attention_mask=attention_mask).logits
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def loss(outputs: dict[str, Tensor], labels: Tensor) -> Tensor:
    """Return the loss of the network's own outputs."""
    return nn.functional.cross_entropy(outputs["logits"], labels)


def main() -> None:
    """Train, prune, save, open and measure."""
    torch.manual_seed(0)
    data, test = Sentences(1024, seed=0), Sentences(512, seed=1)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
    )
    model = Classifier(BertForSequenceClassification(config), data.inputs(2))
    steps = EPOCHS * len(data) // BATCH
    optimizer = torch.optim.AdamW(model.gated.parameter_groups(lr=3e-3, steps=steps))
    search = SearchCallback(calibrate=[(data.inputs(128), data.labels[:128])], loss=loss)
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
        save_pretrained(search.compact, folder)
        compact = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)
    print(depl0.info(compact))
    with torch.no_grad():
        right = compact(**test.inputs(len(test))).logits.argmax(1) == test.labels
    print(f"accuracy {right.float().mean():.1%}")


if __name__ == "__main__":
    main()
