"""Prune a small Llama: train it to count, cut it, recover without labels, generate, save and load."""

from __future__ import annotations

import tempfile

import torch
from torch import Tensor, nn

import depl0
from depl0.integrations.transformers import load_pretrained, save_pretrained

# depl0 comes first, so that a torchvision of another build does not stop the imports of transformers.
# isort: split
from transformers import LlamaConfig, LlamaForCausalLM

BUDGET = 0.6
STEPS, BATCH, LENGTH, TOKENS = 250, 64, 12, 16


def counting(count: int, seed: int) -> Tensor:
    """Sequences that go up by a step of their own, modulo the number of tokens."""
    rng = torch.Generator().manual_seed(seed)
    start, step = torch.randint(TOKENS, (count, 1), generator=rng), torch.randint(1, 4, (count, 1), generator=rng)
    return (start + step * torch.arange(LENGTH)) % TOKENS


@torch.no_grad()
def accuracy(model: nn.Module, sequences: Tensor) -> float:
    """Return how often the next token is right, from the third on: two say what the step is."""
    answers = model(sequences).logits[:, 1:-1].argmax(-1)
    return 100 * float((answers == sequences[:, 2:]).float().mean())


def main() -> None:
    """Train, prune, generate, save and load."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(STEPS):
        sequences = counting(BATCH, seed=step)
        model(sequences, labels=sequences).loss.backward()
        optimizer.step(), optimizer.zero_grad()
    test = counting(256, seed=10_000)
    before = accuracy(model.eval(), test)

    batches = [counting(BATCH, seed=20_000 + n) for n in range(8)]  # no labels
    compact = depl0.prune(model, batches[0][:1], data=batches, budget=BUDGET, class_axis=-1, recover=100)

    settings = {"max_new_tokens": LENGTH - 2, "do_sample": False, "pad_token_id": 0}
    generated = compact.generate(test[:4, :2], use_cache=True, **settings)
    assert torch.equal(generated, compact.generate(test[:4, :2], use_cache=False, **settings))
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_pretrained(save_pretrained(compact, folder))
    assert torch.equal(loaded.generate(test[:4, :2], **settings), generated)

    info = depl0.info(compact)
    print(f"{test[0, :2].tolist()} goes on with {generated[0, 2:].tolist()}")
    print(f"dense: accuracy {before:.1f}%")
    print(f"compact: accuracy {accuracy(compact, test):.1f}%, left are {100 * info.macs_left:.1f}% of the MACs")


if __name__ == "__main__":
    main()
