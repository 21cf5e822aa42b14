"""Networks of transformers, trained for seconds: pruned in one call, they are at least as good as with Wanda-sp."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, silu

import depl0
from depl0.gated import GatedModel

transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore")]

BUDGET, TOKENS, LENGTH = 0.6, 24, 12
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


@dataclass(frozen=True)
class Case:
    """A network, its batches by number, and how many steps it is trained for."""

    network: Callable[[], Any]
    batch: Callable[[int, int], dict[str, Tensor]]
    """(number, examples) -> inputs with labels; test data have a number below 0"""
    steps: int
    groups: str = "all"
    seeds: int = 1
    """Number of trained networks whose mean loss is judged."""


def counting(number: int, examples: int) -> dict[str, Tensor]:
    """Return sequences that go up by a step of their own, modulo the number of tokens."""
    rng = torch.Generator().manual_seed(number)
    start, step = torch.randint(TOKENS, (examples, 1), generator=rng), torch.randint(1, 5, (examples, 1), generator=rng)
    tokens = (start + step * torch.arange(LENGTH)) % TOKENS
    return {"input_ids": tokens, "labels": tokens}


def sentences(number: int, examples: int) -> dict[str, Tensor]:
    """Return padded sentences; words 0 to 2 say class 0, 3 to 5 class 1, and so on."""
    rng = torch.Generator().manual_seed(number)
    tokens, labels = torch.randint(9, TOKENS, (examples, LENGTH), generator=rng), torch.arange(examples) % 3
    said = 3 * labels[:, None] + torch.randint(3, (examples, 2), generator=rng)
    tokens.scatter_(1, torch.randint(6, (examples, 2), generator=rng), said)
    mask = torch.arange(LENGTH) < torch.randint(6, LENGTH + 1, (examples, 1), generator=rng)
    return {"input_ids": tokens, "attention_mask": mask.long(), "labels": labels}


def images(number: int, examples: int) -> dict[str, Tensor]:
    """Return handwritten digits."""
    digits = load_digits()
    pixels, labels = torch.tensor(digits.images).float()[:, None] / 16, torch.tensor(digits.target)
    first, last = (1400, len(labels)) if number < 0 else (0, 1400)
    places = torch.randint(first, last, (examples,), generator=torch.Generator().manual_seed(abs(number)))
    return {"pixel_values": pixels[places], "labels": labels[places]}


def mixtral() -> Any:
    """Return a mixture of experts; its fused operator takes neither float64 nor most widths."""
    config = transformers.MixtralConfig(
        **SMALL, vocab_size=TOKENS, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, use_cache=False
    )
    network = transformers.MixtralForCausalLM(config)
    network.set_experts_implementation("batched_mm")
    return network


def bert() -> Any:
    """Return an encoder of text."""
    config = transformers.BertConfig(**SMALL, vocab_size=TOKENS, max_position_embeddings=LENGTH, num_labels=3)
    return transformers.BertForSequenceClassification(config)


def vit() -> Any:
    """Return an encoder of images."""
    config = transformers.ViTConfig(**SMALL, image_size=8, patch_size=2, num_channels=1, num_labels=10)
    return transformers.ViTForImageClassification(config)


# fused experts cannot be refitted to a narrower residual stream; networks of this size differ by 20 %
CASES = {
    "experts": Case(mixtral, counting, 150, "inner", seeds=3),
    "text": Case(bert, sentences, 150),
    "images": Case(vit, images, 250),
}


def trained(case: Case, seed: int) -> Any:
    """Train a network, and leave it in evaluation mode."""
    torch.manual_seed(seed)
    network = case.network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for step in range(case.steps):
        network(**case.batch(step + 1, 64)).loss.backward()
        optimizer.step(), optimizer.zero_grad()
    return network.eval()


@torch.no_grad()
def loss(network: Any, case: Case) -> float:
    """Return the mean cross entropy on test data."""
    batch = case.batch(-1, 256)
    labels = batch.pop("labels")
    logits = network(**batch).logits
    if logits.dim() == 3:
        logits, labels = logits[:, 1:-1].flatten(0, 1), labels[:, 2:].flatten()
    return float(cross_entropy(logits, labels))


@torch.no_grad()
def wanda(gated: GatedModel, batch: dict[str, Tensor]) -> tuple[Tensor, list[Any]]:
    """Return |weight| times the norm of its input, summed over every MLP channel, and the MLP groups."""
    seen: dict[str, Tensor] = {}

    def note(name: str) -> Callable[..., None]:
        def hook(module: Any, args: tuple[Tensor, ...]) -> None:
            if isinstance(module, nn.Linear):
                seen[name] = (module.weight.abs() * args[0].flatten(0, -2).square().mean(0).sqrt()).sum(0)
                return
            rows, chosen = args[0].flatten(0, -2), args[1]
            score = torch.zeros(module.down_proj.shape[-1])
            for expert, (into, out) in enumerate(zip(module.gate_up_proj, module.down_proj, strict=True)):
                gate, up = (rows[(chosen == expert).any(-1)] @ into.T).chunk(2, -1)
                score += (out.abs() * (silu(gate) * up).square().mean(0).sqrt()).sum(0)
            seen[name] = score

        return hook

    readers = {
        name: module
        for name, module in gated.host.named_modules()
        if name.endswith((".experts", "mlp.fc2")) or (name.endswith(".output.dense") and "attention" not in name)
    }
    hooks = [module.register_forward_pre_hook(note(name)) for name, module in readers.items()]
    gated.host(**batch)
    for hook in hooks:
        hook.remove()
    groups = [group for group in gated.plan.groups if group.size == SMALL["intermediate_size"]]
    assert len(groups) == len(seen) == SMALL["num_hidden_layers"]
    scores = torch.zeros(gated.plan.num_gates)
    for group, score in zip(groups, seen.values(), strict=True):
        scores[group.gates] = score
    return scores, groups


def wanda_sp(network: Any, batch: dict[str, Tensor], macs: float) -> Any:
    """Return a network with one ratio in all MLPs, of at least as many MACs."""
    gated = depl0.attach(network, {name: value[:1] for name, value in batch.items()}, generator="independent")
    scores, groups = wanda(gated, batch)
    snapshot = gated.snapshot()
    for kept in range(1, SMALL["intermediate_size"] + 1):
        gates = torch.ones(gated.plan.num_gates)
        for group in groups:
            gates[scores[group.gates].argsort()[: group.size - kept] + group.offset] = 0
        if snapshot.share(gates > 0, "macs") >= macs:
            break
    gated.fix_gates(gates)
    return gated.extract().eval()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_one_call_is_at_least_as_good_as_wanda_sp(name: str) -> None:
    case = CASES[name]
    data = [case.batch(number, 64) for number in range(1001, 1009)]
    for batch in data:
        batch.pop("labels")
    example = {key: value[:1] for key, value in data[0].items()}
    own, others = [], []
    for seed in range(case.seeds):
        network = trained(case, seed)
        pruned = depl0.prune(network, example, data=data, budget=BUDGET, recover=None, groups=case.groups, quiet=True)
        other = wanda_sp(network, data[0], depl0.info(pruned).macs_left)
        assert depl0.info(other).macs_left >= depl0.info(pruned).macs_left
        assert loss(network, case) < 1.0  # it has learned
        own.append(loss(pruned, case))
        others.append(loss(other, case))
    assert sum(own) <= sum(others)
