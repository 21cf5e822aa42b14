"""Pruning in one call: score, compensate, cut, certify, and recover from the dense network's answers or from labels."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Unpack

from depl0._util.defaults import call_as_user, own_defaults, read_as_user
from depl0._util.progress import ProgressLine
from depl0.config import GateConfig, OtherGateChanges
from depl0.errors import DivergedError, InputError
from depl0.gated import GatedModel, attach
from depl0.gated.attaching import choose_multiple, with_config
from depl0.host.copies import private_copy
from depl0.host.network import check_host, first_line
from depl0.search.calibration import MOST_BATCHES, Calibration, Loss, call, on_device
from depl0.search.freezing import freeze_network
from depl0.search.recovery.distillation import BLOCKS, DistillationLoss
from depl0.search.recovery.unlabelled import (
    LR,
    MOMENTUM,
    PATIENCE,
    STEPS,
    VALUE_BLOCKS,
    WEIGHT_DECAY,
    Augment,
    ClassAxis,
    check_augment,
    check_class_axis,
    hold_back,
    measure_agreement,
    output_loss,
    recover_from_answers,
    set_rate,
    state_copy,
)
from depl0.search.scores.reconstruction import reconstruction_scores
from depl0.select.gates import minimum_share
from depl0.surgery.record import Agreement, record_of, remember

MIN_SHARE = 0.1
"""of the channels of every group, which scores alone may close nearly all of: those of a gated MLP, say"""


@overload
def prune(
    model: nn.Module,
    example_inputs: Any,
    *,
    data: Iterable[Any],
    budget: float = 0.5,
    recover: int | Literal["auto"] | None = "auto",
    steps: int | None = None,
    loss: Loss | None = None,
    lr: float = LR,
    class_axis: ClassAxis = "auto",
    augment: Augment = False,
    quiet: bool = False,
    **changes: Unpack[OtherGateChanges],
) -> nn.Module: ...


@overload
def prune(
    model: nn.Module,
    example_inputs: Any,
    *,
    data: Iterable[Any],
    budget: Sequence[float],
    recover: int | Literal["auto"] | None = "auto",
    steps: int | None = None,
    loss: Loss | None = None,
    lr: float = LR,
    class_axis: ClassAxis = "auto",
    augment: Augment = False,
    quiet: bool = False,
    **changes: Unpack[OtherGateChanges],
) -> list[nn.Module]: ...


@own_defaults()
def prune(
    model: nn.Module,
    example_inputs: Any,
    *,
    data: Iterable[Any],
    budget: float | Sequence[float] = 0.5,
    recover: int | Literal["auto"] | None = "auto",
    steps: int | None = None,
    loss: Loss | None = None,
    lr: float = LR,
    class_axis: ClassAxis = "auto",
    augment: Augment = False,
    quiet: bool = False,
    **changes: Unpack[OtherGateChanges],
) -> nn.Module | list[nn.Module]:
    """Return a compact network within a budget, or one for each of several. The model is not modified.

    Channels are scored by the error that is left when the layers that read them are refitted without them; those layers
    are then refitted in closed form. After that the compact network learns from the given network's answers for the
    same inputs, without labels (``recover``), or from labels (``steps``). Every eighth example is held back: the
    recovery is judged by it, and ``depl0.info(compact).agreement`` says how far both networks agree on it.

    Ctrl-C during the recovery ends it: the best weights so far are returned, of several budgets those networks that
    have been begun. Earlier it raises KeyboardInterrupt as usual.

    To prune while training, or a network that is not trained yet, use :class:`depl0.Search`.

    Args:
        model: a trained network. Given in training mode, its modules are trained in their own modes; given in
            evaluation mode, batch norms alone are in training mode during the recovery. Frozen parameters are not
            trained.
        example_inputs: a tensor, a tuple of arguments or a dict of keyword arguments that the network runs on.
        data: batches, as a data loader gives them: inputs alone, or pairs (inputs, targets) whose targets are not used;
            1,024 examples are enough. With ``steps``: pairs, one for each step, from the beginning again if there are
            fewer.
        budget: the share of the cost to keep. Several give a list of networks; the network is analysed and scored once.
        recover: steps of the label-free recovery. "auto": at most 600, fewer if the inputs held back no longer improve;
            a network that cannot be trained is returned as it was cut, with a warning. None or 0: the cut alone.
        steps: training steps with labels after the cut, instead of ``recover``; None: none.
        loss: with ``steps``, the loss of the task, ``loss(outputs, targets)``; None: cross entropy, and distillation
            from the given network.
        lr: the learning rate after the cut.
        class_axis: the axis of the outputs that holds class scores, 1 for pixels (batch, classes, h, w), -1 for tokens
            (batch, tokens, classes); None: outputs are values, compared by their relative squared error. "auto": 1 for
            one matrix (batch, classes) that is not of probabilities, else None.
        augment: True: random flips and shifts of images while recovering; or a function of a batch of inputs.
        quiet: show no progress line on stderr (it is shown on terminals only).
        changes: further fields of :class:`depl0.GateConfig`: ``of``, ``groups``, ``round_to``, … Unless ``min_share``
            or ``remove_blocks`` is given, every group keeps a tenth of its channels; where the budget does not allow
            that, a warning names the layers that keep fewer.

    Raises:
        InputError: an argument is invalid, or a budget cannot be reached.
        DivergedError: the loss became non-finite while training with labels.

    Example:
        >>> import depl0
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> compact = depl0.prune(model, torch.randn(1, 8), data=[torch.randn(64, 8)], budget=0.5)
        >>> depl0.info(compact).macs_left <= 0.5
        True
        >>> data = [torch.randn(64, 8)]
        >>> larger, smaller = depl0.prune(model, data[0][:1], data=data, budget=[0.5, 0.25], recover=None)
        >>> depl0.info(smaller).agreement.inputs
        8
    """
    budgets = list(budget) if isinstance(budget, Sequence) else [budget]
    if not budgets:
        raise InputError("budget must be a share or several, got none.", hint="budget=[0.75, 0.5] makes two networks.")
    recovery_steps = _recovery_steps(recover, labelled=steps is not None)
    if steps is not None or recovery_steps:
        _check_training(steps, lr)
    config = GateConfig(budget=budgets[0]).changed(**changes).changed(generator="independent")
    if steps is not None:
        data = list(islice(data, max(steps, MOST_BATCHES))) if isinstance(data, Iterator) else data
        for batch in islice(data, 1):
            _pair(batch)
    dense = private_copy(check_host(model))
    compacts: list[nn.Module] = []
    with ProgressLine(quiet=quiet) as progress:
        progress.phase("analysing")
        networks = _gated_for(private_copy(model), example_inputs, config, budgets)
        task_loss = None if steps is None else loss or functional.cross_entropy
        calibration = Calibration.of(() if data is None else data, task_loss, networks[0], "data")
        assert calibration is not None, "data are batches"
        inputs, held_back = hold_back(calibration.inputs()) if steps is None else (calibration.inputs(), [])
        axis = check_class_axis(dense, held_back[0], class_axis) if held_back else None
        if inputs:
            check_augment(augment, inputs[0])
        progress.phase("scoring")
        scores = reconstruction_scores(networks[0], inputs, config.of)
        once = Calibration(inputs, inputs, inputs)
        host = networks[0].host
        state = state_copy(host)
        modes = {name: module.training for name, module in model.named_modules()}
        fixed = {name for name, training in modes.items() if model.training and not training}
        for number, gated in enumerate(networks, 1):
            name = f" {number} of {len(networks)}" if len(networks) > 1 else ""
            progress.phase(f"fitting{name}")
            host.load_state_dict(state)
            chosen = gated.config if "min_share" in changes else _with_floor(gated)
            freezing = freeze_network(gated, chosen, scores=scores, calibration=once, compensated=True)
            if "min_share" not in changes and not chosen.remove_blocks:
                _warn_of_narrow_groups(gated, freezing.gates)
            compact = gated.extract()
            compacts.append(compact)
            progress.phase(f"recovering{name}")
            interrupted = False
            if steps is not None:
                finetune(compact, data, steps, lr, loss=loss, dense=dense, fixed=fixed)
            elif recovery_steps:
                try:
                    interrupted = recover_from_answers(
                        compact,
                        dense,
                        inputs,
                        held_back,
                        steps=recovery_steps,
                        patience=PATIENCE if recover == "auto" else None,
                        lr=lr,
                        soft=output_loss(axis),
                        blocks=VALUE_BLOCKS if axis is None else BLOCKS,
                        augment=augment,
                        fixed=fixed if model.training else None,
                    ).interrupted
                except RuntimeError as error:  # no derivative, or no memory for it; the cut itself is sound
                    if recover != "auto":
                        raise
                    warnings.warn(
                        f"the network was cut but not recovered: {first_line(error)} (recover=None: the cut alone).",
                        stacklevel=2,
                    )
            note_agreement(compact, measure_agreement(compact, dense, held_back, axis))
            if interrupted:
                break
    return compacts if isinstance(budget, Sequence) else compacts[0]


def _gated_for(host: nn.Module, example_inputs: Any, config: GateConfig, budgets: list[float]) -> list[GatedModel]:
    """Return a gated network for every budget, around one host that is analysed once."""
    first = attach(host, example_inputs, config)
    found = [first]
    for budget in budgets[1:]:
        is_auto = config.round_to == "auto"
        round_to = choose_multiple(first, budget, config.of) if is_auto else first.config.round_to
        found.append(with_config(first, budget=budget, round_to=round_to))
    return found


def _with_floor(gated: GatedModel) -> GateConfig:
    """Return the configuration with a floor for every group, if the budget allows one and no blocks are to go."""
    config, budget = gated.config.changed(min_share=MIN_SHARE), gated.config.budget
    assert budget is not None, "prune has one"
    can_be_met = minimum_share(gated.engine.snapshot(), config) <= budget
    return config if can_be_met and not config.remove_blocks else gated.config


def _warn_of_narrow_groups(gated: GatedModel, gates: Tensor) -> None:
    """Say which groups keep less than :data:`MIN_SHARE` of their channels."""
    kept = {group: int((gates[group.gates] > 0).sum()) or 1 for group in gated.plan.groups}
    narrow = [f"{g.name} ({n} of {g.size})" for g, n in kept.items() if n < math.ceil(MIN_SHARE * g.size)]
    if narrow:
        more = f" and {len(narrow) - 5} more" if len(narrow) > 5 else ""
        warnings.warn(
            f"the budget of {gated.config.budget:g} leaves less than {MIN_SHARE:.0%} of the channels of "
            f"{', '.join(narrow[:5])}{more}; ask for a larger one, or give min_share to choose what every group keeps.",
            stacklevel=3,
        )


def note_agreement(compact: nn.Module, agreement: Agreement | None) -> None:
    """Keep with a compact network how far it agrees with the dense one."""
    record = record_of(compact)
    assert record is not None, "it was extracted"
    remember(compact, replace(record, agreement=agreement))


def finetune(
    compact: nn.Module,
    data: Iterable[Any],
    steps: int,
    lr: float,
    *,
    loss: Loss | None,
    dense: nn.Module,
    fixed: Collection[str] = (),
) -> None:
    """Take ``steps`` steps of SGD: a warm-up, then half a cosine to 0. The network is left in evaluation mode.

    Without a loss it is cross entropy, with distillation from the dense network. The modules in ``fixed`` stay in
    evaluation mode.
    """
    task_loss = loss or functional.cross_entropy
    distillation = DistillationLoss(dense) if loss is None else None
    parameters = list(compact.parameters())
    sgd = torch.optim.SGD(parameters, lr=lr, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY)
    batches = _endless(data, parameters[0].device)
    compact.train()
    for name, module in compact.named_modules():
        if name in fixed:
            module.training = False
    total = torch.zeros((), device=parameters[0].device)
    for step in range(steps):
        set_rate(sgd, lr, step, steps)
        inputs, targets = next(batches)
        if distillation is None:
            value = call_as_user(task_loss, call(compact, inputs), targets)
        else:
            with distillation.watch(compact) as blocks:
                outputs = call(compact, inputs)
            value = distillation(call_as_user(task_loss, outputs, targets), outputs, inputs, blocks)
        value.backward()
        sgd.step()
        sgd.zero_grad()
        total += value.detach()
    if not bool(total.isfinite()):
        raise DivergedError("the loss became non-finite while the network was fine-tuned.", hint="pass a lower lr.")
    compact.eval()


def _recovery_steps(recover: int | Literal["auto"] | None, *, labelled: bool) -> int:
    """Return the steps of the label-free recovery, at most."""
    is_count = isinstance(recover, int) and not isinstance(recover, bool) and recover >= 0
    if recover is not None and recover != "auto" and not is_count:
        raise InputError(f"recover must be 'auto', None or a number of steps, got {recover!r} instead.")
    if labelled and isinstance(recover, int) and recover > 0:
        raise InputError(
            "steps and recover are both given; one network is trained either with labels or without.",
            hint="leave one of them out.",
        )
    return 0 if labelled or recover is None else STEPS if recover == "auto" else int(recover)


def _check_training(steps: int | None, lr: float) -> None:
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 2):
        raise InputError(f"steps must be a whole number of at least 2, got {steps!r} instead.")
    if not lr > 0:
        raise InputError(f"lr must be a number above 0, got {lr!r} instead.")


def _pair(batch: Any) -> tuple[Any, Any]:
    """Return inputs and targets of a batch to train on."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise InputError(
            f"with steps, a batch must be a pair (inputs, targets), got {type(batch).__name__} instead.",
            hint="leave steps out to prune without labels.",
        )
    return batch[0], batch[1]


def _endless(data: Iterable[Any], device: torch.device) -> Iterator[tuple[Any, Any]]:
    """Give pairs (inputs, targets) again and again, where the network is."""
    while True:
        found = False
        for batch in read_as_user(data):
            found = True
            yield on_device(_pair(batch), device)
        if not found:
            raise InputError("data gives no batches.", hint="pass a data loader or a list of batches.")
