"""Least-squares refit of the consumer layers of closed channels.

A layer with weight W computes Y = W·P in the original network. In the network to be cut it reads other patches P', in
which closed channels are zero and the other channels are changed by earlier cuts. Its weight becomes

    W' = argmin E|Y - W'·P' - c|² + λ|W' - W|²

over the open columns, from calibration inputs alone; in a depthwise layer, every filter is fitted to its own channel.
The constant c is added to its bias or to the running mean of the following batch norm. Layers are refitted in order of
execution, so that every layer is fitted to its actual inputs. A layer whose output is only added to a shortcut also
compensates for errors of the shortcut. A layer that reads tokens does neither, because that overfits: it is fitted to
its former output from its original inputs, and its errors are relative to the size of each token's sum.

Only weights of the host change, so that an extracted network still computes the outputs of the gated model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn

from depl0._util.process import without_autocast
from depl0._util.progress import report_progress
from depl0.analysis.plan import Plan
from depl0.errors import InputError
from depl0.gated import GatedModel
from depl0.gates.scaling import scaled_parameters
from depl0.host.copies import isolated_deepcopy, lazy_copy
from depl0.host.inputs import ExampleInputs, without_cache
from depl0.host.network import evaluation_mode
from depl0.search.recovery.consumers import (
    ELEMENTS,
    ConsumerLayer,
    added_consumers,
    by_channels,
    choose_places,
    find_consumers,
    gate_values,
    outputs_at,
    own_factors,
    patches,
    reads_tokens,
    rows_for,
    token_weights,
)
from depl0.search.recovery.lockstep import Event, LayerCall, Stepper, Sum, order_and_added
from depl0.search.recovery.memory import FreedMemory, activations_for, pieces, profile
from depl0.search.recovery.regression import Fit, Moments, fit_channels, fit_depthwise, fit_patches, is_wide

_CallPairs: TypeAlias = "list[tuple[LayerCall, LayerCall]]"
"""For every batch: a layer's call in the original network, and in the network to be cut."""
_SumPairs: TypeAlias = "list[tuple[Sum, Sum]]"


@final
@dataclass(frozen=True)
class Fitted:
    """A refitted layer, and the error of its output relative to the output's variance."""

    layer: str
    before: float
    after: float


def compensate(
    gated: GatedModel,
    gates: Tensor,
    batches: Iterable[Any],
    *,
    before: Tensor | None = None,
    original: nn.Module | None = None,
) -> tuple[Fitted, ...]:
    """Refit the layers of the host for the closing of gates, in place; then close the gates, and extract as usual.

    Nothing is trained and no labels are needed. Two copies of the host run side by side, on as many examples at a time
    as fit into the memory limit (:mod:`.memory`). Do not re-estimate batch-norm statistics afterwards: the statistics
    already contain the constants, and a refitted output has less variance than its target.

    Args:
        gated: the gated model; its gates and modes are not changed.
        gates: the gates of the refitted network.
        batches: calibration inputs for the host: tensors, tuples of arguments or dicts; 1,024 images are enough.
        before: the gates of the network whose outputs are the target; by default 1 for every gate that is not removed.
        original: the network whose outputs are the target, with all its channels, if the host was refitted before. The
            host starts from its weights again, because constants of an earlier refit would count twice.
    """
    plan, host = gated.host_plan, gated.host
    before, after = ((~gated.removed).float() if before is None else before).cpu().float(), gates.detach().cpu().float()
    if original is not None:
        before = torch.ones_like(before)
        for own, given in zip(host.parameters(), original.parameters(), strict=True):
            own.data = lazy_copy(given)
        for kept, buffer in zip(host.buffers(), original.buffers(), strict=True):
            kept.copy_(buffer)
    inputs = [ExampleInputs.of(batch).with_shared(plan.shared_inputs).on_device_of(host) for batch in batches]
    if torch.equal(before, after) and original is None:
        return ()
    with evaluation_mode(host), without_cache(host):
        run = _Run(plan, host, (before, after), inputs, find_consumers(plan, host))
        run.to_end()
    for name, value in run.changed.items():
        _tensor(host, name).data = value
    return tuple(run.fitted)


def folded(plan: Plan, host: nn.Module, gates: Tensor) -> nn.Module:
    """Return a copy of the host with gates multiplied into its parameters, in evaluation mode."""
    copy = isolated_deepcopy(host).eval()
    scaled = scaled_parameters(plan, host, gates)
    for name, parameter in copy.named_parameters():
        if name in scaled:
            parameter.data = scaled[name]
    return copy


