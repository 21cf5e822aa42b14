"""Label-free recovery: a compact network learns from what the dense one computes for the same inputs.

    loss = T²·KL(softmax(dense/T) ‖ softmax(compact/T)) + b·relative squared error of block outputs

with T = 4 and b = 80 (:mod:`.distillation`), all means over positions. Outputs that are not class scores are compared
by their relative squared error instead, with b = 5. SGD with Nesterov momentum, a warm-up, then half a cosine;
gradients are clipped, because right after a cut they are long. Inputs that are held back decide when it is over, which
weights stay, and whether the rate is too high for this network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from depl0._util.defaults import call_as_user, read_as_user
from depl0._util.progress import tell
from depl0._util.random import isolated_random
from depl0.errors import InputError
from depl0.host.inputs import output_tensors
from depl0.host.network import evaluation_mode
from depl0.search.calibration import call, examples_in, on_device
from depl0.search.recovery.distillation import BLOCKS, DistillationLoss, SoftLoss, relative_error, soft_loss
from depl0.surgery.record import Agreement

STEPS, PATIENCE, CHECK_EVERY = 600, 200, 20
"""at most; without improvement; between two looks at the inputs held back"""
TRIAL, DIVERGED, LOWER = 60, 2.0, 0.1
"""after so many steps a loss above so many times that of the cut says that the rate is too high; what it is multiplied
by then. In the first steps it rises a little with every rate that is worth having."""
BATCH_SIZE = 64
"""at most, where examples can be mixed anew: twice as many steps of half the size recover more in the same time"""
VALUE_BLOCKS = 5.0
"""weight of block outputs beside outputs that are values, whose error is a relative one too"""
LR, CLIP_NORM = 0.01, 5.0
MOMENTUM, WEIGHT_DECAY = 0.9, 1e-4
WARMUP_STEPS, WARMUP_SHARE = 20, 0.2
"""Right after a cut was compensated for the gradient is long, and a full first step would undo the fit."""
HELD_BACK = 8
"""every eighth example"""
FEW = 8
"""examples in a batch, below which its own statistics say little"""
NOTHING_LOST = 1e-6

ClassAxis: TypeAlias = "int | Literal['auto'] | None"
Augment: TypeAlias = "bool | Callable[[Any], Any]"


@final
@dataclass(frozen=True)
class Recovery:
    """What a recovery did."""

    steps: int
    """that were taken; the best weights may be those of an earlier one"""
    before: float
    """loss on the inputs held back, at the cut"""
    after: float
    interrupted: bool = False
    """by Ctrl-C"""


def recover_from_answers(
    compact: nn.Module,
    dense: nn.Module,
    inputs: Iterable[Any],
    held_back: list[Any],
    *,
    steps: int = STEPS,
    patience: int | None = PATIENCE,
    lr: float = LR,
    soft: SoftLoss | None = None,
    blocks: float = BLOCKS,
    augment: Augment = False,
    fixed: Collection[str] | None = None,
) -> Recovery:
    """Train a compact network on the dense network's answers, in place; it is left in evaluation mode.

    The weights that are best on ``held_back`` stay, those of the cut among them. After KeyboardInterrupt (Ctrl-C) they
    are the best so far, and the exception is not raised again. Parameters that need no gradient stay as they are.
    Torch's random state is left as it was.

    Args:
        compact: the network.
        dense: its teacher. Pass a copy: it is put into evaluation mode.
        inputs: batches to train on, from the beginning again as often as needed; those of a list are shuffled.
        held_back: batches to judge by; empty: the first of ``inputs``.
        steps: the number of steps, at most.
        patience: stop after so many steps without improvement; None: take all steps.
        lr: the highest learning rate; lowered tenfold where the loss doubles.
        soft: how outputs are compared (:class:`.DistillationLoss`); None: as :func:`output_loss` chooses.
        blocks: the weight of the error of block outputs.
        augment: True: random flips and shifts of images; or a function of a batch of inputs.
        fixed: modules that stay in evaluation mode, all others train; None: only batch norms train.
    """
    parameters = [p for p in compact.parameters() if p.requires_grad and p.is_floating_point()]
    if not parameters:
        return Recovery(0, 0.0, 0.0)
    device = parameters[0].device
    held_back = on_device(held_back or list(islice(inputs, 1)), device)
    soft = soft or output_loss(class_axis_of(dense, held_back[0]))
    distillation = DistillationLoss(dense, weight=1.0, soft=soft, blocks=blocks)
    sgd = torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY)
    trained = _training_modules(compact, fixed, _smallest(inputs))
    with isolated_random(0):
        first = best = _loss(compact, distillation, held_back)
        weights, best_step, done, tried = state_copy(compact), 0, 0, 0
        interrupted = False
        try:
            batches = _endless(inputs, device)
            while done < steps and first > NOTHING_LOST and (patience is None or done - best_step < patience):
                set_rate(sgd, lr, done, steps)
                _set_modes(compact, trained)
                batch = _augmented(next(batches), augment)
                learned = _distil(compact, distillation, batch)
                if not learned.requires_grad:
                    break  # neither outputs nor blocks can be compared: numbers of classes, say
                learned.backward()
                nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
                sgd.step()
                sgd.zero_grad()
                done += 1
                if done % CHECK_EVERY == 0 or done == steps:
                    loss = _loss(compact, distillation, held_back)
                    if loss < best:
                        best, best_step, weights = loss, done, state_copy(compact)
                    elif not loss <= DIVERGED * first and done - tried >= TRIAL:
                        compact.load_state_dict(weights)
                        sgd.state.clear()
                        lr, tried = LOWER * lr, done
                tell(done, steps)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            compact.load_state_dict(weights)
            compact.eval()
    return Recovery(done, first, best, interrupted)


def set_rate(optimizer: torch.optim.Optimizer, lr: float, step: int, steps: int) -> None:
    """Set the learning rate of a step: a warm-up, then half a cosine to 0."""
    warmup = min(WARMUP_STEPS, max(1, round(WARMUP_SHARE * steps)))
    curve = 0.5 * (1 + math.cos(math.pi * step / steps))
    for group in optimizer.param_groups:
        group["lr"] = lr * curve * min(1.0, (step + 1) / warmup)


def _distil(network: nn.Module, distillation: DistillationLoss, batch: Any) -> Tensor:
    with distillation.watch(network) as blocks:
        outputs = call(network, batch)
    return distillation(torch.zeros((), device=next(network.parameters()).device), outputs, batch, blocks)


@torch.no_grad()
def _loss(network: nn.Module, distillation: DistillationLoss, batches: list[Any]) -> float:
    with evaluation_mode(network):
        losses = [float(_distil(network, distillation, batch)) * examples_in(batch) for batch in batches]
    return sum(losses) / sum(map(examples_in, batches))


def state_copy(network: nn.Module) -> dict[str, Any]:
    """Return a copy of a network's state dict."""
    return {name: v.detach().clone() if isinstance(v, Tensor) else v for name, v in network.state_dict().items()}


