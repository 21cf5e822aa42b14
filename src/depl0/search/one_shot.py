"""Pruning in one call: score, cut and refit in rounds, certify, and recover with the original network as teacher."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Unpack

from depl0._util.process import library_defaults, read_as_user, warn_caller, with_user_defaults
from depl0._util.user_code import call_of_user
from depl0.config import GateConfig, OtherGateChanges
from depl0.errors import DivergedError, InputError
from depl0.gated import GatedModel, attach
from depl0.host.copies import isolated_deepcopy
from depl0.host.inputs import ExampleInputs
from depl0.host.network import check_host, evaluation_mode, first_line
from depl0.search.calibration import (
    MOST_BATCHES,
    Augment,
    Calibration,
    Loss,
    call,
    check_augment,
    examples_in,
    hold_out,
    is_image_batch,
    is_invariant,
    on_device,
    pair_of,
)
from depl0.search.progress import ProgressLine
from depl0.search.recovery.distillation import DistillationLoss, kept_channels
from depl0.search.recovery.memory import FreedMemory, check_memory, needed_memory
from depl0.search.recovery.outputs import (
    ClassAxis,
    compare_by,
    is_hopeless,
    measure_agreement,
    missing_classes,
    scores_tokens,
)
from depl0.search.recovery.self_distillation import (
    FEW,
    LR,
    PATIENCE,
    STEPS,
    WARMUP_STEPS,
    Recovery,
    descend,
    distill,
    training_modules,
)
from depl0.search.rounds import cut_in_rounds
from depl0.select.gates import check_budget
from depl0.surgery.record import Agreement, RecoveryRecord, record_of, remember

LEAST_GAIN = 0.01
"""Smallest relative decrease of the held-out loss for a recovery to count as useful."""


@library_defaults()
def prune(
    model: nn.Module,
    example_inputs: Any,
    *,
    data: Iterable[Any],
    budget: float | Sequence[float] = 0.5,
    recover: int | Literal["auto"] | None = "auto",
    steps: int | None = None,
    loss: Loss | None = None,
    lr: float | None = None,
    class_axis: ClassAxis = "auto",
    augment: Augment | Literal["auto"] = "auto",
    on_ready: Callable[[nn.Module], None] | None = None,
    quiet: bool = False,
    **changes: Unpack[OtherGateChanges],
) -> Any:
    """Prune a network to a budget, or to several budgets, in one call. The model is not modified.

    Channels are scored by the remaining error if their consumer layers are refitted without them. The channels with the
    lowest scores are cut, and those layers are refitted by least squares. This is repeated in rounds, each of which
    keeps about three quarters of the previous round's cost. After that the pruned network is distilled from the given
    network, without labels (``recover``), or trained with labels (``steps``). Every eighth example is held out: these
    examples evaluate the recovery, and ``depl0.info(pruned).agreement`` compares both networks on them.

    Ctrl-C during the recovery ends it: the best weights so far are returned, and with several budgets the networks that
    were begun. Before the recovery it raises KeyboardInterrupt as usual.

    To prune while training, or a network that is not trained yet, use :class:`depl0.Search`.

    Args:
        model: a trained network. While it is trained, only batch norms are in training mode, or with a ``loss`` all
            modules. Those in evaluation mode stay in it if the network is passed in training mode. Frozen parameters
            are not trained.
        example_inputs: a tensor, a tuple of arguments or a dict of keyword arguments for the network.
        data: batches, as from a data loader: inputs alone, or pairs (inputs, targets) whose targets are not used. 1,024
            examples are used, sampled from the whole data set if it has a length; from a stream, the first ones. With
            ``steps``: pairs, one for each step, from the beginning again if there are fewer.
        budget: the fraction of the cost to keep. For several budgets a list of networks is returned in the same order;
            they are made from the largest to the smallest, each starting from the previous one.
        recover: steps of the label-free recovery. "auto": at most 600, fewer if the held-out loss no longer improves; a
            network that cannot be trained is returned without recovery, with a warning. None or 0: no recovery.
        steps: training steps with labels after the cut, instead of ``recover``; None: no training with labels.
        loss: with ``steps``, the loss of the task, ``loss(outputs, targets)``; None: cross entropy with integer
            targets, and distillation from the given network.
        lr: the learning rate after the cut; None: 0.01, and 0.0001 in the recovery of a language model.
        class_axis: the axis of the outputs that holds class scores: 1 for pixels (batch, classes, h, w), -1 for tokens
            (batch, tokens, classes). None: outputs are values, compared by their relative squared error. "auto": 1 for
            a matrix (batch, classes) that does not hold probabilities, else None; with an inferred axis the relative
            error counts as well. For several outputs, a sequence with one entry each, or a dict by their names.
        augment: True: random flips and shifts of images during the recovery; False: none; or a function of a batch of
            inputs. "auto": True for batches of images if the outputs are one matrix of class scores that flips and
            shifts hardly change, else False.
        on_ready: called with every network as soon as it is ready, for example to save it before the next one.
        quiet: if True, no progress is printed on stderr.
        changes: further fields of :class:`depl0.GateConfig`: ``of``, ``groups``, ``round_to``, … Unless ``round_to`` is
            passed, a network most of whose channels are in groups of at least 96 keeps multiples of 8, which run faster
            on most hardware. Unless ``min_share`` or ``remove_blocks`` is passed, every group keeps a tenth of its
            channels; if the budget does not allow that, a warning names the layers that keep fewer. Unless ``groups``
            is passed, a language model loses heads and MLP channels, and hidden channels only if these do not suffice.

    Raises:
        InputError: an argument is invalid, a budget cannot be reached, or there is too little memory.
        DivergedError: the loss became non-finite while training with labels.

    Example:
        >>> import depl0
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> pruned = depl0.prune(model, torch.randn(1, 8), data=[torch.randn(64, 8)], budget=0.5, quiet=True)
        >>> depl0.info(pruned).macs_left <= 0.5
        True
        >>> data = [torch.randn(64, 8)]
        >>> larger, smaller = depl0.prune(
        ...     model, data[0][:1], data=data, budget=[0.5, 0.25], recover=None, quiet=True
        ... )
        >>> depl0.info(smaller).agreement.inputs
        8
    """
    budgets = _checked_budgets(budget)
    recovery_steps = _recovery_steps(recover, labelled=steps is not None)
    if steps is not None or recovery_steps:
        _check_training(steps, lr)
    config = GateConfig(budget=max(budgets)).changed(**changes).changed(generator="independent")
    if steps is not None:
        data = list(islice(data, max(steps, MOST_BATCHES))) if isinstance(data, Iterator) else data
        for batch in islice(data, 1):
            _check_targets(pair_of(batch, "with steps")[1], loss)
    original = isolated_deepcopy(check_host(model))
    networks: dict[float, nn.Module] = {}
    with ProgressLine(quiet=quiet) as progress:
        progress.phase("analysing")
        choices = [config]
        if "groups" not in changes and scores_tokens(original, example_inputs):
            embeddings = {name for name, module in model.named_modules() if isinstance(module, nn.Embedding)}
            choices.insert(0, config.changed(groups=lambda group: group.name not in embeddings))
        freed = FreedMemory()
        gated = _attached(model, example_inputs, choices, budgets)
        freed.release()
        task_loss = None if steps is None else loss or functional.cross_entropy
        calibration = Calibration.of(() if data is None else data, task_loss, gated, "data")
        assert calibration is not None, "data are batches"
        inputs, held_out = hold_out(calibration.inputs()) if steps is None else (calibration.inputs(), [])
        if steps is not None and loss is None:
            _check_scores(original, inputs[0])
        if steps is None and not held_out:
            warn_caller(
                f"data holds {sum(map(examples_in, inputs))} examples, too few to hold any back: the pruned network is "
                "not compared with the original one. Pass about 1,024."
            )
        check_memory(needed_memory(gated, inputs, trained=steps is not None or recovery_steps > 0), gated.device)
        comparison = compare_by(original, held_out[0], class_axis) if held_out else None
        if comparison is not None and (missing := missing_classes(original, held_out, comparison)) is not None:
            warn_caller(missing)
        if augment == "auto":
            is_classifier = is_image_batch(inputs[0]) and comparison is not None and comparison.axes == (1,)
            augment = is_classifier and is_invariant(original, inputs[0])
        check_augment(augment, inputs[0])
        fixed = {name for name, each in model.named_modules() if model.training and not each.training}

        def recovered(pruned: nn.Module) -> Recovery | None:
            if steps is not None:
                return finetune(pruned, data, steps, lr or LR, loss=loss, dense=original, fixed=fixed)
            if not recovery_steps:
                return None
            try:
                return distill(
                    pruned,
                    original,
                    inputs,
                    held_out,
                    steps=recovery_steps,
                    patience=PATIENCE if recover == "auto" else None,
                    lr=lr,
                    comparison=comparison,
                    augment=augment,
                    kept=kept_channels(gated, pruned, inputs[0]),
                )
            except RuntimeError as error:  # no derivative, or not enough memory for it; the cut itself is valid
                if recover != "auto":
                    raise
                warn_caller(
                    f"the network was cut but not recovered: {first_line(error)} (recover=None: the cut alone)."
                )
                return None

        for share, _ in cut_in_rounds(gated, original, inputs, budgets, gated.config, changes, progress.phase):
            freed.release()
            pruned = gated.extract()
            stage = "recovering" if steps is not None or recovery_steps else "comparing"
            progress.phase(f"{stage} {share:g}" if len(budgets) > 1 else stage)
            done = recovered(pruned)
            agreement = None if comparison is None else measure_agreement(pruned, original, held_out, comparison)
            note_agreement(pruned, agreement, done)
            steps_done = "" if done is None else f"{done.steps} steps, "
            progress.result(f"{steps_done}{agreement or 'not compared with the original network'}")
            _warn_of_little_gain(done, agreement)
            networks[share] = pruned
            if on_ready is not None:
                with_user_defaults(on_ready, pruned)
            if done is not None and done.interrupted:
                break
    return [networks[share] for share in budgets if share in networks] if isinstance(budget, Sequence) else pruned


def _attached(
    model: nn.Module, example_inputs: Any, choices: Sequence[GateConfig], budgets: Sequence[float]
) -> GatedModel:
    """Attach gates by the first of these configurations that can reach the budgets."""
    for config in choices:
        try:
            gated = attach(isolated_deepcopy(model), example_inputs, config)
            network = gated.snapshot()
            for share in budgets:
                check_budget(network, gated.config.changed(budget=share))
        except InputError:
            if config is choices[-1]:
                raise
        else:
            break
    return gated


def note_agreement(compact: nn.Module, agreement: Agreement | None, recovery: Recovery | None = None) -> None:
    """Record a pruned network's agreement with the original one, and the result of the recovery."""
    record = record_of(compact)
    assert record is not None, "it was extracted"
    trained = None if recovery is None else RecoveryRecord(recovery.steps, recovery.before, recovery.after)
    remember(compact, replace(record, agreement=agreement, recovery=trained or record.recovery))


