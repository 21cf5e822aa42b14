"""The calibration data: reading them, holding examples out, and mixing and augmenting the others in a recovery.

A batch holds the network's inputs: a tensor, a tuple of arguments or a dict of keyword arguments. With a loss it is a
pair (inputs, targets), as from a data loader. Such pairs are accepted without a loss too: a batch that does not match
the network's example, but whose first entry does, is a pair, and its targets are not used. Batches are moved to the
network's device, and the network is run on them before they are used.

Data are often sorted by class. A loader that iterates over its data set in order is read in a fixed random order. From
a long list of batches, examples are taken evenly. From a stream, the first batches are read.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from depl0._util.process import read_as_user
from depl0._util.random import isolated_random
from depl0._util.user_code import call_of_user
from depl0.errors import InputError
from depl0.gated import GatedModel
from depl0.host.copies import run_host
from depl0.host.inputs import ExampleInputs, as_tensors, output_tensors
from depl0.host.network import annotate_forward_errors, evaluation_mode
from depl0.search.recovery.memory import BATCH_SIZE

Loss: TypeAlias = Callable[[Any, Any], Tensor]
"""(outputs, targets) -> the mean loss of a batch."""

Batches: TypeAlias = Iterable[tuple[Any, Any]]
"""(inputs, targets)."""

MOST_BATCHES = 32
"""Largest number of batches that are read at a time."""
MOST_INPUTS = 1024
"""Number of examples for the least-squares refit."""
HELD_OUT = 8
"""Every eighth example is held out."""
INVARIANT = 0.8
"""Fraction of its answers that a network must keep for images that are flipped and shifted."""
FIRST = "on the first batch, before anything was done"

Augment: TypeAlias = "bool | Callable[[Any], Any]"


@dataclass(frozen=True)
class Calibration:
    """Batches for the three steps of a search that use calibration data. They may be the same batches.

    Attributes:
        scores: for the initial scores of the gates.
        statistics: for re-estimating batch-norm statistics when the gates are frozen.
        judge: for deciding by the loss whether the new statistics are better.
        loss: the loss of the task; None: targets are not used, and no decision is made by a loss.
        network: the network of the batches; without a loss, its example distinguishes inputs from pairs. None: the
            batches are not checked.
    """

    scores: Iterable[Any]
    statistics: Iterable[Any]
    judge: Iterable[Any]
    loss: Loss | None = None
    network: GatedModel | None = None

    @classmethod
    def of(
        cls,
        batches: Calibration | Iterable[Any] | None,
        loss: Loss | None,
        network: GatedModel | None = None,
        argument: str = "calibrate",
    ) -> Calibration | None:
        """Create a calibration that uses one source of batches for all steps."""
        if batches is None:
            return None
        if isinstance(batches, Calibration):
            return replace(batches, network=network)
        if not isinstance(batches, Iterable) or isinstance(batches, (Tensor, dict, str)):
            raise InputError(
                f"{argument} must give batches, got {type(batches).__name__} instead.",
                hint="pass a data loader or a list of batches.",
            )
        if isinstance(batches, DataLoader):
            batches = independent_loader(batches)
        if not _has_length(batches):
            batches = _first(read_as_user(batches))  # it may not be readable a second time
        if not len(batches):  # type: ignore[arg-type]
            raise _no_batches()
        result = cls(batches, batches, batches, loss, network)
        if isinstance(batches, list):
            next(result.pairs(batches))
        return result

    def inputs(self, images: int = MOST_INPUTS) -> list[Any]:
        """Return only the inputs of whole batches until they hold this number of examples.

        If a list has more, the examples are taken evenly from all of its batches.
        """
        found: list[Any] = []
        count, batches = 0, self.scores
        if isinstance(batches, list):
            batches = spread_examples(batches, images)
        for inputs, _ in self.pairs(batches, images):
            found.append(tuple(inputs) if isinstance(inputs, list) else inputs)
            count += examples_in(inputs)
            if count >= images:
                break
        return found

    def pairs(self, batches: Iterable[Any], most: int = MOST_BATCHES) -> Iterator[tuple[Any, Any]]:
        """Yield the first batches as (inputs, targets); targets are None without a loss."""
        tried: set[Any] = set()
        number = 0
        for number, batch in enumerate(islice(read_as_user(batches), most), 1):
            if self.loss is None:
                inputs, targets = as_tensors(_without_targets(batch, self.network)), None
            else:
                inputs, targets = pair_of(batch)
                inputs = as_tensors(inputs)
            if self.network is not None:
                inputs, targets = on_device((inputs, targets), self.network.device)
                _check(self.network.host, inputs, f"batch {number} of the calibration data", tried)
            yield inputs, targets
        if not number:
            raise _no_batches()


def pair_of(batch: Any, when: str = "with a loss") -> tuple[Any, Any]:
    """Return inputs and targets of a batch; raise an error if it is not a pair."""
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    name = type(batch).__name__
    found = f"a {name} of {len(batch)} entries" if isinstance(batch, (tuple, list)) else name
    raise InputError(
        f"{when}, a batch must be a pair (inputs, targets), got {found} instead.",
        hint="group its entries, for example [((a, b), y) for a, b, y in loader]; inputs alone need no loss or steps.",
    )


def _check(host: nn.Module, inputs: Any, name: str, tried: set[Any]) -> None:
    """Raise an error for a batch that contains NaN or on which the network fails."""
    example = ExampleInputs.of(tuple(inputs) if isinstance(inputs, list) else inputs, name)
    if any(bool(tensor.isnan().any()) for tensor in example.tensors() if tensor.is_floating_point()):
        raise InputError(f"{name} holds NaN.", hint="look at how the data are made.")
    kind = tuple((tensor.dtype, tensor.shape[1:]) for tensor in example.tensors())
    if kind not in tried:
        tried.add(kind)
        with annotate_forward_errors(host, example, name):
            run_host(host, example.first())


def _has_length(batches: Any) -> bool:
    try:
        return len(batches) >= 0
    except TypeError:
        return False


def _no_batches() -> InputError:
    return InputError(
        "the calibration data hold no batches.", hint="pass a data loader or a list that can be read several times."
    )


def _without_targets(batch: Any, network: GatedModel | None) -> Any:
    """Return the inputs of a batch that may be a pair (inputs, targets)."""
    if network is None or not isinstance(batch, (tuple, list)) or len(batch) < 2:
        return batch
    example = network.example
    wanted = _form(example.kwargs or example.args)
    return batch[0] if _form(batch) != wanted and _form(batch[0]) == wanted else batch


def _form(inputs: Any) -> Any:
    """Return a key for the way a network is called; the names of keyword arguments may differ."""
    if isinstance(inputs, Mapping):
        return Mapping
    return pytree.tree_structure(tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,))


def independent_loader(loader: DataLoader[Any]) -> DataLoader[Any]:
    """Return a copy of a loader that can be iterated over while another iteration of the loader is active.

    Data sets are often sorted by class, and only some batches are read. If the loader reads a long data set in order,
    the copy reads it in a fixed random order.
    """
    dataset: Any = loader.dataset
    fields: dict[str, Any] = {"persistent_workers": False, "_iterator": None}
    if type(loader.sampler) is SequentialSampler and loader.batch_size is not None and len(dataset) > MOST_INPUTS:
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist()
        fields |= {"sampler": order, "batch_sampler": BatchSampler(order, loader.batch_size, loader.drop_last)}
    copied = copy.copy(loader)
    vars(copied).update(fields)  # a loader refuses to be changed by assignment
    return copied


def spread_examples(batches: list[Any], wanted: int) -> list[Any]:
    """Return this number of examples from batches all over a list; all batches if they hold no more.

    >>> [part.tolist() for part in spread_examples([torch.arange(4), torch.arange(4, 8), torch.arange(8, 12)], 6)]
    [[0, 2], [4, 6], [8, 10]]
    """
    counts = [examples_in(batch) for batch in batches]
    if sum(counts) <= wanted:
        return batches
    number = min(len(batches), max(MOST_BATCHES, math.ceil(wanted * len(batches) / sum(counts))), wanted)
    places = torch.linspace(0, len(batches) - 1, number).round().long().tolist()
    each = math.ceil(wanted / number)
    return [
        pick(batches[place], torch.arange(each) * counts[place] // each) if counts[place] > each else batches[place]
        for place in places
    ]


def _first(batches: Iterable[Any]) -> list[Any]:
    """Return the first batches of a stream: at least :data:`MOST_BATCHES`, with :data:`MOST_INPUTS` examples."""
    found: list[Any] = []
    count = 0
    for batch in batches:
        found.append(batch)
        count += examples_in(batch)
        if len(found) >= MOST_BATCHES and count >= MOST_INPUTS:
            break
    return found


def on_device(value: Any, device: torch.device) -> Any:
    """Return a batch of any structure with its tensors on a device."""
    return pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, value)


def examples_in(batch: Any) -> int:
    """Return the number of examples in a batch of any structure: the length of its first tensor or array."""
    leaves = (leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, (Tensor, np.ndarray)))
    return next((len(leaf) for leaf in leaves if leaf.ndim > 0), 1)


def call(model: nn.Module, inputs: Any) -> Any:
    """Call a network with a batch of inputs."""
    return ExampleInputs.of(tuple(inputs) if isinstance(inputs, list) else inputs).run(model)


def split(batch: Any, size: int) -> Iterator[Any]:
    """Split a batch of any structure into smaller ones of ``size`` examples."""
    for places in torch.arange(examples_in(batch)).split(size):
        yield pick(batch, places)


def pick(batch: Any, rows: Tensor) -> Any:
    """Return some examples of a batch of any structure, by their numbers or by a mask."""
    count = examples_in(batch)

    def picked(leaf: Any) -> Any:
        if not isinstance(leaf, (Tensor, np.ndarray)) or not leaf.ndim or len(leaf) != count:
            return leaf
        return leaf[rows.numpy()] if isinstance(leaf, np.ndarray) else leaf[rows.to(leaf.device)]

    return pytree.tree_map(picked, batch)


# -- batches of a recovery -------------------------------------------------------------------------------------------


def hold_out(inputs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Split batches into training and held-out inputs: every eighth example, or every eighth batch if they are small.

    >>> fit, held_out = hold_out([torch.arange(16)])
    >>> held_out
    [tensor([0, 8])]
    """
    if inputs and all(examples_in(batch) >= HELD_OUT for batch in inputs):
        taken = [torch.arange(examples_in(batch)) % HELD_OUT == 0 for batch in inputs]
        return (
            [pick(batch, ~mask) for batch, mask in zip(inputs, taken, strict=True)],
            [pick(batch, mask) for batch, mask in zip(inputs, taken, strict=True)],
        )
    if len(inputs) < 2:
        return inputs, []
    return [batch for n, batch in enumerate(inputs) if n % HELD_OUT != 1], inputs[1::HELD_OUT]