def _training_modules(compact: nn.Module, fixed: Collection[str] | None, examples: int) -> list[nn.Module]:
    """Return the modules that are in training mode; norms only where batches are large enough for statistics.

    Recurrent layers are among them because some devices cannot differentiate them in evaluation mode.
    """
    found = []
    for name, module in compact.named_modules():
        is_norm = isinstance(module, nn.modules.batchnorm._NormBase)
        learns = all(p.requires_grad for p in module.parameters(recurse=False))
        by_default = is_norm or isinstance(module, nn.RNNBase)
        if (by_default if fixed is None else name not in fixed) and not (is_norm and (examples < FEW or not learns)):
            found.append(module)
    return found


def _set_modes(compact: nn.Module, trained: list[nn.Module]) -> None:
    compact.eval()
    for module in trained:
        module.training = True


# -- outputs ---------------------------------------------------------------------------------------------------------


def output_loss(class_axis: int | None) -> SoftLoss:
    """Return how outputs are compared: KL along the axis of classes, or relative squared error where there is none."""

    def loss(outputs: Any, wanted: Any, temperature: float) -> Tensor:
        found, target = _floating(outputs), _floating(wanted)
        if class_axis is not None:
            first, second = (tensors[0].float().movedim(class_axis, 1) for tensors in (found, target))
            return soft_loss(first, second, temperature)
        error = relative_error(_numbered(found), _numbered(target))
        return torch.zeros(()) if error is None else error

    return loss


@torch.no_grad()
def class_axis_of(dense: nn.Module, batch: Any) -> int | None:
    """Return 1 where the network gives one matrix (batch, classes) of scores, else None.

    Values in [0, 1] are no scores but probabilities, which are compared as they are.
    """
    with evaluation_mode(dense):
        tensors = _floating(call(dense, batch))
    if len(tensors) != 1 or tensors[0].dim() != 2 or tensors[0].shape[1] < 2:
        return None
    is_share = bool(((tensors[0] >= 0) & (tensors[0] <= 1)).all())
    return None if is_share else 1


def check_class_axis(dense: nn.Module, batch: Any, class_axis: ClassAxis) -> int | None:
    """Return the axis of classes, looked for where it is "auto".

    Raises:
        InputError: the outputs have no such axis.
    """
    if class_axis == "auto":
        return class_axis_of(dense, batch)
    if class_axis is None:
        return None
    with torch.no_grad(), evaluation_mode(dense):
        tensors = _floating(call(dense, batch))
    axes = tensors[0].dim() if tensors else 0
    if isinstance(class_axis, bool) or not isinstance(class_axis, int) or not 0 < class_axis % max(axes, 1) < axes:
        shape = tuple(tensors[0].shape) if tensors else ()
        raise InputError(
            f"class_axis must be an axis of the outputs, which have shape {shape}, got {class_axis!r} instead.",
            hint="1 for images and pixels, -1 for tokens, None where outputs are not class scores.",
        )
    return class_axis


