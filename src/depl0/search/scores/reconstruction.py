"""What a channel is worth for what it costs, when the layers that read it may make up for its loss.

A layer with weight W reads patches with Gram matrix G. Without channel c, and with all its other weights free to make
up for it, the error of its output is

    e_c = tr(W_c ([G⁻¹]_cc)⁻¹ W_cᵀ)

(optimal brain surgeon, by channels). The channel with the least error, over all readers of its group, is removed, W and
G⁻¹ are brought up to date (Schur complement), and so on to the last one: so channels that stand in for each other are
not all judged worthless. The errors compare layers when each is taken relative to the variance of what the layer's
output becomes part of: the sum with a shortcut where it is added to one, its own output elsewhere. Of tokens, each
error is relative to the size of its own sum. The score of a gate is the logarithm of its error against that of what it
costs. No labels are needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from depl0._util.progress import tell
from depl0.analysis.plan import Group, Plan
from depl0.errors import InputError
from depl0.gated import GatedModel
from depl0.gates.threshold import BudgetKind
from depl0.host.inputs import ExampleInputs
from depl0.search.recovery.compensation import folded
from depl0.search.recovery.lockstep import Event, LayerCall, layer_events, order_and_added
from depl0.search.recovery.readers import (
    Reader,
    added_readers,
    by_channels,
    choose_places,
    find_readers,
    gate_values,
    in_factors,
    output_scale,
    patches,
    reads_tokens,
    rows_for,
    token_weights,
)
from depl0.search.recovery.regression import Moments, damping, is_wide
from depl0.search.scores.importance import standardise

EXPONENT = 0.8
"""of relative errors; below 1, differences in error count less against differences in cost"""


@torch.no_grad()
def reconstruction_scores(gated: GatedModel, batches: Iterable[Any], of: BudgetKind) -> Tensor:
    """Return a standardised score for every gate; high is worth keeping. The network is left as it is.

    Args:
        gated: the network to judge.
        batches: calibration inputs as the host takes them: tensors, tuples of arguments or dicts, without labels.
        of: the cost that a gate's error is set against: "macs", "params" or "latency".
    """
    return scores_of_errors(gated, reconstruction_errors(gated, batches), of)


def scores_of_errors(gated: GatedModel, errors: Tensor, of: BudgetKind) -> Tensor:
    """Return a standardised score for every gate: its error against what it costs, both as logarithms."""
    present = ~gated.engine.removed
    _, price = gated.engine.expected.value_and_gradient(present.float().to(_device(gated)), of)
    least = 0.01 * float(price.mean()) if of == "latency" else 1.0  # measured tables have flat parts
    scores = EXPONENT * errors.log() - price.double().cpu().clamp_min(least).log()
    scores[present] = standardise(scores[present])
    scores[~present] = -4.0
    return scores.float().to(_device(gated))


@torch.no_grad()
def reconstruction_errors(gated: GatedModel, batches: Iterable[Any]) -> Tensor:
    """Return the relative error that is left when a gate is closed after all that are less worth in its group.

    Within a group it rises in the order in which its channels should go. Gates that no layer reads which could be
    fitted get the mean error of their group; a group without any, that of the network.
    """
    inputs = [ExampleInputs.of(batch).on_device_of(gated.host) for batch in batches]
    steps = len(inputs) + len(gated.plan.groups)
    views = observe(gated, inputs, steps)
    is_there = ~gated.engine.removed
    errors = torch.full((gated.plan.num_gates,), torch.nan, dtype=torch.float64)
    for done, group in enumerate(gated.plan.groups, len(inputs) + 1):
        order, increments = removal_order(group, views, is_there)
        tell(done, steps)
        if not order:
            continue
        rising = torch.tensor(increments, dtype=torch.float64).clamp_min(1e-12).cummax(0).values
        ties = 1 + 1e-9 * torch.arange(len(order), dtype=torch.float64)  # equal errors keep their order
        errors[torch.tensor(order)] = rising * ties
    known = errors.isfinite()
    return torch.where(known, errors, errors[known].log().mean().exp() if bool(known.any()) else 1.0)


def _device(gated: GatedModel) -> torch.device:
    return next(gated.host.parameters()).device


@final
@dataclass
class View:
    """One reader while channels are taken from it."""

    gates: Tensor
    """the gate of every input channel"""
    block: int
    """columns of one input channel"""
    weight: Tensor
    """(outputs, columns), scaled so that its error is relative"""
    inverse: Tensor
    """of the damped Gram matrix"""

    def columns(self, gate: int) -> Tensor:
        """Return the columns that a gate closes."""
        places = (self.gates == gate).nonzero().flatten()
        return (places[:, None] * self.block + torch.arange(self.block)).flatten()


@torch.no_grad()
def observe(gated: GatedModel, inputs: list[ExampleInputs], steps: int = 0, gates: Tensor | None = None) -> list[View]:
    """Run the network over all batches, the first of so many steps, and return its readers with what they see.

    By default all gates are open. Given gates must be above 0; every channel is scaled back to an open gate, so that a
    channel that is nearly closed is seen in a network that does without it.
    """
    plan, host = gated.engine.host_plan, gated.host
    gates = (~gated.engine.removed).float() if gates is None else gates
    network = folded(plan, host, gates)
    if not inputs:
        raise InputError("there are no calibration inputs.", hint="pass at least one batch of inputs.")
    every, _ = find_readers(plan, host)
    _, added = order_and_added(network, inputs[0])
    readers = {weight: reader for weight, reader in every.items() if bool((reader.gates >= 0).any())}
    sums = added_readers(host, every, added)
    observer = _Observer(plan, host, readers, gates, len(inputs), sums)
    for number, batch in enumerate(inputs):
        observer.batch = number
        with layer_events(network, observer, sums):
            batch.run(network)
        tell(number + 1, steps)
    return [
        _view(host.get_parameter(weight).detach(), reader, observer, output_scale(network, reader))
        for weight, reader in readers.items()
        if observer.seen[weight].count
    ]


@final
class _Observer:
    """Adds up what readers see, and the variance of the sums that their outputs go into."""

    def __init__(
        self,
        plan: Plan,
        host: nn.Module,
        readers: dict[str, Reader],
        gates: Tensor,
        batches: int,
        added: Collection[str] = (),
    ) -> None:
        self.seen = {weight: Moments(reader.constant is not None) for weight, reader in readers.items()}
        self.spread: dict[str, list[float]] = {}
        """of every batch, the variance of the sum"""
        self.tokens = dict.fromkeys(readers, 0)
        """of every layer whose tokens have weights, their number"""
        self._held: dict[str, tuple[LayerCall, Tensor, Tensor]] = {}
        self.batch, self._batches = 0, batches
        self._readers, self._added = readers, added
        self._weights = {weight: host.get_parameter(weight) for weight in readers}
        self._factors = {weight: in_factors(plan, reader, gates) for weight, reader in readers.items()}
        for weight, reader in readers.items():
            values = gate_values(reader.gates, gates)
            self._factors[weight] /= values.masked_fill(values == 0, 1.0)

    def __call__(self, event: Event) -> None:
        """Look at a layer's call, or at the sum behind it."""
        if event.weight not in self._readers:
            return
        weight = self._weights[event.weight]
        if not isinstance(event, LayerCall):
            if event.weight in self._held:
                call, places, rows = self._held.pop(event.weight)
                self.seen[event.weight].add(rows, rows[:, :1], token_weights(event.branch + event.other, call, places))
                self.tokens[event.weight] += len(rows)
                return
            total = (event.branch + event.other).movedim(-1 if weight.dim() == 2 else 1, 0)
            self.spread.setdefault(event.weight, []).append(float(total.flatten(1).float().var(1).sum()))
            return
        kernel = weight[0, 0].numel()
        places = choose_places(event, rows_for(weight[0].numel()) // self._batches, seed=self.batch)
        rows = patches(event, places)
        rows = rows * self._factors[event.weight].repeat_interleave(kernel).to(rows)
        if event.weight in self._added and reads_tokens(event):
            self._held[event.weight] = event, places, rows
            return
        if is_wide(weight):
            rows = by_channels(rows, kernel)
        self.seen[event.weight].add(rows, rows[:, :1])


def _view(weight: Tensor, reader: Reader, observer: _Observer, scale: Tensor) -> View:
    """Scale a reader's weight so that its errors are relative, and invert its Gram matrix."""
    kernel, gram = weight[0, 0].numel(), observer.seen[reader.weight].gram
    scaled = weight.double().cpu() * scale.view(-1, *[1] * (weight.dim() - 1))
    flat, block = scaled.flatten(1), kernel
    if is_wide(weight):
        flat, block = scaled.flatten(2).transpose(1, 2).flatten(0, 1), 1  # (outputs · kernel, channels)
    spread = observer.spread.get(reader.weight)
    if observer.tokens[reader.weight]:  # weights are one over the energy of every token
        energy = observer.tokens[reader.weight] / observer.seen[reader.weight].count
    else:
        energy = float((flat @ gram * flat).sum()) if spread is None else sum(spread) / len(spread)
    strength = damping(gram) or 1.0
    inverse = torch.linalg.inv(gram + strength * torch.eye(len(gram), dtype=gram.dtype))
    return View(reader.gates, block, flat / max(energy, 1e-30) ** 0.5, inverse)


# -- greedy removal -------------------------------------------------------------------------------------------------


def removal_order(
    group: Group, views: list[View], is_there: Tensor, *, update: bool = True
) -> tuple[list[int], list[float]]:
    """Return the gates of a group in the order in which they go, and the error that each adds.

    Without the update every channel is judged as the first to go: what is left if channels do not depend on each other.
    """
    members = [gate for gate in range(group.offset, group.offset + group.size) if bool(is_there[gate])]
    reading = []
    for view in views:
        of_gate = {gate: columns for gate in members if len(columns := view.columns(gate))}
        if of_gate:
            reading.append((View(view.gates, view.block, view.weight.clone(), view.inverse.clone()), of_gate))
    left = torch.tensor([gate for gate in members if any(gate in of_gate for _, of_gate in reading)], dtype=torch.long)
    order: list[int] = []
    increments: list[float] = []
    while len(left):
        errors = torch.zeros(len(left), dtype=torch.float64)
        for view, of_gate in reading:
            errors += _errors(view, of_gate, left)
        at_once = max(1, len(left) // 64) if update else len(left)  # wide groups lose several between two updates
        lowest = errors.argsort(stable=True)[:at_once]
        order += left[lowest].tolist()
        increments += errors[lowest].tolist()
        for view, of_gate in reading:
            gone = [of_gate[gate] for gate in left[lowest].tolist() if gate in of_gate]
            if gone:
                _remove(view, torch.cat(gone))
        stays = torch.ones(len(left), dtype=torch.bool)
        stays[lowest] = False
        left = left[stays]
    return order, increments


def view_errors(view: View, gates: Tensor) -> Tensor:
    """Return e_c in one layer of every one of these gates."""
    return _errors(view, {gate: columns for gate in gates.tolist() if len(columns := view.columns(gate))}, gates)


def _errors(view: View, of_gate: dict[int, Tensor], left: Tensor) -> Tensor:
    """Return e_c of every gate that is left; 0 for those that this layer does not read."""
    errors = torch.zeros(len(left), dtype=torch.float64)
    by_width: dict[int, list[int]] = {}
    for place, gate in enumerate(left.tolist()):
        if gate in of_gate:
            by_width.setdefault(len(of_gate[gate]), []).append(place)
    for places in by_width.values():
        columns = torch.stack([of_gate[int(left[place])] for place in places])  # (gates, width)
        blocks = view.inverse[columns[:, :, None], columns[:, None, :]]
        weights = view.weight[:, columns].permute(1, 2, 0)  # (gates, width, outputs)
        errors[torch.tensor(places)] = (weights * torch.linalg.solve(blocks, weights)).sum((1, 2))
    return errors.clamp_min(0)


def _remove(view: View, columns: Tensor) -> None:
    """Take columns out of a view, in place; the other weights make up for them."""
    block = view.inverse[columns][:, columns]
    gain = torch.linalg.solve(block, view.inverse[columns])  # (columns, all)
    view.weight -= view.weight[:, columns] @ gain
    view.inverse -= view.inverse[:, columns] @ gain
    view.weight[:, columns] = 0
    view.inverse[columns], view.inverse[:, columns] = 0, 0
    view.inverse[columns, columns] = 1  # alone from now on


def joint_error(views: list[View], gates: Tensor) -> float:
    """Return the error of closing all these gates at once, the other channels of their readers making up for it."""
    error = 0.0
    for view in views:
        columns = torch.cat([view.columns(gate) for gate in gates.tolist()])
        if len(columns):
            blocks, weights = view.inverse[columns][:, columns], view.weight[:, columns].T
            error += float((weights * torch.linalg.solve(blocks, weights)).sum())
    return error
