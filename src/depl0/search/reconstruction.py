"""Channel importance per cost by reconstruction error, if consumer layers are refitted without the channel.

A layer with weight W reads patches with Gram matrix G. Without channel c, and with all its other weights refitted, the
error of its output is

    e_c = tr(W_c ([G⁻¹]_cc)⁻¹ W_cᵀ)

(optimal brain surgeon, by channels). The channel with the smallest error, over all consumer layers of its group, is
removed, W and G⁻¹ are updated (Schur complement), and so on to the last channel. Therefore redundant channels are not
all scored as unimportant. To be comparable between layers, each error is taken relative to the variance of the sum that
the layer's output is added to, or else of the output itself. For tokens, each error is relative to the size of its own
sum. The score of a gate is the logarithm of its error relative to its cost in the remaining network. No labels are
needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from depl0._util.progress import report_progress
from depl0.analysis.plan import Group
from depl0.config import GateConfig
from depl0.gated import GatedModel
from depl0.gates.threshold import BudgetKind, counted
from depl0.host.inputs import ExampleInputs, output_tensors, without_cache
from depl0.host.network import evaluation_mode
from depl0.search.importance import FEW, standardise
from depl0.search.recovery.compensation import folded
from depl0.search.recovery.consumers import (
    ConsumerLayer,
    added_consumers,
    by_channels,
    choose_places,
    find_consumers,
    gate_values,
    output_scale,
    own_factors,
    patches,
    reads_tokens,
    rows_for,
    token_weights,
)
from depl0.search.recovery.lockstep import Event, LayerCall, Stepper, order_and_added
from depl0.search.recovery.memory import GRAMS, pieces, profile
from depl0.search.recovery.regression import Moments, damping, is_wide
from depl0.select.gates import select_gates

ALONE_BATCHES, SIGNS = 4, 8
"""Number of calibration batches, and of random directions, for errors of closing gates alone."""
EXPONENT = 0.8
"""Exponent of relative errors; below 1, differences in error count less than differences in cost.

