"""The paper's selected generator against its formula, number by number."""

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from depl0.gates.generators import PRESETS, make_generator

SIZES = (3, 5, 2)


def by_hand(generator, presets_name):
    """Compute log α_l = c·tanh(W_l·x_{l−1} + b_l) in float64 with numpy alone."""
    state = {key: value.numpy().astype(np.float64) for key, value in generator.state_dict().items()}
    order = [0, 1, 2] if generator.direction == "forward" else [2, 1, 0]
    c = {"paper": 10.0, "reference": math.log(100), "default": math.log(1000)}[presets_name.removesuffix("-vgg16")]
    x = np.ones(64 if presets_name == "reference-vgg16" else SIZES[order[0]])
    log_alpha = {}
    for group in order:
        weight, bias = state[f"layers.{group}.weight"], state[f"layers.{group}.bias"]
        inner = weight @ x / len(x) + bias if presets_name == "default" else weight @ x + bias
        log_alpha[group] = c * np.tanh(inner)
        x = log_alpha[group] / c if presets_name == "default" else log_alpha[group]
    return np.concatenate([log_alpha[group] for group in range(3)])


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("preset", PRESETS)
def test_log_alpha_is_that_of_the_formula(preset, direction):
    generator = make_generator("fc", SIZES, direction, preset, rng=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for group in range(3):
            generator.bias(group).mul_(0.2)  # away from saturation, so that every term counts
        if preset == "default":
            for layer in generator.layers:
                layer.weight.mul_(50)
    np.testing.assert_allclose(generator().detach().numpy(), by_hand(generator, preset), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("preset", ["paper", "reference"])
def test_two_gates_worked_out_on_paper(preset):
    generator = make_generator("fc", [1, 2], preset=preset)
    with torch.no_grad():
        generator.layers[0].weight.fill_(0.5)
        generator.layers[0].bias.fill_(-0.4)
        generator.layers[1].weight.copy_(torch.tensor([[0.2], [-0.1]]))
        generator.layers[1].bias.copy_(torch.tensor([0.0, 0.3]))
    c = 10.0 if preset == "paper" else math.log(100)
    first = c * math.tanh(0.1)
    wanted = [first, c * math.tanh(0.2 * first), c * math.tanh(-0.1 * first + 0.3)]
    assert generator().tolist() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("preset", ["paper", "reference"])
def test_published_initial_values(preset):
    generator = make_generator("fc", [256, 400], preset=preset, rng=torch.Generator().manual_seed(0))
    biases = torch.cat([generator.bias(0), generator.bias(1)]).detach()
    assert biases.mean().item() == pytest.approx(3, abs=0.002)
    assert biases.std().item() == pytest.approx(0.01, rel=0.1)
    weight = generator.layers[1].weight.detach()
    assert weight.shape == (400, 256)
    # As torch.nn.Linear: uniform in ±1/√inputs.
    assert weight.abs().max().item() == pytest.approx(1 / 16, rel=1e-3)
    assert weight.std().item() == pytest.approx(1 / 16 / math.sqrt(3), rel=0.02)


def test_a_step_needs_few_operators():
    class Count(TorchDispatchMode):
        operators = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.operators += not func.is_view
            return func(*args, **(kwargs or {}))

    groups = 13
    generator = make_generator("fc", [8] * groups)
    with Count() as there:
        log_alpha = generator()
    assert there.operators == 3 * groups + 2  # scale, addmv, tanh; one cat and one multiplication by c
    with Count() as back:
        log_alpha.backward(torch.ones_like(log_alpha))
    assert back.operators <= 2 * groups + 2  # tanh, outer product; the multiplication by c, and the ones above


def test_compiles_into_one_graph():
    generator = make_generator("fc", SIZES)
    compiled = torch.compile(generator, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(), generator())