def endless(inputs: Iterable[Any], device: torch.device, most: int = BATCH_SIZE) -> Iterator[Any]:
    """Yield batches in an endless loop; those of a list are shuffled, and mixed if each is one tensor.

    Mixed batches have at most ``most`` examples.
    """
    while not isinstance(inputs, list):
        for batch in read_as_user(inputs):
            yield on_device(batch, device)
    kept: list[Any] = on_device(inputs, device)
    tensors = [batch for batch in kept if isinstance(batch, Tensor)]
    if len(tensors) == len(kept) and len({batch.shape[1:] for batch in tensors}) == 1:
        lengths = torch.tensor([len(batch) for batch in tensors])
        size, starts = min(most, int(lengths.max())), lengths.cumsum(0) - lengths
        batch_of = torch.repeat_interleave(torch.arange(len(tensors)), lengths)
        while True:
            order = torch.randperm(len(batch_of))
            for start in range(0, max(len(order) - size, 0) + 1, size):
                chosen = order[start : start + size]
                places = (chosen - starts[batch_of[chosen]]).tolist()
                yield torch.stack([tensors[b][i] for b, i in zip(batch_of[chosen].tolist(), places, strict=True)])
    while True:
        for number in torch.randperm(len(kept)).tolist():
            yield kept[number]


