"""Comparison of the outputs of two networks: class scores by KL, values by their relative squared error.

A network may have several outputs: each has a name (its key, or its number) and its own axis of classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from depl0.errors import InputError
from depl0.host.inputs import ExampleInputs, flatten_outputs
from depl0.host.network import evaluation_mode
from depl0.search.calibration import call, examples_in, on_device
from depl0.search.recovery.distillation import SoftLoss, relative_error, soft_loss
from depl0.surgery.record import Agreement

Axis: TypeAlias = "int | Literal['auto'] | None"
ClassAxis: TypeAlias = "Axis | Sequence[Axis] | Mapping[str, Axis]"
VALUES = 16.0
"""Weight of the relative error of outputs that are values, relative to the KL of class scores."""
FEW_CLASSES = 0.2
"""Fraction of its classes that a network is expected to predict, as the effective number of classes (1 / Σ p²)."""
LEAST_PAIRS = 3
"""Smallest number of pairs of inputs with equal answers for an estimate of that number."""
HOPELESS_ERROR, HOPELESS_EQUAL = 0.9, 0.3
"""A network whose outputs differ this much from the original ones is hardly usable."""


@final
@dataclass(frozen=True)
class Comparison:
    """The axis of classes of every output, in the order of the outputs; None for values.

    Attributes:
        axes: for each floating-point output.
        guessed: True if the axes were inferred; then the relative error counts as well as the KL.
        of_tokens: True if any output holds scores of tokens, as in language models; they are compared by the KL alone.
    """

    axes: tuple[int | None, ...]
    guessed: bool = False
    of_tokens: bool = False

    @property
    def has_classes(self) -> bool:
        """Return True if any output holds class scores."""
        return any(axis is not None for axis in self.axes)

    def loss(self) -> SoftLoss:
        """Return the loss for outputs: the mean over outputs of KL, or of relative squared error."""

        def loss(outputs: Any, wanted: Any, temperature: float) -> Tensor:
            found, target = named_outputs(outputs).values(), named_outputs(wanted).values()
            losses, by_values = [], self.guessed and not self.of_tokens
            for axis, own, other in zip(self.axes, found, target, strict=True):
                error = relative_error({"": own}, {"": other})
                if axis is not None:
                    classes = soft_loss(own.float().movedim(axis, 1), other.float().movedim(axis, 1), temperature)
                    losses.append(classes + VALUES * error if by_values and error is not None else classes)
                elif error is not None:
                    losses.append(VALUES * error if self.has_classes else error)
            return torch.stack(losses).mean() if losses else torch.zeros(())

        return loss


@torch.no_grad()
def compare_by(network: nn.Module, batch: Any, class_axis: ClassAxis = "auto") -> Comparison:
    """Return the comparison for a network's outputs.

    "auto" uses axis 1 of a matrix (batch, classes), unless all its values are in [0, 1]: such probabilities are
    compared as values. It uses the last axis of (batch, tokens, scores) if the number of scores equals the number of
    rows of an embedding of the network, as in language models.

    Raises:
        InputError: an output has no such axis, or the number of outputs differs from the number of axes.
    """
    with evaluation_mode(network):
        outputs = named_outputs(call(network, batch))
    if isinstance(class_axis, Mapping):
        unknown = [name for name in class_axis if name not in outputs]
        if unknown:
            raise InputError(f"class_axis has {unknown[0]!r}, but the outputs are {', '.join(map(repr, outputs))}.")
        wanted: list[Axis] = [class_axis.get(name) for name in outputs]
    elif isinstance(class_axis, Sequence) and not isinstance(class_axis, str):
        wanted = list(class_axis)
    else:
        wanted = [class_axis] * len(outputs)
        if len(outputs) > 1 and isinstance(class_axis, int):
            wanted = [class_axis, *[None] * (len(outputs) - 1)]
    if len(wanted) != len(outputs):
        raise InputError(
            f"class_axis has {len(wanted)} entries, but the network has {len(outputs)} outputs: "
            f"{', '.join(map(repr, outputs))}.",
            hint="pass one entry for each output, or a dict by their names.",
        )
    wanted = [
        -1 if axis == "auto" and _has_scores_of_tokens(network, outputs[name]) else axis
        for axis, name in zip(wanted, outputs, strict=True)
    ]
    axes = tuple(_checked(axis, name, outputs[name]) for axis, name in zip(wanted, outputs, strict=True))
    of_tokens = any(
        axis == 2 and _has_scores_of_tokens(network, outputs[n]) for axis, n in zip(axes, outputs, strict=True)
    )
    return Comparison(axes, "auto" in wanted and any(axis is not None for axis in axes), of_tokens)


@torch.no_grad()
def scores_tokens(network: nn.Module, inputs: Any) -> bool:
    """Return True for a language model: any output scores the tokens of one of its embeddings."""
    if not any(isinstance(module, nn.Embedding) for module in network.modules()):
        return False
    try:
        with evaluation_mode(network):
            outputs = named_outputs(ExampleInputs.of(inputs).first().run(network))
    except Exception:  # the analysis explains it
        return False
    return any(_has_scores_of_tokens(network, output) for output in outputs.values())


def _has_scores_of_tokens(network: nn.Module, output: Tensor) -> bool:
    vocabularies = {module.num_embeddings for module in network.modules() if isinstance(module, nn.Embedding)}
    return output.dim() == 3 and output.shape[-1] in vocabularies


def _checked(axis: Axis, name: str, output: Tensor) -> int | None:
    if axis == "auto":
        if output.dim() != 2 or output.shape[1] < 2 or bool(((output >= 0) & (output <= 1)).all()):
            return None
        return 1
    if axis is None:
        return None
    dims = output.dim()
    if isinstance(axis, bool) or not isinstance(axis, int) or not -dims < axis < dims or axis == 0:
        raise InputError(
            f"class_axis must be an axis of output {name!r}, which has shape {tuple(output.shape)}, "
            f"got {axis!r} instead.",
            hint="1 for images and pixels, -1 for tokens, None if outputs are not class scores.",
        )
    return axis % dims


@torch.no_grad()
def measure_agreement(
    pruned: nn.Module, original: nn.Module, batches: list[Any], comparison: Comparison
) -> Agreement | None:
    """Compare the outputs of two networks on held-out inputs; None if no outputs can be compared."""
    count = sum(map(examples_in, batches))
    if not count or not comparison.axes:
        return None
    device = next((p.device for p in pruned.parameters()), torch.device("cpu"))
    sums: dict[str, Tensor] = {}
    with evaluation_mode(pruned, original):
        for batch in on_device(batches, device):
            found, wanted = named_outputs(call(pruned, batch)), named_outputs(call(original, batch))
            for axis, name in zip(comparison.axes, wanted, strict=True):
                figures = _figures(found[name], wanted[name], axis)
                sums[name] = sums.get(name, torch.zeros(3)) + examples_in(batch) * figures
    single = {
        name: Agreement(count, *(float(x) if x == x else None for x in (total / count).tolist()))  # type: ignore[arg-type]
        for name, total in sums.items()
    }
    classes = [found for found in single.values() if found.equal is not None and found.kl is not None]
    together = Agreement(
        count,
        sum(found.error for found in single.values()) / len(single),
        sum(found.equal or 0.0 for found in classes) / len(classes) if classes else None,
        sum(found.kl or 0.0 for found in classes) / len(classes) if classes else None,
    )
    return replace(together, outputs=single) if len(single) > 1 else together


def _figures(found: Tensor, wanted: Tensor, axis: int | None) -> Tensor:
    """Return relative error, fraction of equal classes and KL; the last two are NaN for values."""
    error = relative_error({"": found}, {"": wanted})
    assert error is not None, "both networks have the same outputs"
    if not bool(error.isfinite()):
        raise InputError("held-out outputs contain NaN or infinite values: look for layers that overflow on them.")
    figures = torch.tensor([float(error), torch.nan, torch.nan])
    if axis is not None:
        scores, target = found.float().movedim(axis, 1), wanted.float().movedim(axis, 1)
        figures[1] = (scores.argmax(1) == target.argmax(1)).float().mean()
        figures[2] = soft_loss(scores, target, 1.0)
    return figures


def is_hopeless(agreement: Agreement) -> bool:
    """Return True if the pruned network's outputs have hardly anything in common with the original ones."""
    outputs = [agreement] if agreement.outputs is None else list(agreement.outputs.values())
    return any(
        found.equal < HOPELESS_EQUAL if found.equal is not None else found.error > HOPELESS_ERROR for found in outputs
    )


