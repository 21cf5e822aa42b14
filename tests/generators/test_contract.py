"""What every registered generator must do, in both directions; and how generators and presets are named and made."""

import copy
import dataclasses
import itertools
import re
import typing

import pytest
import torch
from torch import Tensor

from depl0._util.registry import Registry
from depl0.errors import InputError
from depl0.gates.generators import (
    GENERATORS,
    PRESETS,
    BoundedGenerator,
    Generator,
    Preset,
    base,
    make_generator,
    register,
)
from depl0.gates.hard_concrete import evaluation_gates, open_probability

SIZES = (3, 5, 2, 4)
VGG16 = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
DIRECTIONS = ("forward", "backward")

every_generator = pytest.mark.parametrize("name", GENERATORS)
every_direction = pytest.mark.parametrize("direction", DIRECTIONS)
everything = pytest.mark.parametrize(
    ("name", "direction", "preset"), list(itertools.product(GENERATORS, DIRECTIONS, ["default", "paper"]))
)
# The generators in which a group knows of the one before it.
ALONE = ("bias", "independent")
every_dependent = pytest.mark.parametrize("name", [name for name in GENERATORS if name not in ALONE])


def make(name, direction="forward", preset="default", sizes=SIZES, seed=0, start=None) -> Generator:
    return make_generator(name, sizes, direction, preset, start, torch.Generator().manual_seed(seed))


def group_by_group(generator: Generator) -> Tensor:
    """Do what the class docstring says, without the generator's own forward."""
    log_alphas = {}
    previous, memory = generator.first_input(generator.order()[0]), ()
    for group in generator.order():
        log_alphas[group], memory = generator.step(group, previous, memory)
        previous = generator.feed(log_alphas[group])
    return torch.cat([log_alphas[group] for group in range(len(generator.sizes))])


@torch.no_grad()
def shake(generator: Generator, seed: int = 5) -> Generator:
    """Move all parameters, as training would."""
    rng = torch.Generator().manual_seed(seed)
    for parameter in generator.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=rng), alpha=0.2)
    return generator


@torch.no_grad()
def connect(generator: Generator) -> Generator:
    """Make weights large and positive and all log α zero, so that any change in a group reaches the next."""
    for parameter in generator.parameters():
        parameter.abs_()
        if parameter.dim() >= 2:
            parameter.clamp_(min=0.1)
    generator.start_from(torch.zeros(sum(generator.sizes)))
    return generator


@everything
def test_a_call_gives_one_finite_float32_log_alpha_for_each_gate_and_draws_nothing(name, direction, preset):
    generator, before = make(name, direction, preset), torch.get_rng_state()
    log_alpha = generator()
    assert log_alpha.shape == (sum(SIZES),) and log_alpha.dtype == torch.float32
    assert torch.isfinite(log_alpha).all() and torch.equal(generator(), log_alpha)
    assert torch.equal(torch.get_rng_state(), before)
    open_probability(log_alpha).sum().backward()
    for key, parameter in generator.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all()
        assert preset != "default" or (parameter.grad != 0).any(), key


@everything
def test_group_by_group_gives_the_same_values_and_gradients(name, direction, preset):
    weight = torch.randn(sum(SIZES), generator=torch.Generator().manual_seed(2))
    for generator in (make(name, direction, preset), shake(make(name, direction, preset))):
        found, wanted = group_by_group(generator), generator()
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
        one, other = (torch.autograd.grad(values @ weight, list(generator.parameters())) for values in (wanted, found))
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@everything
def test_backward_is_the_mirror_of_forward(name, direction, preset):
    mirrored = "backward" if direction == "forward" else "forward"
    one = make(name, direction, preset)()
    other = make(name, mirrored, preset, SIZES[::-1])()
    turned = torch.cat(torch.split(other, SIZES[::-1])[::-1])
    assert torch.equal(one, turned)


@everything
def test_a_group_is_felt_by_all_later_groups_and_no_earlier_one(name, direction, preset):
    generator = connect(make(name, direction, preset)).double()  # a small effect must not be lost in rounding
    order = generator.order()
    before = torch.split(generator().detach(), SIZES)
    for place, group in enumerate(order):
        changed = copy.deepcopy(generator)
        with torch.no_grad():
            changed.bias(group).add_(0.3)
        after = torch.split(changed().detach(), SIZES)
        assert not torch.isclose(after[group], before[group]).any()
        for earlier in order[:place]:
            assert torch.equal(after[earlier], before[earlier])
        for later in order[place + 1 :]:
            assert torch.equal(after[later], before[later]) == (name in ALONE)


@every_generator
@every_direction
@pytest.mark.parametrize("start", [None, -1.6])
def test_the_default_preset_starts_all_gates_equally_open(name, direction, start):
    log_alpha = make(name, direction, sizes=(16, 32, 8), start=start)().detach().requires_grad_()
    wanted = 3.0 if start is None else start
    torch.testing.assert_close(log_alpha, torch.full_like(log_alpha, wanted), rtol=0, atol=1e-3)
    opened = open_probability(log_alpha)
    assert opened.max() - opened.min() < 0.02
    (slope,) = torch.autograd.grad(opened.sum(), log_alpha)
    assert slope.median() > 1e-3 * 0.25


