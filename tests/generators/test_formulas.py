"""The generators against their formulas, number by number, with numpy alone; and what a step of fc costs."""

import math

import numpy as np
import pytest
import torch

from depl0.gates.generators import PRESETS, make_generator

SIZES = (3, 5, 2)
BOUND = {"paper": 10.0, "reference": math.log(100), "default": math.log(1000), "reference-vgg16": math.log(100)}


def relu(x):
    return np.maximum(x, 0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def affine(state, key, x, mean):
    return state[f"{key}.weight"] @ x / (len(x) if mean else 1) + state[f"{key}.bias"]


def one_layer(state, group, x, mean):
    return affine(state, f"layers.{group}", x, mean)


def two_layers(activation):
    def pre_activation(state, group, x, mean):
        return affine(state, f"output.{group}", activation(affine(state, f"hidden.{group}", x, mean)), mean)

    return pre_activation


def convolutions(depth):
    def pre_activation(state, group, x, mean):
        for place in range(depth):
            key = f"convolutions.{group}.{2 * place}"
            left, middle, right = state[f"{key}.weight"].ravel()
            padded = np.concatenate([[0], x, [0]])
            x = relu(left * padded[:-2] + middle * padded[1:-1] + right * padded[2:] + state[f"{key}.bias"])
        return affine(state, f"output.{group}", x, mean)

    return pre_activation


FORMULAS = {
    "fc": one_layer,
    "fc-relu": two_layers(relu),
    "fc-tanh": two_layers(np.tanh),
    "conv1d": convolutions(1),
    "conv1d-deep": convolutions(3),
}


def make(name, direction, preset):
    """Make a generator whose log α depend on everything that could matter: no saturation, no tiny weights."""
    generator = make_generator(name, SIZES, direction, preset, rng=torch.Generator().manual_seed(1))
    rng = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=rng) * 0.6 - 0.2)
    return generator


def numbers(generator):
    return {key: value.numpy().astype(np.float64) for key, value in generator.state_dict().items()}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("preset", PRESETS)
def test_log_alpha_is_that_of_the_formula(name, direction, preset):
    generator = make(name, direction, preset)
    state, default = numbers(generator), preset == "default"
    order = [0, 1, 2] if direction == "forward" else [2, 1, 0]
    x, log_alpha = np.ones(PRESETS[preset].first_inputs or SIZES[order[0]]), {}
    for group in order:
        log_alpha[group] = BOUND[preset] * np.tanh(FORMULAS[name](state, group, x, default))
        x = log_alpha[group] / BOUND[preset] if default else log_alpha[group]
    wanted = np.concatenate([log_alpha[group] for group in range(3)])
    np.testing.assert_allclose(generator().detach().numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("preset", PRESETS)
def test_lstm_walks_gate_after_gate(direction, preset):
    generator = make("lstm-shared", direction, preset)
    state, default = numbers(generator), preset == "default"
    starts = np.cumsum((0, *SIZES))
    gates = [range(starts[group], starts[group + 1]) for group in range(3)]
    wanted = np.zeros(sum(SIZES))
    hidden, cell, value = np.zeros(32), np.zeros(32), 1.0
    for gate in [gate for group in (gates if direction == "forward" else gates[::-1]) for gate in group]:
        inner = state["cell.weight_ih"][:, 0] * value + state["cell.bias_ih"]
        inner = inner + state["cell.weight_hh"] @ hidden + state["cell.bias_hh"]
        enter, forget, new, leave = np.split(inner, 4)
        cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(new)
        hidden = sigmoid(leave) * np.tanh(cell)
        response = state["weight"][0] @ hidden / (32 if default else 1)
        wanted[gate] = BOUND[preset] * np.tanh(response + state["shared"][0] + state["offsets"][gate])
        value = wanted[gate] / BOUND[preset] if default else wanted[gate]
    np.testing.assert_allclose(generator().detach().numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("preset", ["paper", "reference"])
@pytest.mark.parametrize("name", ["fc", "independent"])
def test_published_initial_values(name, preset):
    generator = make_generator(name, [256, 400], preset=preset, rng=torch.Generator().manual_seed(0))
    biases = torch.cat([generator.bias(0), generator.bias(1)]).detach()
    assert biases.mean().item() == pytest.approx(3, abs=0.002)
    assert biases.std().item() == pytest.approx(0.01, rel=0.1)
    if name == "fc":  # as torch.nn.Linear: uniform in ±1/√inputs
        weight = generator.layers[1].weight.detach()
        assert weight.shape == (400, 256) and weight.abs().max().item() == pytest.approx(1 / 16, rel=1e-3)
        assert weight.std().item() == pytest.approx(1 / 16 / math.sqrt(3), rel=0.02)


@pytest.mark.parametrize("preset", ["paper", "reference"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_shared_lstm_learns_one_bias_for_all_gates(preset, direction):
    shared = make_generator("lstm-shared", (3, 4), direction, preset, rng=torch.Generator().manual_seed(2))
    large = make_generator("lstm-shared", (30, 40), direction, preset, rng=torch.Generator().manual_seed(2))
    learned = [sum(p.numel() for p in generator.parameters()) for generator in (shared, large)]
    assert learned[0] == learned[1] == 4 * 32 * (1 + 32) + 2 * 4 * 32 + 32 + 1
    assert not shared.offsets.any()
    assert shared.shared.item() == pytest.approx(3, abs=0.1)  # N(3, 0.01)