@torch.no_grad()
def measure_agreement(
    compact: nn.Module, dense: nn.Module, batches: list[Any], class_axis: int | None
) -> Agreement | None:
    """Compare the outputs of two networks on inputs that neither was fitted to; None: there is nothing to compare."""
    count = sum(map(examples_in, batches))
    if not count:
        return None
    device = next((p.device for p in compact.parameters()), torch.device("cpu"))
    equal = kl = error = 0.0
    with evaluation_mode(compact, dense):
        for batch in on_device(batches, device):
            found, wanted, share = _floating(call(compact, batch)), _floating(call(dense, batch)), examples_in(batch)
            relative = relative_error(_numbered(found), _numbered(wanted))
            if relative is None:
                return None
            error += share * float(relative)
            if class_axis is not None:
                scores, target = (tensors[0].float().movedim(class_axis, 1) for tensors in (found, wanted))
                equal += share * float((scores.argmax(1) == target.argmax(1)).float().mean())
                kl += share * float(soft_loss(scores, target, 1.0))
    has_classes = class_axis is not None
    return Agreement(count, error / count, equal / count if has_classes else None, kl / count if has_classes else None)


def _floating(outputs: Any) -> list[Tensor]:
    return [tensor for tensor in output_tensors(outputs) if tensor.is_floating_point()]


def _numbered(tensors: list[Tensor]) -> dict[str, Tensor]:
    return {str(number): tensor for number, tensor in enumerate(tensors)}


# -- inputs ----------------------------------------------------------------------------------------------------------


def hold_back(inputs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Split batches in those to fit to and those to judge by: every eighth example, or batch where batches are small.

    >>> fit, held_back = hold_back([torch.arange(16)])
    >>> held_back
    [tensor([0, 8])]
    """
    if inputs and all(examples_in(batch) >= HELD_BACK for batch in inputs):
        taken = [torch.arange(examples_in(batch)) % HELD_BACK == 0 for batch in inputs]
        return (
            [_picked(batch, ~mask) for batch, mask in zip(inputs, taken, strict=True)],
            [_picked(batch, mask) for batch, mask in zip(inputs, taken, strict=True)],
        )
    if len(inputs) < 2:
        return inputs, []
    return [batch for n, batch in enumerate(inputs) if n % HELD_BACK != 1], inputs[1::HELD_BACK]


def _picked(batch: Any, mask: Tensor) -> Any:
    """Return some examples of a batch of any structure."""

    def pick(leaf: Any) -> Any:
        per_example = isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == len(mask)
        return leaf[mask.to(leaf.device)] if per_example else leaf

    return pytree.tree_map(pick, batch)


def _smallest(inputs: Iterable[Any]) -> int:
    """Return the examples of the smallest batch; of a stream, of its first."""
    return min(examples_in(batch) for batch in (inputs if isinstance(inputs, list) else islice(inputs, 1)))


def _endless(inputs: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """Give batches again and again; those of a list in another order, and mixed anew where a batch is one tensor."""
    while not isinstance(inputs, list):
        for batch in read_as_user(inputs):
            yield on_device(batch, device)
    kept: list[Any] = on_device(inputs, device)
    tensors = [batch for batch in kept if isinstance(batch, Tensor)]
    if len(tensors) == len(kept) and len({batch.shape[1:] for batch in tensors}) == 1:
        examples, size = torch.cat(tensors), min(BATCH_SIZE, max(len(batch) for batch in tensors))
        while True:
            order = torch.randperm(len(examples)).to(examples.device)
            for start in range(0, max(len(examples) - size, 0) + 1, size):
                yield examples[order[start : start + size]]
    while True:
        for number in torch.randperm(len(kept)).tolist():
            yield kept[number]


def check_augment(augment: Augment, batch: Any) -> None:
    """Refuse flips and shifts of what is not a batch of images."""
    if augment is True and not (isinstance(batch, Tensor) and batch.dim() == 4 and batch.is_floating_point()):
        raise InputError(
            "augment must be False, or a function, where inputs are not batches of images (batch, channels, h, w).",
            hint="pass a function that returns a changed batch of inputs.",
        )


def _augmented(batch: Any, augment: Augment) -> Any:
    if callable(augment):
        return call_as_user(augment, batch)
    return flip_and_shift(batch) if augment else batch


def flip_and_shift(images: Tensor) -> Tensor:
    """Flip half of the images, and shift each by up to an eighth of its size; what comes in is zero."""
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