def check_augment(augment: Augment, batch: Any) -> None:
    """Raise InputError if flips and shifts are requested for inputs that are not images."""
    if augment is True and not is_image_batch(batch):
        raise InputError(
            "augment must be False, or a function, if inputs are not batches of images (batch, channels, h, w).",
            hint="pass a function that returns a changed batch of inputs.",
        )
    with isolated_random():
        ExampleInputs.of(augmented(batch, augment, FIRST), "the result of augment")


def is_image_batch(batch: Any) -> bool:
    """Return True for one floating-point tensor (batch, channels, height, width)."""
    return isinstance(batch, Tensor) and batch.dim() == 4 and batch.is_floating_point()


def augmented(batch: Any, augment: Augment, when: str) -> Any:
    """Return a batch after augmentation."""
    if callable(augment):
        return call_of_user("augment", when, augment, batch)
    return flip_and_shift(batch) if augment else batch


@torch.no_grad()
def is_invariant(network: nn.Module, images: Tensor) -> bool:
    """Return True if flips and shifts hardly change a classifier's answers; those of digits, for example, do."""
    with evaluation_mode(network), isolated_random(0):
        outputs = [output_tensors(call(network, part)) for part in (images, flip_and_shift(images))]
    answers, others = (next(t for t in each if t.is_floating_point()).argmax(1) for each in outputs)
    return float((answers == others).double().mean()) >= INVARIANT


def flip_and_shift(images: Tensor) -> Tensor:
    """Flip half of the images, and shift each by up to an eighth of its size, with zero padding."""
    height, width = images.shape[-2:]
    up, left = height // 8, width // 8
    flips = torch.rand(len(images)) < 0.5
    images = torch.where(flips.view(-1, 1, 1, 1).to(images.device), images.flip(-1), images)
    padded = functional.pad(images, (left, left, up, up))
    rows, columns = torch.randint(0, 2 * up + 1, (len(images),)), torch.randint(0, 2 * left + 1, (len(images),))
    shifted = [
        image[:, row : row + height, column : column + width]
        for image, row, column in zip(padded, rows.tolist(), columns.tolist(), strict=True)
    ]
    return torch.stack(shifted)