def _warn_of_little_gain(recovery: Recovery | None, agreement: Agreement | None) -> None:
    if recovery is not None and recovery.before is not None and recovery.after is not None:
        is_whole = recovery.steps >= WARMUP_STEPS and not recovery.interrupted
        if is_whole and recovery.after > (1 - LEAST_GAIN) * recovery.before:
            warn_caller(
                f"the recovery of {recovery.steps} steps gained nothing: the held-out loss went from "
                f"{recovery.before:.3g} to {recovery.after:.3g}. Try another lr, or recover=None to save the time.",
            )
    if agreement is not None and is_hopeless(agreement):
        warn_caller(
            f"the pruned network has little in common with the original one: {agreement}. Ask for a larger budget, "
            "recover longer (recover=2000) or train it with labels (steps=…).",
        )


def finetune(
    compact: nn.Module,
    data: Iterable[Any],
    steps: int,
    lr: float,
    *,
    loss: Loss | None,
    dense: nn.Module,
    fixed: Collection[str] = (),
) -> Recovery:
    """Train a pruned network on labelled batches, in place. It is in evaluation mode afterwards.

    By default the loss is cross entropy, with distillation from the original network, and only batch norms are in
    training mode. With another loss all modules are, except those in ``fixed``.
    """
    task_loss = loss or functional.cross_entropy
    distillation = DistillationLoss(dense) if loss is None else None
    device = next(compact.parameters()).device
    total, step = torch.zeros((), device=device), count(1)

    def loss_of(outputs: Any, targets: Any) -> Tensor:
        value = call_of_user("loss", f"in step {next(step)} of the fine-tuning", task_loss, outputs, targets)
        if not isinstance(value, Tensor) or value.numel() != 1:
            found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise InputError(f"loss must return one number, got {found} instead.", hint="return the mean of a batch.")
        return value.reshape(())

    def objective(batch: tuple[Any, Any]) -> Tensor:
        inputs, targets = batch
        if distillation is None:
            value = loss_of(call(compact, inputs), targets)
        else:
            with distillation.watch(compact) as blocks:
                outputs = call(compact, inputs)
            value = distillation(loss_of(outputs, targets), outputs, inputs, blocks)
        total.add_(value.detach())
        return value

    trained = [module for name, module in compact.named_modules() if name not in fixed]
    if loss is None:
        trained = training_modules(compact, FEW)
    done = descend(compact, objective, _endless_pairs(data, device), steps=steps, lr=lr, trained=trained)
    if not bool(total.isfinite()):
        raise DivergedError("the loss became non-finite while the network was fine-tuned.", hint="pass a lower lr.")
    return done


