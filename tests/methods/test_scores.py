"""Every score against a direct computation, on a network with coupled layers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from depl0.app.methods import METHODS, Scored
from depl0.errors import InputError
from depl0.gated import GatedModel
from depl0.search.importance import FEW
from tests.networks.coupled import Coupled, NoNorm, gated_network, some_batches

pytestmark = pytest.mark.usefixtures("remembered_plans")

SCORED = sorted(name for name, method in METHODS.items() if isinstance(method, Scored))
EVERY = ("stem", "inner", "back", "wide", "depthwise")
LAYERS = {"stream": ("stem", "back"), "inner": ("inner",), "wide": ("wide", "depthwise")}


def scores_of(name: str, gated: GatedModel, seed: int = 0) -> Tensor:
    method = METHODS.find(name)
    assert isinstance(method, Scored)
    return method.scores(gated, some_batches(), F.cross_entropy, torch.Generator().manual_seed(seed))


def by_hand(host: torch.nn.Module, measure: object) -> Tensor:
    """Add up what ``measure`` says of each coupled layer, group by group."""
    return torch.cat([sum(torch.as_tensor(measure(layer)) for layer in layers) for layers in LAYERS.values()]).float()


def weight_of(host: torch.nn.Module, layer: str) -> np.ndarray:
    return getattr(host, layer).weight.detach().double().numpy()


def distances(weight: np.ndarray) -> list[float]:
    return [sum(np.sqrt(((a - b) ** 2).sum()) for b in weight) for a in weight]


@pytest.mark.parametrize(
    ("name", "prefix", "measure"),
    [
        ("l1-norm", "", lambda weight: [np.abs(f).sum() for f in weight]),
        ("sfp", "", lambda weight: [np.sqrt((f**2).sum()) for f in weight]),
        ("fpgm", "", distances),
        ("slimming", "bn_", np.abs),
    ],
)
def test_scores_of_weights(name: str, prefix: str, measure: Callable[[np.ndarray], object]) -> None:
    gated = gated_network()
    wanted = by_hand(gated.host, lambda layer: measure(weight_of(gated.host, prefix + layer)))
    torch.testing.assert_close(scores_of(name, gated), wanted)


def test_slimming_pulls_at_every_scale_that_has_a_gate() -> None:
    gated = gated_network(groups=["inner", "wide"])
    method = METHODS.find("slimming")
    assert isinstance(method, Scored)
    term = method.term(gated)
    assert term is not None
    term.backward()
    host = gated.host
    for layer in ("inner", "wide", "depthwise"):
        scale = getattr(host, f"bn_{layer}").weight
        assert torch.equal(scale.grad, scale.sign())
    assert [name for name, p in host.named_parameters() if p.grad is not None] == [
        "bn_inner.weight", "bn_wide.weight", "bn_depthwise.weight",
    ]  # fmt: skip
    torch.testing.assert_close(term.detach(), scores_of("slimming", gated).sum())


def test_taylor() -> None:
    gated = gated_network()
    found = scores_of("taylor", gated)
    gated.double().eval()
    gates, step = torch.ones(18, dtype=torch.float64), 1e-6
    wanted, count = torch.zeros(18, dtype=torch.float64), 0
    for images, labels in some_batches():
        for few, few_labels in zip(images.double().split(FEW), labels.split(FEW), strict=True):
            for gate in range(18):
                nudge = torch.zeros_like(gates)
                nudge[gate] = step
                losses = [F.cross_entropy(gated.call_with_gates(gates + s * nudge, few), few_labels) for s in (1, -1)]
                wanted[gate] += ((losses[0] - losses[1]) / (2 * step)).detach() ** 2
            count += 1
    torch.testing.assert_close(found.double(), wanted / count, rtol=1e-3, atol=1e-9)


def test_hrank() -> None:
    gated = gated_network()
    host = gated.host
    assert isinstance(host, Coupled)
    batches = some_batches()
    with torch.no_grad():
        maps = {name: np.concatenate([host.maps(images)[name].numpy() for images, _ in batches]) for name in EVERY}

    def mean_rank(layer: str) -> np.ndarray:
        return np.linalg.matrix_rank(maps[layer]).mean(0)

    ranks = {layer: mean_rank(layer) for layer in EVERY}
    assert len({float(r) for layer in EVERY for r in ranks[layer]}) > 7  # else there is nothing to find
    # gates of the wide group multiply at the depthwise norm alone: that is where its maps are looked at
    wanted = torch.tensor(np.concatenate([ranks["stem"] + ranks["back"], ranks["inner"], ranks["depthwise"]]))
    torch.testing.assert_close(scores_of("hrank", gated), wanted.float(), rtol=0, atol=0.05)


@pytest.mark.parametrize("name", SCORED)
def test_nothing_else_changes(name: str) -> None:
    gated = gated_network().train()
    gated.host.bn_stem.eval()
    modes = [module.training for module in gated.modules()]
    state = {key: value.clone() for key, value in gated.state_dict().items()}
    random_state = torch.get_rng_state()
    scores = scores_of(name, gated)
    assert scores.shape == (18,) and not scores.requires_grad and bool(scores.isfinite().all())
    assert [module.training for module in gated.modules()] == modes
    assert all(torch.equal(value, state[key]) for key, value in gated.state_dict().items())
    assert all(parameter.grad is None for parameter in gated.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in gated.modules())
    assert torch.equal(torch.get_rng_state(), random_state)


def test_sfp_sets_whole_filters_to_zero_and_nothing_else() -> None:
    gated = gated_network()
    before = {name: tensor.clone() for name, tensor in gated.host.state_dict().items()}
    closed = [1, 6, 13]
    is_open = torch.ones(18, dtype=torch.bool)
    is_open[closed] = False
    method = METHODS.find("sfp")
    assert isinstance(method, Scored)
    method.after_epoch(gated, lambda scores: is_open)
    wanted = {"stem.weight": 1, "back.weight": 1, "inner.weight": 1, "wide.weight": 2, "depthwise.weight": 2}
    for name, tensor in gated.host.state_dict().items():
        expected = before[name]
        if name in wanted:
            expected[wanted[name]] = 0
        assert torch.equal(tensor, expected), name


def test_slimming_refuses_channels_without_a_norm() -> None:
    with pytest.raises(InputError, match=r"'slimming' needs a norm .* but bare has none \(1 of 2 groups\)") as caught:
        METHODS.find("slimming").check(gated_network(NoNorm))
    assert "l1-norm" in str(caught.value.hint)
    METHODS.find("slimming").check(gated_network(NoNorm, groups=["conv"]))
