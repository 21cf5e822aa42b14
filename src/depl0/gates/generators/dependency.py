"""What a gate's log α comes from: its own bias, and what the generator makes of the groups before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from depl0.gates import hard_concrete
from depl0.gates.generators.base import BoundedGenerator, Generator, Memory

Draw: TypeAlias = Callable[[int, Tensor], Tensor]
"""(group, what the generator gives it) -> its gates, which the next group is fed on"""


class Parts(NamedTuple):
    """The two terms that tanh is taken of, log α = c·tanh(from_groups + own); flat, in plan order."""

    from_groups: Tensor
    """W·x: what a gate gets from the groups before it"""
    own: Tensor
    """b: what it has of itself"""
    bound: float
    """c"""

    def scores(self) -> Tensor:
        """Return the flat log α (with a budget: scores) that the generator gives."""
        return torch.tanh(self.from_groups + self.own) * self.bound

    def alone(self) -> Tensor:
        """Return what it would give with W = 0."""
        return torch.tanh(self.own) * self.bound

    def by_group(self, generator: Generator) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return W·x, and W·x + b, for each group."""
        sizes = list(generator.sizes)
        return self.from_groups.split(sizes), (self.from_groups + self.own).split(sizes)


def evaluation_draw(group: int, log_alpha: Tensor) -> Tensor:
    """Return the evaluation gates (median rule) of a generator whose scores are log α."""
    return hard_concrete.evaluation_gates(log_alpha)


@torch.no_grad()
def parts(generator: Generator, draw: Draw = evaluation_draw) -> Parts | None:
    """Divide what a generator gives; None where gates know nothing of each other.

    Every bounded generator adds one number for each gate to what it makes of its input: a fully connected layer, a
    convolution, or the hidden state of an LSTM. Fed on gates, it is for those that ``draw`` gives: with a budget, which
    gates are open is the threshold's to say.

    >>> from depl0.gates.generators import make_generator
    >>> found = parts(make_generator("fc", [2, 3]))
    >>> (found.from_groups + found.own).shape, parts(make_generator("independent", [2, 3]))
    (torch.Size([5]), None)
    """
    if not isinstance(generator, BoundedGenerator):
        return None
    order, bound = generator.order(), generator.preset.bound
    from_groups: dict[int, Tensor] = {}
    memory: Memory = ()
    previous = generator.first_input(order[0])
    for group in order:
        inner, memory = generator.pre_activation(group, previous, memory)
        from_groups[group] = inner - generator.bias(group)
        squashed = torch.tanh(inner)
        if generator.conditioning == "gates":
            previous = generator.feed_gates(draw(group, squashed * bound))
        else:
            previous = generator.feed_squashed(squashed)
    groups = range(len(order))
    return Parts(
        torch.cat([from_groups[group] for group in groups]),
        torch.cat([generator.bias(group) for group in groups]),
        bound,
    )


@torch.no_grad()
def spread_share(generator: Generator, found: Parts) -> float | None:
    """Return the spread of W·x over that of W·x + b: standard deviations over a group's gates, averaged over groups.

    None where no group has two gates that differ.
    """
    from_groups, whole = found.by_group(generator)
    ours = [part.std() for part in from_groups if len(part) > 1]
    all_of_it = [part.std() for part in whole if len(part) > 1]
    if not ours or not float(torch.stack(all_of_it).mean()) > 0:
        return None
    return float(torch.stack(ours).mean() / torch.stack(all_of_it).mean())