# -- arguments ------------------------------------------------------------------------------------------------------


def _checked_budgets(budget: Any) -> list[float]:
    """Return one or several budgets as a list."""
    if isinstance(budget, str):
        raise InputError(
            f"budget must be a number or a list of numbers, got {budget!r} instead.",
            hint="budget=0.5 keeps half of the cost.",
        )
    budgets = list(budget) if isinstance(budget, Sequence) else [budget]
    if not budgets:
        raise InputError("budget must be a share or several, got none.", hint="budget=[0.75, 0.5] makes two networks.")
    for share in budgets:
        GateConfig(budget=share)
    return budgets


def _recovery_steps(recover: int | Literal["auto"] | None, *, labelled: bool) -> int:
    """Return the maximum number of steps of the label-free recovery."""
    is_count = isinstance(recover, int) and not isinstance(recover, bool) and recover >= 0
    if recover is not None and recover != "auto" and not is_count:
        raise InputError(f"recover must be 'auto', None or a number of steps, got {recover!r} instead.")
    if labelled and isinstance(recover, int) and recover > 0:
        raise InputError(
            "steps and recover are both given; one network is trained either with labels or without.",
            hint="leave one of them out.",
        )
    return 0 if labelled or recover is None else STEPS if recover == "auto" else int(recover)


