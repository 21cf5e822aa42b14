"""Memory of pruning: examples are processed in pieces, and as many at a time as the memory limits allow.

A profile of one example, computed once, holds the bytes of all live tensors at every event of the forward pass
(:mod:`.lockstep`). Early layers of an image network have large feature maps with many rows, so few examples are enough
for them. Late layers have small feature maps, and process all examples in the same memory. A piece that is dropped has
to start again from the network's input, so pieces join later layers, and are dropped only if few would be left.
"""

from __future__ import annotations

import ctypes
import gc
import math
import sys
import weakref
from dataclasses import dataclass
from itertools import accumulate
from mmap import PAGESIZE
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from depl0.errors import InputError
from depl0.gated import GatedModel
from depl0.host.calls import Call
from depl0.host.copies import address_of
from depl0.host.inputs import ExampleInputs
from depl0.host.network import evaluation_mode
from depl0.search.recovery.lockstep import Event, Sum, layer_events

ACTIVATIONS = 600_000_000
"""Limit in bytes for the activations of both networks during a refit; the bytes of the weights, if larger."""
GRAMS = 300_000_000
"""Limit in bytes for Gram matrices during scoring, unless one group needs more; the bytes of the weights, if larger."""
TRAINING = 1_100_000_000
"""Largest number of bytes that autograd saves for one step of a recovery."""
GROWTH = 300_000_000
"""Bytes by which the process may grow before freed memory is returned."""
MODELS, TRAINED = 2, 4
"""Copies of the weights besides the given network: the refitted ones, and those of the network that runs beside it. In
training also gradients, the best weights, and the state of AdamW."""
BATCH_SIZE = 64
"""Largest batch of a recovery: twice as many steps of half the size recover more in the same time."""
PIECES = 4
"""A piece of examples uses at most a quarter of the limit for activations."""
ENOUGH = 128
"""Examples that a layer should have, even if some of them do not fit at later layers (as in U-Nets)."""