def slope_between(generator: Generator) -> float:
    """Give the gradient of the last walked group's log α in the first one's bias, through everything between them."""
    first, *later = generator.order()
    shift = torch.zeros(generator.sizes[first], requires_grad=True)
    log_alpha, memory = generator.step(first, generator.first_input(first), ())
    # tanh'(0) = 1 and all log α are 0: a shift of the bias moves log α by c times as much.
    previous = generator.feed(log_alpha + generator.preset.bound * shift)
    for group in later:
        log_alpha, memory = generator.step(group, previous, memory)
        previous = generator.feed(log_alpha)
    (slope,) = torch.autograd.grad(log_alpha.sum(), shift, allow_unused=True)
    return 0.0 if slope is None else slope.sum().item()


@every_dependent
@every_direction
def test_gradients_between_groups_are_carried_by_the_presets_factor(name, direction):
    slopes = {}
    for factor in (0.0, 0.25, 1.0):
        preset = dataclasses.replace(PRESETS["default"], carry_gradient=factor)
        slopes[factor] = slope_between(connect(make(name, direction, preset, sizes=(1, 1))))
    assert slopes[0.0] == 0
    assert slopes[1.0] > 1e-4
    assert slopes[0.25] == pytest.approx(0.25 * slopes[1.0], rel=1e-4)


@everything
def test_starts_from_any_log_alpha(name, direction, preset):
    bound = PRESETS[preset].bound
    wanted = (torch.rand(sum(SIZES), generator=torch.Generator().manual_seed(4)) * 1.8 - 0.9) * bound
    for generator in (make(name, direction, preset), shake(make(name, direction, preset))):
        keys = list(generator.state_dict())
        generator.start_from(wanted)
        torch.testing.assert_close(generator().detach(), wanted, rtol=0, atol=1e-3)
        assert list(generator.state_dict()) == keys
        assert all(parameter.requires_grad for parameter in generator.parameters())


@everything
def test_deep_copies_and_saved_states_give_the_same(name, direction, preset):
    generator = shake(make(name, direction, preset))
    log_alpha = generator()
    copied = copy.deepcopy(generator)
    assert torch.equal(copied(), log_alpha)
    assert all(a is not b for a, b in zip(copied.parameters(), generator.parameters(), strict=True))

    loaded = make(name, direction, preset, seed=9)
    loaded.load_state_dict(generator.state_dict())
    assert torch.equal(loaded(), log_alpha)
    kept = {"lstm-shared": {"offsets"}}.get(name, set())  # constants, which are not learned
    assert set(generator.state_dict()) == {key for key, _ in generator.named_parameters()} | kept


@pytest.mark.parametrize(
    ("preset", "least", "most"), [("paper", 0.2, 0.4), ("reference", 0.05, 0.15), ("default", 0.0, 0.0)]
)
@every_direction
def test_the_published_form_closes_gates_at_random_before_training(preset, direction, least, most):
    """Why there is a default preset: the filters of VGG16, and nothing has been learned yet."""
    log_alpha = make("fc", direction, preset, VGG16)().detach()
    closed = (evaluation_gates(log_alpha) == 0).float().mean().item()
    assert least <= closed <= most
    saturated = (log_alpha.abs() > 0.99 * PRESETS[preset].bound).float().mean().item()
    assert saturated == 0 if preset == "default" else saturated > 0.5


def test_all_generators_of_the_paper_are_known():
    of_the_paper = {"conv1d", "conv1d-deep", "fc", "fc-relu", "fc-tanh", "independent", "lstm-shared"}
    controls = {"bias"}
    assert set(GENERATORS) == {*of_the_paper, *controls}


def test_a_preset_of_ones_own_is_taken_as_it_is():
    mine = Preset(name="mine", bound=5.0, feed="scaled", mean_input=True, initial_weight=0.1, start=2.0)
    generator = make_generator("fc", [2, 3], preset=mine)
    assert generator.preset is mine
    torch.testing.assert_close(generator(), torch.full((5,), 2.0))


@pytest.mark.parametrize(
    ("arguments", "text", "hint"),
    [
        (
            {"name": "fc-relo"},
            "The generator must be one of 'bias', 'conv1d', 'conv1d-deep', 'fc', ",
            "did you mean fc-relu",
        ),
        ({"direction": "foward"}, "The direction must be one of 'forward', 'backward', got 'foward'", "forward?"),
        ({"sizes": [3, 0]}, "one or more positive integers, got [3, 0] instead.", "leave it out"),
    ],
)
def test_wrong_arguments_are_refused(arguments, text, hint):
    with pytest.raises(InputError, match=re.escape(text)) as error:
        make_generator(**{"name": "fc", "sizes": [2, 3], **arguments})
    assert hint in error.value.hint


def test_a_new_generator_is_one_class(monkeypatch):
    @typing.final
    class Constant(BoundedGenerator):
        def build(self, rng):
            self.number = torch.nn.Parameter(torch.zeros(sum(self.sizes)))

        def pre_activation(self, group, previous, memory):
            return self.bias(group), memory

        def bias(self, group):
            return self.number.narrow(0, sum(self.sizes[:group]), self.sizes[group])

    monkeypatch.setattr(base, "GENERATORS", Registry("generator"))  # the real one stays as it is
    assert register("constant")(Constant) is Constant
    torch.testing.assert_close(make_generator("constant", [2, 1], start=1.0)(), torch.ones(3))
