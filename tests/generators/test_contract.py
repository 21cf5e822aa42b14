"""What every registered generator must do, in both directions and with every preset."""

import copy
import dataclasses
import itertools

import pytest
import torch
from torch import Tensor, nn

from depl0.errors import InputError
from depl0.gates import evaluation_gates, open_probability
from depl0.gates.generators import GENERATORS, PRESETS, BoundedGenerator, Generator, make_generator

SIZES = (3, 5, 2, 4)
VGG16 = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
DIRECTIONS = ("forward", "backward")

every_generator = pytest.mark.parametrize("name", GENERATORS)
every_direction = pytest.mark.parametrize("direction", DIRECTIONS)
every_preset = pytest.mark.parametrize("preset", PRESETS)
everything = pytest.mark.parametrize(
    ("name", "direction", "preset"), list(itertools.product(GENERATORS, DIRECTIONS, PRESETS))
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
@pytest.mark.parametrize("sizes", [(1,), (7,), (1, 1, 1), (1, 6, 1)])
def test_works_with_one_group_and_with_one_gate(name, direction, preset, sizes):
    generator = make(name, direction, preset, sizes)
    log_alpha = generator()
    assert log_alpha.shape == (sum(sizes),)
    torch.testing.assert_close(group_by_group(generator), log_alpha, rtol=1e-6, atol=1e-6)
    log_alpha.sum().backward()


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


@pytest.mark.parametrize("name", GENERATORS)
def test_walking_order(name):
    assert make(name, "forward").order() == (0, 1, 2, 3)
    assert make(name, "backward").order() == (3, 2, 1, 0)
    assert torch.equal(make(name, "forward").first_input(0), torch.ones(3))
    assert torch.equal(make(name, "backward").first_input(3), torch.ones(4))


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
@pytest.mark.parametrize("start", [-1.6, 0.0, None, 5.0])
def test_the_default_preset_starts_all_gates_equally_open(name, direction, start):
    log_alpha = make(name, direction, sizes=(16, 32, 8), start=start)().detach().requires_grad_()
    wanted = 3.0 if start is None else start
    torch.testing.assert_close(log_alpha, torch.full_like(log_alpha, wanted), rtol=0, atol=1e-3)
    opened = open_probability(log_alpha)
    assert opened.max() - opened.min() < 0.02
    (slope,) = torch.autograd.grad(opened.sum(), log_alpha)
    assert slope.median() > 1e-3 * 0.25


@pytest.mark.parametrize("name", [name for name in GENERATORS if name not in ALONE])
@every_direction
def test_one_adam_step_moves_default_pre_activations_by_about_twice_the_rate(name, direction):
    rate = 1e-3
    generator = make(name, direction, sizes=(96, 64))
    before = torch.atanh(generator().detach() / generator.preset.bound)
    optimizer = torch.optim.Adam(generator.parameters(), lr=rate)
    generator().sum().backward()
    optimizer.step()
    moved = (torch.atanh(generator().detach() / generator.preset.bound) - before).abs() / rate
    assert moved.min() > 0.9
    assert moved.max() < 2.1


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


@every_dependent
@every_preset
def test_what_is_remembered_carries_gradients_as_what_is_fed_does(name, preset):
    generator = connect(make(name, preset=preset))
    log_alpha, memory = generator.step(0, generator.first_input(0), ())
    memory = tuple(part.detach().requires_grad_() for part in memory)
    after, _ = generator.step(1, generator.feed(log_alpha), memory)
    for slope in torch.autograd.grad(after.sum(), memory, allow_unused=True) if memory else ():
        assert (slope is None) == (preset == "default")


@everything
def test_the_bound_is_kept(name, direction, preset):
    generator = make(name, direction, preset)
    with torch.no_grad():
        for parameter in generator.parameters():
            parameter.mul_(1000)
    bounded = isinstance(generator, BoundedGenerator)
    assert bool(generator().abs().max() <= PRESETS[preset].bound * (1 + 1e-6)) == bounded


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
def test_starts_inside_the_bound(name, direction, preset):
    generator = make(name, direction, preset)
    generator.start_from(torch.linspace(-90, 90, sum(SIZES)))
    limit = 0.98 * PRESETS[preset].bound if isinstance(generator, BoundedGenerator) else 90.0
    assert generator().detach().abs().max().item() == pytest.approx(limit, rel=1e-3)


@every_generator
def test_what_to_start_from_is_checked(name):
    generator = make(name)
    before = generator().detach().clone()
    with pytest.raises(InputError, match=r"must have shape \(14,\), one entry for each gate in plan order, got \(3,\)"):
        generator.start_from(torch.zeros(3))
    with pytest.raises(InputError, match="must be finite"):
        generator.start_from(torch.full((14,), float("nan")))
    assert torch.equal(generator().detach(), before)


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


@everything
def test_initialisation_is_drawn_from_rng_or_from_the_global_random_state(name, direction, preset):
    def values(seed):
        return nn.utils.parameters_to_vector(make(name, direction, preset, seed=seed).parameters())

    before = torch.get_rng_state()
    assert torch.equal(values(3), values(3))
    assert torch.equal(torch.get_rng_state(), before)
    if name not in ALONE or preset != "default":  # which has nothing random
        assert not torch.equal(values(3), values(4))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        drawn = make_generator(name, SIZES, direction, preset)
        torch.manual_seed(1)
        again = make_generator(name, SIZES, direction, preset)
    for a, b in zip(drawn.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


@every_generator
@every_preset
def test_autocast_changes_nothing(name, preset):
    generator = shake(make(name, preset=preset))
    wanted = generator(), group_by_group(generator)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = generator(), group_by_group(generator)
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)


@every_generator
def test_a_network_around_it_is_converted_to_half_precision_without_it_and_to_float64_with_it(name):
    generator = shake(make(name))
    wanted = generator()
    around = nn.ModuleList([nn.Linear(2, 2), generator])
    for dtype in (torch.float16, torch.bfloat16):
        assert around.to(dtype)[0].weight.dtype == dtype and torch.equal(generator(), wanted)
    found = around.double()[1]()
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.float(), wanted, rtol=1e-4, atol=1e-4)


@every_generator
def test_says_what_it_is(name):
    text = repr(make(name, "backward", "paper"))
    assert "14 gates in 4 groups, direction='backward', preset='paper'" in text


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
