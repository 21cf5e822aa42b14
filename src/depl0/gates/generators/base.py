"""The interface of all generators: a module that computes the log α of all gates, and can be evaluated by group."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Literal, TypeVar, cast, get_args

import torch
from torch import Tensor, nn

from depl0._util.registry import Registry, unknown
from depl0._util.tensors import out_of_half_precision
from depl0._util.user_code import load_class, wrap_user_errors
from depl0.errors import InputError
from depl0.gates.generators.presets import REACH, Preset, find_preset

Direction = Literal["forward", "backward"]
DIRECTIONS = get_args(Direction)

Memory = tuple[Tensor, ...]
"""State that a generator carries from group to group besides its input. Empty at the start, and for most generators."""


class Generator(nn.Module, abc.ABC):
    """Computes the log α of every gate, from group to group.

    Calling it returns the flat log α of all gates in plan order, for either direction. The same can be done group by
    group::

        previous, memory = generator.first_input(generator.order()[0]), ()
        for group in generator.order():
            log_alpha, memory = generator.step(group, previous, memory)
            previous = generator.feed(log_alpha)

    Subclasses implement :meth:`build`, :meth:`step`, :meth:`bias` and :meth:`start_from` (or, below
    :class:`BoundedGenerator`, :meth:`build`, :meth:`bias` and :meth:`~BoundedGenerator.pre_activation`). Parameters are
    float32 and stay so when the module around them is converted to half precision; log α is computed outside autocast.

    Args:
        sizes: number of gates of each group, in plan order.
        direction: whether the groups are visited from first to last (``"forward"``) or from last to first.
        preset: scales and initialisation.
        rng: random generator of the initialisation. By default PyTorch's global one is used.
    """

    _ones: Tensor

    def __init__(
        self,
        sizes: Sequence[int],
        direction: str,
        preset: Preset,
        rng: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.sizes = _checked_sizes(sizes)
        self.direction = _checked_direction(direction)
        self.preset = preset
        # Created once, so that the first input costs no operator in a training step.
        most = max(*self.sizes, preset.first_inputs or 1)
        self.register_buffer("_ones", torch.ones(most, dtype=torch.float32), persistent=False)
        self.build(rng)
        if preset.start is not None:
            self.start_from(torch.full((sum(self.sizes),), preset.start, dtype=torch.float32))

    @abc.abstractmethod
    def build(self, rng: torch.Generator | None) -> None:
        """Create the parameters, group by group in walking order, so that one seed gives mirrored generators."""

    @abc.abstractmethod
    def step(self, group: int, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return one group's log α, given the input from the previous group, and the memory for the next group."""

    @abc.abstractmethod
    def bias(self, group: int) -> Tensor:
        """Return the parameters that are added gate by gate and that :meth:`start_from` sets."""

    @abc.abstractmethod
    def start_from(self, log_alpha: Tensor) -> None:
        """Set the biases so that, with the current weights, the generator returns this flat log α."""

    def order(self) -> tuple[int, ...]:
        """Return the groups in walking order."""
        groups = tuple(range(len(self.sizes)))
        return groups if self.direction == "forward" else groups[::-1]

    def inputs(self, group: int) -> int:
        """Return the input size of a group: one number for each gate of the previous group in walking order."""
        order = self.order()
        place = order.index(group)
        if place == 0:
            return self.preset.first_inputs or self.sizes[group]
        return self.sizes[order[place - 1]]

    def first_input(self, group: int) -> Tensor:
        """Return the input of the first group, which has no predecessor: log α₀ = 1 (``preset.first_inputs`` times)."""
        return self._ones[: self.preset.first_inputs or self.sizes[group]]

    def feed(self, log_alpha: Tensor) -> Tensor:
        """Turn one group's log α into the next group's input."""
        carried = self.scale_gradient(log_alpha)
        return carried / self.preset.bound if self.preset.feed == "scaled" else carried

    def scale_gradient(self, values: Tensor) -> Tensor:
        """Return the same values with their gradient multiplied by the preset's ``carry_gradient``."""
        factor = self.preset.carry_gradient
        if factor == 0:
            return values.detach()
        return values if factor == 1 else torch.lerp(values.detach(), values, factor)

    def forward(self) -> Tensor:
        """Return the flat log α of all gates in plan order."""
        return self._walk_groups(self.step, self.feed)

    def _walk_groups(
        self, step: Callable[[int, Tensor, Memory], tuple[Tensor, Memory]], feed: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return the values of all groups in plan order; ``feed`` turns those of one into the input of the next."""
        order = self.order()
        values: dict[int, Tensor] = {}
        memory: Memory = ()
        previous = self.first_input(order[0])
        for group in order:
            values[group], memory = step(group, previous, memory)
            if group != order[-1]:
                previous = feed(values[group])
        return torch.cat([values[group] for group in range(len(order))])

    def _checked_start(self, log_alpha: Tensor) -> Tensor:
        """Check a flat initial log α, and convert it to the parameters' dtype and device."""
        if log_alpha.shape != (sum(self.sizes),):
            raise InputError(
                f"The log alpha to start from must have shape ({sum(self.sizes)},), one entry for each gate in plan "
                f"order, got {tuple(log_alpha.shape)} instead."
            )
        if not bool(torch.isfinite(log_alpha).all()):
            raise InputError("The log alpha to start from must be finite, got infinite or undefined entries instead.")
        return log_alpha.detach().to(self._ones)

    def _full_precision(self) -> contextlib.AbstractContextManager[object]:
        """Disable autocast: a log α in half precision has too few digits to follow a penalty."""
        device = self._ones.device.type
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            return torch.autocast(device, enabled=False)
        return contextlib.nullcontext()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Generator:
        """Move along with the surrounding module, but keep float32 if it is converted to half precision."""
        super()._apply(out_of_half_precision(fn), recurse)  # type: ignore[no-untyped-call]
        return self


class BoundedGenerator(Generator):
    """Computes log α = c·tanh(pre-activation), which is between −c and c."""

    @abc.abstractmethod
    def pre_activation(self, group: int, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return the argument of tanh, including the group's bias, and the memory for the next group."""

    def set_pre_activation(self, group: int, wanted: Tensor, previous: Tensor, memory: Memory) -> None:
        """Set one group's bias so that its pre-activation becomes ``wanted``. Called without gradients."""
        found, _ = self.pre_activation(group, previous, memory)
        self.bias(group).add_(wanted - found)

    def step(self, group: int, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Return one group's log α, given the input from the previous group, and the memory for the next group."""
        with self._full_precision():
            squashed, memory = self._squashed(group, previous, memory)
            return squashed * self.preset.bound, memory

    def _squashed(self, group: int, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        inner, memory = self.pre_activation(group, previous, memory)
        return torch.tanh(inner), memory

    def forward(self) -> Tensor:
        """Return the flat log α of all gates in plan order, with one multiplication by c for all of them."""
        with self._full_precision():
            return self._walk_groups(self._squashed, self.feed_squashed) * self.preset.bound

    def feed_squashed(self, squashed: Tensor) -> Tensor:
        """Compute :meth:`feed` from log α/c instead of log α: a scaled input then needs no multiplication by c."""
        carried = self.scale_gradient(squashed)
        return carried if self.preset.feed == "scaled" else carried * self.preset.bound

    @torch.no_grad()
    def start_from(self, log_alpha: Tensor) -> None:
        """Set the biases so that, with the current weights, the generator returns this log α, clipped to ±0.98·c."""
        squashed = (self._checked_start(log_alpha) / self.preset.bound).clamp(-REACH, REACH)
        wanted = torch.split(torch.atanh(squashed), list(self.sizes))

        def set_bias(group: int, previous: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
            self.set_pre_activation(group, wanted[group], previous, memory)
            return self._squashed(group, previous, memory)

        with self._full_precision():
            self._walk_groups(set_bias, self.feed_squashed)


def _checked_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    if len(sizes) == 0 or any(type(size) is not int or size < 1 for size in sizes):
        raise InputError(
            f"The sizes of the gate groups must be one or more positive integers, got {list(sizes)!r} instead.",
            hint="a group without gates has nothing to prune: leave it out.",
        )
    return tuple(sizes)


def _checked_direction(direction: str) -> Direction:
    if direction not in DIRECTIONS:
        raise unknown("direction", direction, DIRECTIONS, "'forward' walks the groups from first to last.")
    return cast(Direction, direction)


# -- generators by name ------------------------------------------------------------------------------------------------

_G = TypeVar("_G", bound=type[Generator])

GENERATORS: Registry[type[Generator]] = Registry(
    "generator",
    advice="'fc' is the paper's generator; 'independent' is the one without dependency.",
    plugins="depl0.generators",
    own=lambda spec: load_class(spec, "generator", Generator),  # type: ignore[type-abstract]
)
"""Every registered generator class by its name."""


def register(name: str) -> Callable[[_G], _G]:
    """Register a generator class under a name: ``@register("fc")``."""
    return GENERATORS.register(name, lambda generator: generator)


def make_generator(
    name: str,
    sizes: Sequence[int],
    direction: str = "forward",
    preset: str | Preset = "default",
    start: float | None = None,
    rng: torch.Generator | None = None,
) -> Generator:
    """Create a generator by its name.

    Args:
        name: one of :data:`GENERATORS`, or a class of your own: ``path/to/file.py:Name``.
        sizes: number of gates of each group, in plan order.
        direction: ``"forward"`` or ``"backward"``: the order in which the groups are visited.
        preset: one of :data:`~depl0.gates.generators.presets.PRESETS`, or one of your own.
        start: the initial log α of every gate, if the preset has one.
        rng: random generator of the initialisation. By default PyTorch's global one is used.

    >>> generator = make_generator("fc", [2, 3], start=4.0)
    >>> generator().detach()
    tensor([4., 4., 4., 4., 4.])
    """
    generator = GENERATORS.find(name)
    chosen = find_preset(preset)
    if start is not None:
        chosen = chosen.with_start(start)
    with wrap_user_errors("generator", name) if ":" in name else nullcontext():
        return generator(sizes, direction, chosen, rng)
