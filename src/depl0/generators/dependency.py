"""What a gate's log α comes from: its own bias, and what the generator makes of the groups before it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from depl0.gates import hard_concrete
from depl0.generators.base import BoundedGenerator, Generator, Memory


class Parts(NamedTuple):
    """The two terms that tanh is taken of, log α = c·tanh(from_groups + own); flat, in plan order."""

    from_groups: Tensor
    """W·x: what a gate gets from the groups before it"""
    own: Tensor
    """b: what it has of itself"""

    def by_group(self, generator: Generator) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return W·x, and W·x + b, for each group."""
        sizes = list(generator.sizes)
        return self.from_groups.split(sizes), (self.from_groups + self.own).split(sizes)


@torch.no_grad()
def parts(generator: Generator) -> Parts | None:
    """Divide what a generator gives; None where gates know nothing of each other.

    Every bounded generator adds one number for each gate to what it makes of its input: a fully connected layer, a
    convolution, or the hidden state of an LSTM. Fed on gates, it is for the evaluation gates.

    >>> from depl0.generators import make_generator
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
            previous = generator.feed_gates(hard_concrete.evaluation_gates(squashed * bound))
        else:
            previous = generator.feed_squashed(squashed)
    groups = range(len(order))
    return Parts(
        torch.cat([from_groups[group] for group in groups]), torch.cat([generator.bias(group) for group in groups])
    )


@torch.no_grad()
def spread_share(generator: Generator) -> float | None:
    """Return the spread of W·x over that of W·x + b: standard deviations over a group's gates, averaged over groups.

    None where gates know nothing of each other, or no group has two gates that differ.
    """
    found = parts(generator)
    if found is None:
        return None
    from_groups, whole = found.by_group(generator)
    ours = [part.std() for part in from_groups if len(part) > 1]
    all_of_it = [part.std() for part in whole if len(part) > 1]
    if not ours or not float(torch.stack(all_of_it).mean()) > 0:
        return None
    return float(torch.stack(ours).mean() / torch.stack(all_of_it).mean())


@torch.no_grad()
def without_dependency(generator: Generator) -> Tensor | None:
    """Return the flat log α (with a budget: scores) that the generator would give with W = 0; None: it has no W."""
    found = parts(generator)
    return None if found is None else torch.tanh(found.own) * generator.preset.bound