Errors that are weighted by the size of tokens have an exponent of 1.
"""
PRICE_ROUNDS = 4
"""Number of times that costs are updated in the network that they select."""


@torch.no_grad()
def reconstruction_scores(
    gated: GatedModel, batches: Iterable[Any], of: BudgetKind, config: GateConfig | None = None
) -> Tensor:
    """Return a standardised score for every gate: its error relative to its cost. The network is not changed.

    A channel costs less if its neighbours are narrower, and a channel of a residual stream, all of whose neighbours are
    cut, loses most of its cost. So with a budget, costs are those in the remaining network: the costs are updated
    several times in the network that the scores select.

    Args:
        gated: the gated model to score.
        batches: calibration inputs for the host: tensors, tuples of arguments or dicts, without labels.
        of: the cost that a gate's error is divided by: "macs", "params" or "latency".
        config: the budget and rules of the final network; None: costs are those of the current network.
    """
    errors, weighted = reconstruction_errors(gated, batches)
    exponent, present = 1.0 if weighted else EXPONENT, ~gated.removed
    gates, price = present.float(), None
    for _ in range(1 if config is None or config.budget is None else PRICE_ROUNDS):
        at_gates = gated.expected.value_and_gradient(gates.to(gated.device), counted(of))[1].double().cpu()
        least = 0.01 * float(at_gates.mean()) if of == "latency" else 1.0  # measured tables have flat parts
        price = at_gates.clamp_min(least) if price is None else (price * at_gates.clamp_min(least)).sqrt()
        scores = exponent * errors.log() - price.log()
        scores[present] = standardise(scores[present])
        scores[~present] = -4.0
        if config is not None and config.budget is not None:
            gates = select_gates(gated.snapshot(), config, scores.float()).gates
    return scores.float().to(gated.device)


@torch.no_grad()
def reconstruction_errors(gated: GatedModel, batches: Iterable[Any]) -> tuple[Tensor, bool]:
    """Return the relative error of closing each gate after all less important gates of its group.

    Within a group it rises in the order of removal. The second value is True if errors are weighted by the size of each
    token's sum.
    """
    shared = gated.plan.shared_inputs
    inputs = [ExampleInputs.of(batch).with_shared(shared).on_device_of(gated.host) for batch in batches]
    is_there = ~gated.removed
    errors = torch.full((gated.plan.num_gates,), torch.nan, dtype=torch.float64)
    with without_cache(gated.host), closing(Look(gated, inputs)) as look:
        parts = look.parts()
        steps, done = len(parts) * len(look.pieces) + len(gated.plan.groups), 0
        for groups, weights in parts:
            views = look.views(weights, done, steps)
            done += len(look.pieces)
            for group in groups:
                order, increments = removal_order(group, views, is_there)
                done += 1
                report_progress(done, steps)
                if order:
                    rising = torch.tensor(increments, dtype=torch.float64).clamp_min(1e-12).cummax(0).values
                    ties = 1 + 1e-9 * torch.arange(len(order), dtype=torch.float64)  # ties keep their order
                    errors[torch.tensor(order)] = rising * ties
            del views
    return _completed(gated, errors, look, inputs[:ALONE_BATCHES]), look.weighted


def _completed(gated: GatedModel, errors: Tensor, look: Look, inputs: list[ExampleInputs]) -> Tensor:
    """Estimate the errors of gates whose consumers have no separate matrix, such as fused experts.

    They are those of closing the gate alone, without a refit. Gates without a consumer get the mean error.
    """
    known, unseen = errors.isfinite(), look.unseen_gates()
    if bool(unseen.any()):
        alone = _errors_alone(gated, inputs, {_owner(gated.host, weight) for weight in look.unseen})
        errors = torch.where(unseen & (alone > 0), torch.maximum(errors.nan_to_num(0.0), alone), errors)
        known = errors.isfinite()
    mean = errors[known].log().mean().exp() if bool(known.any()) else torch.tensor(1.0, dtype=torch.float64)
    return torch.where(known, errors, mean)


def _owner(host: nn.Module, weight: str) -> str:
    """Return the name of the module that is called with a weight; attention never calls its output layer."""
    owner = weight.rpartition(".")[0]
    parent = owner.rpartition(".")[0]
    return parent if isinstance(host.get_submodule(parent), nn.MultiheadAttention) else owner


@torch.enable_grad()
def _errors_alone(gated: GatedModel, inputs: list[ExampleInputs], modules: set[str]) -> Tensor:
    """Return E|∂y/∂z|² / E|y|² of every gate z, with y the output of the one of these modules that reads its channel.

    If y is linear in the channel, this is the relative error of closing the gate. It is estimated by random signs.
    """
    rng, gates = torch.Generator().manual_seed(0), torch.ones(gated.plan.num_gates, device=gated.device)
    outputs: list[Tensor] = []

    def cut_off(_: nn.Module, args: Any, kwargs: Any) -> Any:  # gates of earlier modules
        return pytree.tree_map_only(Tensor, Tensor.detach, (args, kwargs))

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        outputs.extend(tensor for tensor in output_tensors(output) if tensor.requires_grad)

    owners = [gated.host.get_submodule(name) for name in modules]
    handles = [owner.register_forward_pre_hook(cut_off, with_kwargs=True) for owner in owners]
    handles += [owner.register_forward_hook(keep) for owner in owners]
    total, count = torch.zeros(len(gates), dtype=torch.float64), 0
    try:
        with evaluation_mode(gated):
            for part in pieces(inputs, FEW):
                leaf = gates.clone().requires_grad_()
                part.run(partial(gated.call_with_gates, leaf))
                for _ in range(SIGNS if outputs else 0):  # none if the modules only read gates of earlier ones
                    signs = [torch.randint(2, y.shape, generator=rng).to(y) * 2 - 1 for y in outputs]
                    along = [(y * sign).sum() / y.detach().norm() for y, sign in zip(outputs, signs, strict=True)]
                    (slope,) = torch.autograd.grad(torch.stack(along).sum(), leaf, retain_graph=True)
                    total, count = total + slope.double().cpu().square(), count + 1
                outputs.clear()
    finally:
        for handle in handles:
            handle.remove()
    return total / max(count, 1)


@final
@dataclass
class View:
    """A consumer layer while channels are removed from it; its matrices shrink with every removed channel."""

    gates: Tensor
    """(columns,) the gate of every column, -1 for none."""
    weight: Tensor
    """(rows, columns), scaled so that its error is relative."""
    inverse: Tensor
    """(columns, columns), of the damped Gram matrix."""

    def columns(self, gates: Tensor) -> Tensor:
        """Return the columns that these gates close."""
        return torch.isin(self.gates, gates).nonzero().flatten()

    def without(self, columns: Tensor) -> View:
        """Return the view without some columns; the other weights compensate for them (Schur complement)."""
        stays = torch.ones(len(self.gates), dtype=torch.bool)
        stays[columns] = False
        block, cross = self.inverse[columns][:, columns], self.inverse[columns][:, stays]
        gain = torch.linalg.solve(block, cross)  # (removed, remaining)
        weight = self.weight[:, stays].addmm_(self.weight[:, columns], gain, alpha=-1)
        inverse = self.inverse[stays][:, stays].addmm_(cross.T, gain, alpha=-1)
        return View(self.gates[stays], weight, inverse)

    def errors(self, gates: Tensor) -> Tensor:
        """Return e_c of every one of these gates; 0 for those that are not inputs of the layer."""
        errors = torch.zeros(len(gates), dtype=torch.float64)
        place_of = torch.full((int(max(gates.max(), self.gates.max())) + 2,), -1)
        place_of[gates] = torch.arange(len(gates))
        place = place_of[self.gates]  # a gate of -1 picks the last entry
        order = place.argsort(stable=True)[int((place < 0).sum()) :]
        widths = torch.bincount(place[order], minlength=len(gates))
        starts = widths.cumsum(0) - widths
        for width in widths.unique().tolist():
            if width == 0:
                continue
            places = (widths == width).nonzero().flatten()
            columns = order[starts[places, None] + torch.arange(width)]  # (gates, width)
            weights = self.weight[:, columns]  # (rows, gates, width)
            if width == 1:
                errors[places] = weights[..., 0].square().sum(0) / self.inverse[columns, columns][:, 0]
                continue
            blocks = self.inverse[columns[:, :, None], columns[:, None, :]]
            weights = weights.permute(1, 2, 0)  # (gates, width, rows)
            errors[places] = (weights * torch.linalg.solve(blocks, weights)).sum((1, 2))
        return errors.clamp_min(0)


@final
class Look:
    """A network with its open gates, and the inputs of its consumer layers for calibration inputs.

    Examples wait at the last layer of a part until :meth:`views` is called for a later one, so that parts of layers
    need one pass together. Examples that memory does not allow to wait start again. Close it afterwards.

    Args:
        gated: the gated model; its host is not changed.
        inputs: batches on the host's device.
    """

    def __init__(self, gated: GatedModel, inputs: list[ExampleInputs]) -> None:
        self.plan, self.host, self._groups = gated.host_plan, gated.host, gated.plan.groups
        self.gates = (~gated.removed).float()
        is_whole = bool((self.gates == 1).all())
        self._network = self.host if is_whole else folded(self.plan, self.host, self.gates)
        every = find_consumers(self.plan, self.host)
        self._order, added = order_and_added(self._network, inputs[0].first())
        self.added = added_consumers(self.host, every, added)
        self._consumers = {
            weight: consumer
            for weight, consumer in every.items()
            if not consumer.depthwise and bool((consumer.gates >= 0).any())
        }
        self._profile = profile(self._network, inputs[0], self.added)
        self.pieces = pieces(inputs, self._profile.piece())
        self._held = self._profile.held(self.pieces)
        self._waiting: dict[int, Stepper] = {}
        self._passed = 0
        """Number of events that the waiting examples have passed."""
        self.weighted = False
        """whether errors are weighted by the size of each token's sum"""

    def close(self) -> None:
        """Stop the examples that wait."""
        while self._waiting:
            self._waiting.popitem()[1].close()
        self._passed = 0

    def parts(self, limit: int = GRAMS) -> list[tuple[list[Group], list[str]]]:
        """Return groups with their consumer layers, in parts whose matrices are held in memory together."""
        found: list[tuple[list[Group], list[str]]] = []
        for group in self._groups:
            gates = torch.arange(group.offset, group.offset + group.size)
            reading = [w for w, consumer in self._consumers.items() if bool(torch.isin(gates, consumer.gates).any())]
            if found and sum(map(self._bytes, {*found[-1][1], *reading})) <= limit:
                found[-1][0].append(group)
                found[-1][1].extend(weight for weight in reading if weight not in found[-1][1])
            else:
                found.append(([group], reading))
        return found

    @property
    def unseen(self) -> list[str]:
        """The weights of consumer layers that were never called as plain convolutions or linear layers."""
        return [weight for weight in self._consumers if weight not in self._order]

    def unseen_gates(self) -> Tensor:
        """Return the gates whose channels such layers read."""
        unseen = torch.zeros(len(self.gates) + 1, dtype=torch.bool)
        for weight in self.unseen:
            unseen[self._consumers[weight].gates] = True
        return unseen[:-1]  # a gate of -1 is the last entry

    def _bytes(self, weight: str) -> int:
        """Return the memory of a layer's Gram matrix and of its inverse."""
        tensor = self.host.get_parameter(weight)
        columns = tensor.shape[1] if is_wide(tensor) else tensor[0].numel()
        return 16 * columns**2

    @torch.no_grad()
    def views(self, weights: Iterable[str], done: int = 0, steps: int = 0) -> list[View]:
        """Run the network over all inputs, and return the views of these layers."""
        consumers = {weight: self._consumers[weight] for weight in weights}
        observer = _Observer(self, consumers)
        wanted = [number for number, (_, weight) in enumerate(self._profile.events) if weight in consumers]
        if not wanted:
            return []
        if wanted[0] < self._passed:
            self.close()
        passed, self._passed = self._passed, wanted[-1] + 1
        is_last = not any(weight in self._consumers for _, weight in self._profile.events[self._passed :])
        most = 0 if is_last else self._held[self._passed - 1]
        with evaluation_mode(self._network):
            for number in range(len(self.pieces)):
                observer.batch = number
                self._run(number, passed, most, observer)
                report_progress(done + number + 1, steps)
        self.weighted = self.weighted or any(seen.weighted for seen in observer.seen.values())
        return [
            _view(self.host.get_parameter(weight).detach(), consumer, observer, output_scale(self._network, consumer))
            for weight, consumer in consumers.items()
            if observer.seen[weight].count
        ]

    def _run(self, number: int, passed: int, most: int, observer: _Observer) -> None:
        """Run a piece of the inputs to the end of a part; to its own end if its layers are called in another order."""
        stepper = self._waiting.pop(number, None)
        if stepper is None:
            stepper, passed = Stepper(self._network, self.pieces[number], self.added), 0
        regular, at = True, passed
        try:
            while not (regular and at == self._passed):
                event = stepper.advance()
                if event is None:
                    return
                observer(event)
                regular = regular and self._profile.events[at : at + 1] == ((type(event), event.weight),)
                at += 1
            if len(self._waiting) < most:
                self._waiting[number] = stepper
        finally:
            if number not in self._waiting:
                stepper.close()


