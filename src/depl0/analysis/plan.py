"""The result of the analysis, as plain data without a graph, and the selection of the groups with gates.

A :class:`Plan` lists the gates, the axes of the tensors that they control, their sites, and the unprunable channels
with their reasons. Gates are numbered in plan order: by group in order of execution, by channel within a group.

A channel that is added to a shortcut is written by several layers, so it cannot be removed for only one of them. A gate
may still close the output of one layer in ``alone``: it multiplies, and no channel is cut. The paper's ResNet-56 has
such gates on its first convolution, so it has 28 gated layers, of which 27 can be cut.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from depl0.analysis.propagate import Axis, LayerUse
from depl0.errors import InputError

if TYPE_CHECKING:
    from depl0.replacements.base import Replacement

NO_GATE = -1
"""The gate number of a position without a gate."""


@dataclass(frozen=True)
class Group:
    """Gates of one layer's channels, together with every layer whose channels are coupled to them.

    In this residual block, ``stem`` and ``two`` are added, so their channels are coupled; ``one`` has a separate
    group::

                  ┌────────────── + ── norm ── relu ── head ──
        x ── stem ┤               │
                  └─ one ── bn1 ── two

        Group("stem", size=16, offset=0,  layers=("stem", "two"), shared=True)
        Group("one",  size=32, offset=16, layers=("one",),        shared=False)

    Closing gate 3 removes channel 3 of ``stem`` and of ``two``, input 3 of ``one`` and ``head``, and entry 3 of
    ``norm``; closing gate 16 removes channel 0 of ``one``, entry 0 of ``bn1`` and input 0 of ``two``.
    """

    name: str
    """The layer that runs first."""
    size: int
    """Number of gates."""
    offset: int
    """Number of the first gate in the flat vector."""
    layers: tuple[str, ...]
    """All layers that output these channels, in order of execution."""
    shared: bool
    """True if the channels are added to a shortcut (the paper does not prune such groups)."""

    @property
    def gates(self) -> slice:
        """The slice of this group in the flat vector of gates."""
        return slice(self.offset, self.offset + self.size)


@dataclass(frozen=True)
class LayerReport:
    """The number of prunable output channels of one layer, and the reasons for the others."""

    layer: str
    channels: int
    prunable: int
    reasons: tuple[tuple[str, int], ...]
    """(reason, channels), most frequent first."""


@dataclass(frozen=True)
class Product:
    """Multiply-accumulates between activations, with the same number for every one of some channels."""

    gates: Tensor
    """Gate number of every channel, -1 for none."""
    macs: float
    """MACs for one channel."""


@dataclass(frozen=True)
class Plan:
    """The prunable channels of a network, and the reasons why the others are not prunable.

    For the residual block drawn at :class:`Group`, with gates 0 to 15 and 16 to 47::

        axes   ("stem.weight", 0) -> 0 … 15     ("one.weight", 1) -> 0 … 15     ("norm.weight", 0) -> 0 … 15
               ("one.weight", 0)  -> 16 … 47    ("bn1.weight", 0) -> 16 … 47    ("two.weight", 1)  -> 16 … 47   …
        sites  ("bn1.weight", 0), ("bn1.bias", 0), …: where a gate multiplies, so that a closed channel is zero for its
               consumers

    Example:
        >>> import torch, depl0
        >>> network = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> plan = depl0.plan(network, torch.zeros(1, 3))
        >>> [(group.name, group.size) for group in plan.groups], plan.unprunable()
        ([('0', 8)], {"reaches the network's output": 2})
    """

    groups: tuple[Group, ...]
    layers: tuple[LayerReport, ...]
    axes: Mapping[Axis, Tensor]
    """(parameter or buffer, dimension) -> gate number of every position, -1 for none."""
    sites: Mapping[Axis, str]
    """Axes that gates multiply -> layer."""
    uses: tuple[LayerUse, ...]
    """Calls of convolutions and linear layers in the evaluation pass."""
    norm_after: Mapping[str, str]
    """Layer -> the batch norm that is the only consumer of its output."""
    filters: tuple[Axis, ...]
    """Output axes of convolution and linear weights: the paper's groups of weights g_k."""
    uncut_sites: Mapping[Axis, Tensor] = field(default_factory=dict)
    """Sites of gates that multiply without a cut (:mod:`depl0.analysis.plan`) -> gate number of every position."""
    uncut_filters: Mapping[Axis, Tensor] = field(default_factory=dict)
    """Output axes of the layers with such gates -> gate number of every position."""
    replacements: Mapping[str, Replacement] = field(default_factory=dict)
    """Modules that need a replacement if channels are cut."""
    products: tuple[Product, ...] = ()
    """Products of activations: attention scores and their weighted sums."""
    covered: tuple[str, ...] = ()
    """The inputs and modes in which a trial cut was verified."""
    refused: tuple[str, ...] = ()
    """The inputs and modes that were not verified, because the network does not run on them or cannot be recorded."""
    index_limits: tuple[int | None, ...] = ()
    """For each tensor of the example: the size of the table that it indexes, or None."""
    shared_inputs: frozenset[int] = frozenset()
    """Numbers of the example's tensors that hold no entry per example, such as a (tokens, tokens) mask."""
    same_in_training: bool = False
    """True if it was observed to take the same path in training mode, without statistics of the batch."""
    dense_cost: tuple[int, int] | None = None
    """Parameters and MACs of the network."""
    least_cost: tuple[int, int] | None = None
    """Parameters and MACs with all gates closed; every layer keeps at least one channel."""
    dense_layers: Mapping[str, tuple[int, int]] | None = None
    """Parameters and MACs of every module, as counted by `depl0.cost`."""

    def least(self, of: str = "macs") -> float:
        """Return the smallest fraction of the MACs or parameters that pruning can reach."""
        if self.dense_cost is None or self.least_cost is None:
            return 0.0
        place = 1 if of == "macs" else 0
        return self.least_cost[place] / max(self.dense_cost[place], 1)

    @property
    def num_gates(self) -> int:
        """The number of gates."""
        return sum(group.size for group in self.groups)

    @property
    def channels(self) -> int:
        """The number of output channels of all layers."""
        return sum(report.channels for report in self.layers)

    @property
    def prunable_channels(self) -> int:
        """The number of output channels, over all layers, that have a gate."""
        return sum(report.prunable for report in self.layers)

    def replaced(self) -> dict[type[Replacement], list[str]]:
        """Return the modules that need a replacement, by its kind."""
        found: dict[type[Replacement], list[str]] = {}
        for path, replacement in self.replacements.items():
            found.setdefault(type(replacement), []).append(path)
        return dict(sorted(found.items(), key=lambda entry: entry[0].kind))

    def unprunable(self) -> dict[str, int]:
        """Return the reasons why channels cannot be pruned, with the number of channels for each, largest first."""
        counter: Counter[str] = Counter()
        for report in self.layers:
            for reason, channels in report.reasons:
                counter[reason] += channels
        return dict(counter.most_common())

    def to_dict(self) -> dict[str, Any]:
        """Return groups, layers and reasons as plain lists and dicts."""
        return {
            "gates": self.num_gates,
            "channels": self.channels,
            "prunable_channels": self.prunable_channels,
            "covered": list(self.covered),
            "not_covered": list(self.refused),
            "replaced": {kind.kind: paths for kind, paths in self.replaced().items()},
            "least_macs": self.least("macs"),
            "least_params": self.least("params"),
            "groups": [
                {"name": g.name, "gates": g.size, "layers": list(g.layers), "shared": g.shared} for g in self.groups
            ],
            "layers": [
                {"layer": r.layer, "channels": r.channels, "prunable": r.prunable, "unprunable": dict(r.reasons)}
                for r in self.layers
            ],
        }

    def __str__(self) -> str:
        width = max([len(r.layer) for r in self.layers] + [5])
        lines = [f"{'layer':<{width}}  channels  prunable  why not the rest"]
        for r in self.layers:
            why = "; ".join(f"{reason} [{count}]" for reason, count in r.reasons)
            lines.append(f"{r.layer:<{width}}  {r.channels:>8}  {r.prunable:>8}  {why}".rstrip())
        share = self.prunable_channels / max(self.channels, 1)
        lines.append(f"{len(self.groups)} groups, {self.num_gates} gates; {share:.0%} of all channels are prunable")
        if self.least_cost is not None:
            least = f"{self.least('macs'):.1%} of the MACs, {self.least('params'):.1%} of the parameters"
            lines.append(f"minimum reachable: {least}")
        lines += [f"{kind.description}: {len(paths)}" for kind, paths in self.replaced().items()]
        if self.covered:
            lines.append(f"verified on {', '.join(self.covered)}")
        if self.refused:
            lines.append(f"not verified: {', '.join(self.refused)}")
        return "\n".join(lines)


GroupChoice: TypeAlias = "str | Iterable[str] | Callable[[Group], bool]"


def select(groups: list[Group], choice: GroupChoice, known: Collection[str] = ()) -> dict[str, str]:
    """Return the names of the groups that are excluded, each with the reason.

    ``known`` are the names of groups that existed before a trial cut showed that they cannot be pruned. Naming one of
    them is not an error.
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
