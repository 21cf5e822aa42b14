"""The controls take away what they say, and nothing else."""

import itertools

import pytest
import torch

from depl0.gates.generators import make_generator

SIZES = (3, 5, 2, 4, 6)


def make(name, preset="reference", direction="forward", sizes=SIZES):
    return make_generator(name, sizes, direction, preset, rng=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["fc-const", "fc-frozen", "independent-fc"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("preset", ["default", "paper", "reference"])
def test_starts_where_fc_does(name, direction, preset):
    torch.testing.assert_close(make(name, preset, direction)(), make("fc", preset, direction)(), rtol=0, atol=1e-5)


def test_const_has_the_steps_of_fc_but_feels_no_other_group():
    control, fc = make("fc-const"), make("fc")
    for generator in (control, fc):
        generator()[-SIZES[-1] :].sum().backward()
    last = len(SIZES) - 1
    torch.testing.assert_close(control.layers[last].weight.grad, fc.layers[last].weight.grad)
    assert fc.layers[0].weight.grad.abs().sum() > 0
    assert control.layers[0].weight.grad.abs().sum() == 0
    with torch.no_grad():
        control.bias(0).sub_(5.0)
    assert torch.equal(control()[SIZES[0] :], make("fc-const")()[SIZES[0] :])


def test_const_stays_fed_on_its_first_log_alpha_through_a_state_dict():
    control, other = make("fc-const"), make_generator("fc-const", SIZES, preset="reference")
    with torch.no_grad():
        control.bias(1).sub_(5.0)
    other.load_state_dict(control.state_dict())
    assert torch.equal(other(), control())


def test_frozen_trains_biases_alone():
    control = make("fc-frozen")
    assert sorted(p.dim() for p in control.parameters()) == [1] * len(SIZES)
    control().sum().backward()
    assert all(p.grad is not None for p in control.parameters())


@pytest.mark.parametrize("count", [5, 9, 13])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_shuffled_feeds_no_group_by_a_neighbour(count, direction):
    order = make("fc-shuffled", direction=direction, sizes=(2,) * count).order()
    assert sorted(order) == list(range(count))
    assert all(abs(a - b) > 1 for a, b in itertools.pairwise(order))


def test_independent_fc_moves_one_gate_at_a_time():
    control = make("independent-fc")
    control()[4].backward()
    (parameter,) = control.parameters()
    assert parameter.grad.nonzero().tolist() == [[4]]