def _check_training(steps: int | None, lr: float | None) -> None:
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 2):
        raise InputError(f"steps must be an integer of at least 2, got {steps!r} instead.")
    if lr is not None and not lr > 0:
        raise InputError(f"lr must be a number above 0, got {lr!r} instead.")


def _check_scores(network: nn.Module, batch: Any) -> None:
    """Raise InputError if the default loss does not apply to the network's outputs."""
    with evaluation_mode(network), torch.no_grad():
        outputs = ExampleInputs.of(batch).first().run(network)
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"without a loss, the network must return a tensor of class scores, got {type(outputs).__name__} instead.",
            hint="pass loss=…, a function of (outputs, targets).",
        )


def _check_targets(targets: Any, loss: Loss | None) -> None:
    """Raise InputError if the targets need a loss that was not passed."""
    is_classes = isinstance(targets, Tensor) and not (targets.is_floating_point() or targets.is_complex())
    if loss is None and not is_classes:
        kind = str(targets.dtype) if isinstance(targets, Tensor) else type(targets).__name__
        raise InputError(
            f"without a loss, the targets must be a tensor of integer class indices, got {kind} instead.",
            hint="pass loss=…, a function of (outputs, targets), for instance torch.nn.functional.mse_loss.",
        )


def _endless_pairs(data: Iterable[Any], device: torch.device) -> Iterator[tuple[Any, Any]]:
    """Yield pairs (inputs, targets) in an endless loop, on the network's device."""
    while True:
        found = False
        for batch in read_as_user(data):
            found = True
            yield on_device(pair_of(batch, "with steps"), device)
        if not found:
            raise InputError("data gives no batches.", hint="pass a data loader or a list of batches.")