@final
@dataclass(frozen=True)
class Profile:
    """The memory of one example in one forward pass, in bytes."""

    events: tuple[tuple[type, str], ...]
    """Kind and weight of every event."""
    alive: tuple[int, ...]
    """Bytes of the live tensors at every event."""
    peak: int
    """Largest number of bytes of live tensors at any call."""

    def piece(self, limit: int = ACTIVATIONS) -> int:
        """Return the number of examples to run at a time."""
        return max(1, limit // (PIECES * max(self.peak, 1)))

    def held(self, pieces: list[ExampleInputs], limit: int = ACTIVATIONS) -> list[int]:
        """Return for every event the number of pieces that wait at it; pieces start again only for twice as many."""
        enough = math.ceil(ENOUGH / pieces[0].batch())
        room = limit - self.peak * pieces[0].batch()
        examples = list(accumulate(piece.batch() for piece in pieces))
        held, fits = [], len(pieces)
        for alive in reversed(self.alive):
            own = max(1, sum(2 * alive * count <= room for count in examples))
            fits = min(fits, own)
            held.append(few if (few := min(own, enough)) > 2 * fits else fits)
        return held[::-1]


@torch.no_grad()
def profile(network: nn.Module, inputs: ExampleInputs, added: list[str]) -> Profile:
    """Run one example and return its profile; events include the sums of the layers in ``added``."""
    example = inputs.first()
    alive: list[weakref.ref[Tensor]] = []
    events: list[tuple[type, str]] = []
    at_events: list[int] = []
    waiting: dict[str, Event] = {}
    peak = 0

    def bytes_alive() -> int:
        alive[:] = [reference for reference in alive if reference() is not None]
        storages = {
            storage._cdata: storage.nbytes()
            for reference in alive
            if (tensor := reference()) is not None and (storage := _storage(tensor)) is not None
        }
        return sum(storages.values())

    def note(event: Event) -> None:
        if event.weight in added:  # a refit needs the inputs of a layer until its output is added
            waiting[event.weight] = event
        events.append((type(event), event.weight))
        at_events.append(bytes_alive())
        if isinstance(event, Sum):
            del waiting[event.weight]

    recorder = layer_events(network, note, added)
    watched = recorder.after

    def watch(call: Call, result: Any) -> None:
        nonlocal peak
        alive.extend(weakref.ref(leaf) for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor))
        peak = max(peak, bytes_alive())
        if watched is not None:
            watched(call, result)

    recorder.after = watch
    with evaluation_mode(network), recorder:
        example.run(network)
    count = example.batch()
    return Profile(tuple(events), tuple(held // count for held in at_events), peak // count)


def _storage(tensor: Tensor) -> Any:
    """Return a tensor's storage; None for sparse tensors and others without one."""
    return tensor.untyped_storage() if tensor.layout == torch.strided else None


def pieces(inputs: list[ExampleInputs], size: int) -> list[ExampleInputs]:
    """Cut batches into pieces of at most ``size`` examples."""
    return [batch.part(start, start + size) for batch in inputs for start in range(0, batch.batch(), size)]


def training_batch(network: nn.Module, inputs: ExampleInputs, limit: int = TRAINING) -> int:
    """Return the number of examples that can be trained on at a time."""
    return max(1, limit // max(saved_bytes(network, inputs), 1))


def saved_bytes(network: nn.Module, inputs: ExampleInputs) -> int:
    """Run one example and return the bytes that autograd saves for it."""
    saved: dict[int, int] = {}
    parameters = {address_of(parameter) for parameter in network.parameters()}

    def count(tensor: Tensor) -> Tensor:
        storage = _storage(tensor)
        if storage is not None and storage._cdata not in parameters:
            saved[storage._cdata] = storage.nbytes()
            kept.append(tensor)  # so that its memory is not reused by another tensor
        return tensor

    kept: list[Tensor] = []
    example = inputs.first()
    with evaluation_mode(network), torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        outputs = example.run(network)
    del outputs
    return sum(saved.values()) // example.batch()


# -- checks before pruning ------------------------------------------------------------------------------------------


def available_memory(device: torch.device) -> int | None:
    """Return the bytes that can still be allocated on a device; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = []
    meminfo = Path("/proc/meminfo")
    if device.type == "cpu" and meminfo.exists():
        fields = dict(line.split(":") for line in meminfo.read_text().splitlines() if ":" in line)
        found.append(1024 * int(fields["MemAvailable"].split()[0]))
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (most := limit.read_text().strip()) != "max":
        found.append(int(most) - int(used.read_text()))
    return min(found) if found else None


def needed_memory(gated: GatedModel, inputs: list[Any], *, trained: bool) -> int:
    """Estimate the bytes that pruning allocates in addition to the inputs and the given network, from one example."""
    host, examples = gated.host, [ExampleInputs.of(batch) for batch in inputs]
    found, count = profile(host, examples[0], []), sum(example.batch() for example in examples)
    weights, piece = bytes_of(host), found.peak * min(found.piece(), examples[0].batch())
    held = max(piece, min(activations_for(host), 2 * found.peak * count))
    sizes = [16 * use.in_size**2 for use in gated.host_plan.uses]
    grams = max([*sizes, min(GRAMS, sum(sizes))], default=0)
    training = saved_bytes(host, examples[0]) if trained else 0
    copies = MODELS + (TRAINED if trained else 0)
    return copies * weights + max(held + grams, training, min(TRAINING, training * min(count, BATCH_SIZE)))


def activations_for(network: nn.Module) -> int:
    """Return the limit in bytes for activations during a refit of this network."""
    return max(ACTIVATIONS, bytes_of(network))


@final
class FreedMemory:
    """Returns freed memory to the operating system once the process has grown by :data:`GROWTH` bytes.

    Copies of a network are collected first, because recorded graphs refer to them in cycles.
    The GNU allocator has a pool for every thread and keeps what is freed in it. Without this, the threads of a refit
    (:class:`.lockstep.Stepper`) held three times as much memory as their tensors needed.
    """

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
        self._least = self._resident()

    def release(self) -> None:
        """Return freed memory if there may be much of it."""
        if self._trim is not None and self._resident() > self._least + GROWTH:
            gc.collect()
            self._trim(0)
            self._least = self._resident()

    def _resident(self) -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGESIZE if self._trim is not None else 0


def bytes_of(network: nn.Module) -> int:
    """Return the bytes of a network's parameters and buffers."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*network.parameters(), *network.buffers()))


def check_memory(needed: int, device: torch.device) -> None:
    """Raise InputError if there is not enough memory for pruning."""
    available = available_memory(device)
    if available is not None and needed > available:
        raise InputError(
            f"pruning this network needs about {needed / 1e9:.1f} GB of memory on {device}, "
            f"but only {available / 1e9:.1f} GB are available.",
            hint="pass smaller inputs (a lower resolution, shorter sequences), fewer groups, or recover=None.",
        )
