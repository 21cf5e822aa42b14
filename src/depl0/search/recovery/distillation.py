"""Distillation of the original network into the pruned one.

    loss = (1 − w)·task + w·T²·KL(softmax(dense/T) ‖ softmax(pruned/T)) + b·error of block outputs

(Hinton et al., 2015, arXiv:1503.02531.) All terms are means over all positions (batch, pixels, tokens), like the task's
loss. A block is a module that computes with its own layers: a residual block, an inverted bottleneck, a transformer
block. Its output is compared with the original one; if it lost channels, on the channels that were kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from depl0.gated import GatedModel
from depl0.host.network import evaluation_mode
from depl0.search.calibration import call
from depl0.surgery.record import record_of

WEIGHT, TEMPERATURE = 0.9, 4.0
BLOCKS = 80.0
"""Relative errors are small compared to T² times a divergence, and more informative than a few class scores."""

SoftLoss: TypeAlias = Callable[[Any, Any, float], Tensor]
"""(outputs, the original network's outputs, temperature) -> loss."""

KeptChannels: TypeAlias = "Mapping[str, tuple[int, Tensor]]"
"""By the name of a block: the axis of channels in its output, and the positions of the kept channels."""

_SEQUENCES = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@final
class DistillationLoss:
    """The loss of a network that is distilled from the original one.

    ::

        distillation = DistillationLoss(dense)
        with distillation.watch(network) as blocks:
            outputs = network(inputs)
        loss = distillation(criterion(outputs, targets), outputs, inputs, blocks)

    Args:
        dense: the trained network; put into evaluation mode, run once per step and never trained. Pass a copy.
        weight: w, the fraction of the loss that comes from the original network's predictions, in (0, 1].
        temperature: T, which softens the predictions.
        blocks: b, the weight of the error of block outputs; with 0 they are not compared.
        soft: the loss for predictions, ``soft(outputs, dense_outputs, temperature)``; by default :func:`soft_loss`,
            for class scores.
        kept: the kept channels of those blocks whose output lost some (:func:`kept_channels`); without it, such blocks
            are not compared.
    """

    def __init__(
        self,
        dense: nn.Module,
        *,
        weight: float = WEIGHT,
        temperature: float = TEMPERATURE,
        blocks: float = BLOCKS,
        soft: SoftLoss | None = None,
        kept: KeptChannels | None = None,
    ) -> None:
        self._dense = dense.eval().requires_grad_(False)
        self._weight, self._temperature, self._blocks = weight, temperature, blocks
        self._soft = soft or soft_loss
        self._names = block_names(dense) if blocks > 0 else ()
        self._kept = kept or {}

    def watch(self, network: nn.Module) -> AbstractContextManager[dict[str, Tensor]]:
        """Return a context manager for the network's forward pass that yields the outputs of its blocks."""
        return block_outputs(network.host if isinstance(network, GatedModel) else network, self._names)

    def __call__(self, task: Tensor, outputs: Any, inputs: Any, blocks: dict[str, Tensor]) -> Tensor:
        """Return the loss of a batch.

        Args:
            task: the task's own loss.
            outputs: the network's outputs for ``inputs``.
            inputs: the network's inputs.
            blocks: the outputs of the blocks, from :meth:`watch`.
        """
        with torch.no_grad(), block_outputs(self._dense, self._names) as wanted:
            answers = call(self._dense, inputs)
        soft = self._soft(outputs, answers, self._temperature)
        total = (1 - self._weight) * task + self._weight * soft
        for name, (axis, positions) in self._kept.items():
            if name in wanted:
                wanted[name] = wanted[name].index_select(axis, positions.to(wanted[name].device))
        error = relative_error(blocks, wanted)
        return total if error is None else total + self._blocks * error


def soft_loss(scores: Tensor, wanted: Tensor, temperature: float) -> Tensor:
    """Return T²·KL(softmax(wanted/T) ‖ softmax(scores/T)), the mean over batch and positions; classes are axis 1.

    >>> scores = torch.tensor([[1.0, 0.0]])
    >>> float(soft_loss(scores, scores + 3, temperature=2.0))
    0.0
    """
    found = torch.log_softmax(scores / temperature, dim=1)
    target = torch.log_softmax(wanted / temperature, dim=1)
    divergence = functional.kl_div(found, target, reduction="batchmean", log_target=True)
    return temperature**2 * divergence / scores.shape[2:].numel()


# -- blocks ---------------------------------------------------------------------------------------------------------


def block_names(network: nn.Module) -> tuple[str, ...]:
    """List the blocks of a network by name. Plain sequences are excluded: their last entry has the same output.

    >>> block_names(nn.Sequential(nn.Linear(2, 2), nn.TransformerEncoderLayer(2, 1)))[0]
    '1'
    """
    return tuple(
        name
        for name, module in network.named_modules()
        if name and not isinstance(module, _SEQUENCES) and next(module.children(), None) is not None
    )


@contextmanager
def block_outputs(network: nn.Module, names: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """Record the outputs of modules while the context is active.

    Outputs that are not one tensor, or that occur twice, are omitted, and so are modules that were removed.
    """
    outputs: dict[str, Tensor | None] = {}
    found: dict[str, Tensor] = {}

    def keep(name: str, _: nn.Module, __: Any, output: Any) -> None:
        outputs[name] = output if isinstance(output, Tensor) and name not in outputs else None

    modules = dict(network.named_modules())
    handles = [modules[name].register_forward_hook(partial(keep, name)) for name in names if name in modules]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
        found.update({name: value for name, value in outputs.items() if value is not None})


@torch.no_grad()
def kept_channels(gated: GatedModel, pruned: nn.Module, inputs: Any) -> dict[str, tuple[int, Tensor]]:
    """Return the kept channels of the blocks of a pruned network whose outputs lost some.

    They are those of the last tensor of the block that was cut from the same size to the same size. This choice is
    verified, because the gated model still has all channels and computes the same outputs.
    """
    record = record_of(pruned)
    if record is None:
        return {}
    names = block_names(gated.host)
    with evaluation_mode(gated, pruned):
        with block_outputs(gated.host, names) as whole:
            call(gated, inputs)
        with block_outputs(pruned, names) as cut:
            call(pruned, inputs)
    found: dict[str, tuple[int, Tensor]] = {}
    for name, own in cut.items():
        changed = [axis for axis in range(own.dim()) if own.shape[axis] != whole[name].shape[axis]]
        if own.dim() != whole[name].dim() or len(changed) != 1:
            continue
        (axis,) = changed
        for (tensor, along), positions in record.positions.items():
            same = record.dense_shapes.get(tensor, ())[along : along + 1] == (whole[name].shape[axis],)
            if not (tensor.startswith(f"{name}.") and same and len(positions) == own.shape[axis]):
                continue
            if torch.allclose(whole[name].index_select(axis, positions.to(own.device)), own, rtol=1e-3, atol=1e-4):
                found[name] = (axis, positions)
    return found


def relative_error(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> Tensor | None:
    """Return the mean of the relative squared errors of all blocks of the same shape; None if there are none."""
    errors = []
    for name, target in wanted.items():
        own = found.get(name)
        if own is None or own.shape != target.shape or not own.is_floating_point():
            continue  # its channels are gated and cannot be compared
        target = target.float()
        errors.append((own.float() - target).square().mean() / target.square().mean().clamp_min(1e-12))
    return torch.stack(errors).mean() if errors else None