@torch.no_grad()
def missing_classes(network: nn.Module, batches: list[Any], comparison: Comparison) -> str | None:
    """Return a warning if nearly all answers of a classifier are in few of its classes, else None.

    A pruned network is only fitted to its data: photographs of ten classes do not preserve the other 990. Of such
    photographs some are mistaken for other classes, so distinct answers say little. How often two inputs get the same
    answer says more: 1 / Σ p² classes of equal frequency p would do so as often.
    """
    if comparison.axes != (1,):
        return None
    with evaluation_mode(network):
        scores = [next(iter(named_outputs(call(network, batch)).values())) for batch in batches]
    if scores[0].dim() > 2:
        return None
    classes, found = scores[0].shape[1], torch.cat([each.argmax(1).flatten() for each in scores])
    counts = torch.bincount(found, minlength=classes).double()
    equal_pairs, pairs = float((counts * (counts - 1)).sum() / 2), len(found) * (len(found) - 1) / 2
    if equal_pairs < LEAST_PAIRS or pairs / equal_pairs >= FEW_CLASSES * classes:
        return None
    return (
        f"the network's answers to {len(found)} held-out inputs are in about {pairs / equal_pairs:.0f} of its "
        f"{classes} classes: the pruned network is fitted to these, and accuracy on the others is neither kept nor "
        "measured. Pass data of all classes."
    )


def named_outputs(outputs: Any) -> dict[str, Tensor]:
    """Return the floating-point tensors of a network's outputs, by name: keys and positions, joined by dots.

    >>> list(named_outputs({"scores": torch.zeros(1), "boxes": [torch.zeros(1), torch.zeros(1)]}))
    ['scores', 'boxes.0', 'boxes.1']
    """
    leaves, structure = flatten_outputs(outputs)
    paths = [path for path, _ in pytree.tree_leaves_with_path(pytree.tree_unflatten(range(len(leaves)), structure))]
    return {
        ".".join(map(_name, path)) or "output": leaf
        for path, leaf in zip(paths, leaves, strict=True)
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
    }


def _name(entry: Any) -> str:
    """Return a key, or a position in a list, which begins with the name of its type."""
    return str(entry.key) if isinstance(entry, pytree.MappingKey) else str(entry.idx - 1)