@final
class _Observer:
    """Accumulates the inputs of consumer layers, and the variance of the sums of their outputs."""

    def __init__(self, look: Look, consumers: dict[str, ConsumerLayer]) -> None:
        self.seen = {weight: Moments(consumer.constant is not None) for weight, consumer in consumers.items()}
        self.spread: dict[str, list[float]] = {}
        """For every batch, the variance of the sum."""
        self._held: dict[str, tuple[LayerCall, Tensor, Tensor]] = {}
        self.batch, self.gates, self._look, self._consumers = 0, look.gates, look, consumers
        self._weights = {weight: look.host.get_parameter(weight) for weight in consumers}
        self._factors = {
            weight: own_factors(look.plan, consumer, look.gates, 1) for weight, consumer in consumers.items()
        }

    def __call__(self, event: Event) -> None:
        """Process a layer's call, or the sum after it."""
        if event.weight not in self._consumers:
            return
        weight = self._weights[event.weight]
        if not isinstance(event, LayerCall):
            if event.weight in self._held:
                call, places, rows = self._held.pop(event.weight)
                self.seen[event.weight].add(rows, rows[:, :1], token_weights(event.branch + event.other, call, places))
                return
            total = (event.branch + event.other).movedim(-1 if weight.dim() == 2 else 1, 0)
            self.spread.setdefault(event.weight, []).append(float(total.flatten(1).float().var(1).sum()))
            return
        kernel = weight[0, 0].numel()
        places = choose_places(event, rows_for(weight) // len(self._look.pieces), seed=self.batch)
        rows = patches(event, places)
        rows = rows * self._factors[event.weight].repeat_interleave(kernel).to(rows)
        if event.weight in self._look.added and reads_tokens(event):
            self._held[event.weight] = event, places, rows
            return
        if is_wide(weight):
            rows = by_channels(rows, kernel)
        self.seen[event.weight].add(rows, rows[:, :1])


def _view(weight: Tensor, consumer: ConsumerLayer, observer: _Observer, scale: Tensor) -> View:
    """Scale a layer's weight so that its errors are relative, and invert its Gram matrix."""
    seen = observer.seen[consumer.weight]
    kernel, gram = weight[0, 0].numel(), seen.gram
    scaled = weight.double().cpu() * scale.view(-1, *[1] * (weight.dim() - 1))
    flat, block = scaled.flatten(1), kernel
    if is_wide(weight):
        flat, block = scaled.flatten(2).transpose(1, 2).flatten(0, 1), 1  # (outputs · kernel, channels)
    spread = observer.spread.get(consumer.weight)
    if seen.weighted:  # weights are the inverse energy of every token
        energy = seen.rows / seen.count
    else:
        energy = float((flat @ gram * flat).sum()) if spread is None else sum(spread) / len(spread)
    gates = consumer.gates.repeat_interleave(block)
    is_open = gate_values(gates, observer.gates) > 0
    gram, flat = gram[is_open][:, is_open], flat[:, is_open] / max(energy, 1e-30) ** 0.5
    strength = damping(gram, seen.rows, weighted=seen.weighted) or 1.0
    inverse = torch.linalg.inv(gram + strength * torch.eye(len(gram), dtype=gram.dtype))
    if len(flat) > len(gram):  # the error only depends on WᵀW
        flat = torch.linalg.qr(flat, mode="r").R
    return View(gates[is_open], flat, inverse)


# -- greedy removal -------------------------------------------------------------------------------------------------


def removal_order(group: Group, views: list[View], is_there: Tensor) -> tuple[list[int], list[float]]:
    """Return the gates of a group in the order of their removal, and the error that each adds."""
    members = torch.arange(group.offset, group.offset + group.size)
    members = members[is_there[members]]
    reading = [view for view in views if len(view.columns(members))]
    left = members[torch.isin(members, torch.cat([view.gates for view in reading]))] if reading else members[:0]
    order: list[int] = []
    increments: list[float] = []
    while len(left):
        errors = torch.stack([view.errors(left) for view in reading]).sum(0)
        at_once = max(1, len(left) // 64)  # several between two updates in wide groups
        lowest = errors.argsort(stable=True)[:at_once]
        order += left[lowest].tolist()
        increments += errors[lowest].tolist()
        gone = left[lowest]
        stays = torch.ones(len(left), dtype=torch.bool)
        stays[lowest] = False
        left = left[stays]
        if len(left):
            reading = [view.without(columns) if len(columns := view.columns(gone)) else view for view in reading]
    return order, increments