@final
class _Run:
    """Runs two networks on all batches in lockstep, from layer to layer."""

    def __init__(
        self,
        plan: Plan,
        host: nn.Module,
        gates: tuple[Tensor, Tensor],
        inputs: list[ExampleInputs],
        consumers: dict[str, ConsumerLayer],
    ) -> None:
        self.plan, self.host, self.consumers = plan, host, consumers
        self.before, self.after = gates
        is_whole = bool((self.before == 1).all())  # then no gate is folded, and no copy is needed
        self.dense = host if is_whole else folded(plan, host, self.before)
        self.cut = folded(plan, host, self.after)
        added = order_and_added(self.dense, inputs[0].first())[1]
        self.added = added_consumers(host, consumers, added)
        self.profile = profile(self.dense, inputs[0], self.added)
        self.room = activations_for(self.host)
        self.pieces = pieces(inputs, self.profile.piece(self.room))
        self.freed = FreedMemory()
        self.pending: dict[str, _CallPairs] = {}
        self.changed: dict[str, Tensor] = {}
        self.fitted: list[Fitted] = []

    def to_end(self) -> None:
        """Run both networks from event to event, and refit every layer that needs it."""
        running: list[Any] = []
        waiting = self.profile.held(self.pieces, self.room)
        try:
            for number, held in enumerate(waiting):
                for pair in running[held:]:
                    _close(pair)
                for dropped in (running, *self.pending.values()):
                    del dropped[held:]
                events = [self._advance(pair, number) for pair in running]
                for piece in self.pieces[len(running) : held]:
                    cut = Stepper(self.cut, piece, self.added, renew=True)
                    running.append((Stepper(self.dense, piece, self.added), cut))
                    events.append(self._catch_up(running[-1], number))
                self._look(events)
                del events
                report_progress(number + 1, len(waiting))
        finally:
            for pair in running:
                _close(pair)
            self.freed.release()

    def _catch_up(self, pair: tuple[Stepper, Stepper], number: int) -> tuple[Event, Event]:
        """Run a new piece to this event, past layers that have already been refitted."""
        for past in range(number):
            event = self._advance(pair, past)
            if isinstance(event[0], LayerCall) and isinstance(event[1], LayerCall) and event[0].weight in self.pending:
                self.pending[event[0].weight].append((event[0], event[1]))
        return self._advance(pair, number)

    def _advance(self, pair: tuple[Stepper, Stepper], number: int) -> tuple[Event, Event]:
        """Run a piece to its next event in both networks, which must be this one."""
        found = pair[0].advance(), pair[1].advance()
        self.freed.release()
        if any(event is None or (type(event), event.weight) != self.profile.events[number] for event in found):
            raise InputError(
                "the network calls its layers in another order for other inputs, so it cannot be compensated.",
                hint="leave compensation out for this network.",
            )
        assert found[0] is not None and found[1] is not None
        return found[0], found[1]

    def _look(self, events: list[tuple[Event, Event]]) -> None:
        """Refit a layer at its call or at the sum that it is added to: only there the other summand is available."""
        weight = events[0][0].weight
        consumer = self.consumers.get(weight)
        if consumer is None:
            return
        calls = [(a, b) for a, b in events if isinstance(a, LayerCall) and isinstance(b, LayerCall)]
        sums = [(a, b) for a, b in events if isinstance(a, Sum) and isinstance(b, Sum)]
        if calls and weight in self.added:
            self.pending[weight] = calls
        elif calls:
            self._fit(consumer, calls, None)
        else:
            self._fit(consumer, self.pending.pop(weight), sums)

    @without_autocast()
    def _fit(self, consumer: ConsumerLayer, calls: _CallPairs, sums: _SumPairs | None) -> None:
        """Refit one layer, unless its inputs are unchanged."""
        is_open, was_open = gate_values(consumer.gates, self.after) > 0, gate_values(consumer.gates, self.before) > 0
        read = [(a.input, b.input) for a, b in calls] + [(a.other, b.other) for a, b in sums or []]
        is_complete = torch.equal(was_open, is_open)
        if is_complete and (consumer.tied or reads_tokens(calls[0][1]) or all(torch.equal(a, b) for a, b in read)):
            return
        weight = self.host.get_parameter(consumer.weight).detach().double().cpu()
        if not consumer.depthwise:  # columns of gates that were closed until now start from zero
            weight = weight * was_open.to(weight).view(1, -1, *[1] * (weight.dim() - 2))
        if consumer.depthwise:
            if calls[0][1].arguments.get("groups", 1) != len(weight):  # several filters read a channel
                return
            inputs = _patches_of_channels(calls, weight)
            fit = fit_depthwise(weight, inputs, is_open, has_constant=consumer.constant is not None)
        elif is_wide(weight):
            seen = self._moments(consumer, calls, None, weight, by_channel=True)
            fit = fit_channels(weight, seen, is_open)
        else:
            seen = self._moments(consumer, calls, sums, weight, by_channel=False)
            counts = gate_values(consumer.out_gates, self.after) > 0
            fit = fit_patches(weight, seen, is_open, counts, keep_weight=consumer.tied)
        self.fitted.append(Fitted(consumer.layer, fit.before, fit.after))
        self._write(consumer, fit, is_open)

    def _moments(
        self, consumer: ConsumerLayer, calls: _CallPairs, sums: _SumPairs | None, weight: Tensor, *, by_channel: bool
    ) -> Moments:
        """Return the moments of the layer's current inputs and of the target: its former outputs, or channels."""
        moments = Moments(centred=consumer.constant is not None)
        kernel = weight[0, 0].numel()
        was_factor, factor = (
            own_factors(self.plan, consumer, gates, 1).repeat_interleave(kernel) for gates in (self.before, self.after)
        )
        rows = rows_for(weight) // len(calls)
        for number, (dense, cut) in enumerate(calls):
            places = choose_places(cut, rows, seed=number)
            was = patches(dense, places)
            seen = was if reads_tokens(cut) else patches(cut, places)
            seen, was = seen * factor.to(seen), was * was_factor.to(was)
            if by_channel:
                moments.add(by_channels(seen, kernel), by_channels(was, kernel))
                continue
            wanted = was @ weight.flatten(1).to(was).T
            if sums is not None and reads_tokens(cut):
                total = sums[number][0].branch + sums[number][0].other
                moments.add(seen, wanted, token_weights(total, dense, places))
                continue
            if sums is not None:
                missing = outputs_at(sums[number][0].other - sums[number][1].other, cut, places)
                wanted = wanted + missing * self._inverse_scale(consumer, sums[number][1].scale).to(missing)
            moments.add(seen, wanted)
        return moments

    def _inverse_scale(self, consumer: ConsumerLayer, norm_scale: Tensor | None) -> Tensor:
        """Return the factors from an error of the sum to one of the layer's output; 0 for nearly unused channels."""
        scale = own_factors(self.plan, consumer, self.after, 0).double() * (1.0 if norm_scale is None else norm_scale)
        reaches = scale.abs() > 1e-2 * scale.abs().max()
        return torch.where(reaches, 1 / torch.where(reaches, scale, 1.0), 0.0)

    def _write(self, consumer: ConsumerLayer, fit: Fit, is_open: Tensor) -> None:
        """Record the new weight and constant, and write them, multiplied by their gates, into the running copy."""
        old = self.host.get_parameter(consumer.weight).detach()
        row = [-1, *[1] * (old.dim() - 1)]
        column = row if consumer.depthwise else [1, -1, *row[2:]]
        weight = torch.where(is_open.view(column).to(old.device), fit.weight.to(old), old)
        rows, columns = (own_factors(self.plan, consumer, self.after, axis).to(old) for axis in (0, 1))
        self._note(consumer.weight, weight, weight * rows.view(row) * columns.view(column))
        if consumer.constant is None:
            return
        if consumer.constant.endswith(".bias") or consumer.constant == "bias":
            bias = self.host.get_parameter(consumer.constant).detach()
            bias = bias + fit.constant.to(bias)
            self._note(consumer.constant, bias, bias * rows)
        else:
            mean = self.host.get_buffer(consumer.constant)
            mean = mean - fit.constant.to(mean)
            self._note(consumer.constant, mean, mean)

    def _note(self, name: str, value: Tensor, gated: Tensor) -> None:
        self.changed[name] = value
        with torch.no_grad():
            _tensor(self.cut, name).copy_(gated)


def _patches_of_channels(calls: _CallPairs, weight: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the current and the former inputs of a depthwise layer, (rows, channels, kernel positions)."""
    kernel = weight[0, 0].numel()
    rows = max(64 * kernel, ELEMENTS // (4 * weight.numel())) // len(calls)
    for number, (dense, cut) in enumerate(calls):
        places = choose_places(cut, rows, seed=number)
        yield patches(cut, places).unflatten(1, (-1, kernel)), patches(dense, places).unflatten(1, (-1, kernel))


def _close(pair: tuple[Stepper, Stepper]) -> None:
    for stepper in pair:
        stepper.close()


def _tensor(model: nn.Module, name: str) -> Tensor:
    """Return a parameter or buffer by its name."""
    path, _, attribute = name.rpartition(".")
    tensor: Tensor = getattr(model.get_submodule(path), attribute)
    return tensor
