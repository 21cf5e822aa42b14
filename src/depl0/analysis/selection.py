"""Selection of the groups with gates: ``groups="all" | "inner" | names | a function``, and the layers in ``alone``.

A channel that is added to a shortcut is written by several layers, so it cannot be removed for only one of them. A gate
may still close the output of one layer in ``alone``: it multiplies, and no channel is cut. The paper's ResNet-56 has
such gates on its first convolution, so it has 28 gated layers, of which 27 can be cut.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TypeAlias

import torch
from torch import Tensor

from depl0.analysis.plan import Group, Plan
from depl0.analysis.propagate import Axis
from depl0.errors import InputError

GroupChoice: TypeAlias = "str | Iterable[str] | Callable[[Group], bool]"


def select(groups: list[Group], choice: GroupChoice, known: Collection[str] = ()) -> dict[str, str]:
    """Return the names of the groups that are excluded, each with the reason.

    ``known`` are the names of groups that existed before a trial cut showed that they cannot be pruned. Naming one of
    them
    is not an error.
    """
    if choice == "all":
        return {}
    if choice == "inner":
        return {g.name: "is added to a shortcut (groups='inner')" for g in groups if g.shared}
    if isinstance(choice, str) or not (callable(choice) or isinstance(choice, Iterable)):
        raise InputError(
            f"groups must be 'all', 'inner', a list of names or a function, got {choice!r} instead.",
            hint="a single name goes into a list: groups=['layer1.0.conv1'].",
        )
    if callable(choice):
        return {g.name: "is left out (groups=function)" for g in groups if not choice(g)}
    return _by_name([g.name for g in groups], list(choice), known)


def _by_name(names: list[str], patterns: list[str], known: Collection[str]) -> dict[str, str]:
    """Return the groups that names or shell patterns exclude; patterns with a leading '-' exclude their matches."""
    if not patterns or not all(isinstance(p, str) and p.strip("-") for p in patterns):
        raise InputError(f"groups must name at least one group, got {patterns!r} instead.")
    wanted = [p for p in patterns if not p.startswith("-")]
    unwanted = [p[1:] for p in patterns if p.startswith("-")]
    for pattern in wanted + unwanted:
        if not any(fnmatchcase(name, pattern) for name in [*names, *known]):
            near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.4)
            raise InputError(
                f"groups names {pattern!r}, but no prunable group has that name.",
                hint=f"did you mean {', '.join(near)}?" if near else "depl0.plan(model, inputs) lists the groups.",
            )
    left_out = {}
    for name in names:
        chosen = not wanted or any(fnmatchcase(name, p) for p in wanted)
        if not chosen or any(fnmatchcase(name, p) for p in unwanted):
            left_out[name] = "is left out (groups=names)"
    return left_out


def with_alone(plan: Plan, layers: Collection[str], parameters: Collection[str]) -> Plan:
    """Return the plan with a group of gates for each of these layers, in order of execution.

    ``parameters`` are the names of the network's parameters.
    """
    for layer in layers:
        plan = _with_one(plan, layer, frozenset(parameters))
    return plan


def _with_one(plan: Plan, layer: str, parameters: frozenset[str]) -> Plan:
    place = {report.layer: index for index, report in enumerate(plan.layers)}
    filters = next((use.out_axis for use in plan.uses if use.layer == layer), None)
    if layer not in place or filters is None:
        near = difflib.get_close_matches(layer, place, n=3, cutoff=0.4)
        raise InputError(
            f"alone names {layer!r}, but the network calls no convolution or linear layer of that name.",
            hint=f"did you mean {', '.join(near)}?" if near else "depl0.plan(model, inputs) lists the layers.",
        )
    sites = _sites(plan.norm_after.get(layer, layer), filters, parameters)
    if any(axis in plan.axes or axis in plan.uncut_sites for axis in (filters, *sites)):
        raise InputError(
            f"alone names {layer!r}, whose channels have gates already.",
            hint="groups='inner' leaves groups that are added to a shortcut without gates.",
        )
    size = plan.layers[place[layer]].channels
    index = sum(place.get(group.name, -1) < place[layer] for group in plan.groups)
    before = [*plan.groups[:index], Group(layer, size, 0, (layer,), shared=True), *plan.groups[index:]]
    groups = _numbered(before)
    offset = groups[index].offset

    def renumbered(gates: Tensor) -> Tensor:
        return torch.where(gates >= offset, gates + size, gates)

    own = torch.arange(offset, offset + size)
    return replace(
        plan,
        groups=groups,
        axes={axis: renumbered(gates) for axis, gates in plan.axes.items()},
        sites={**plan.sites, **dict.fromkeys(sites, layer)},
        uncut_sites={**{a: renumbered(g) for a, g in plan.uncut_sites.items()}, **dict.fromkeys(sites, own)},
        uncut_filters={**{a: renumbered(g) for a, g in plan.uncut_filters.items()}, filters: own},
    )


def _sites(module: str, filters: Axis, parameters: frozenset[str]) -> tuple[Axis, ...]:
    """Return the axes to multiply: the affine parameters of a norm, or the layer's own weight and bias."""
    weight, bias = f"{module}.weight", f"{module}.bias"
    return ((weight, filters[1] if weight == filters[0] else 0), *([(bias, 0)] if bias in parameters else []))


def _numbered(groups: list[Group]) -> tuple[Group, ...]:
    offsets = [sum(group.size for group in groups[:index]) for index in range(len(groups))]
    return tuple(replace(group, offset=offset) for group, offset in zip(groups, offsets, strict=True))
