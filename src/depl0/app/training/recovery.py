"""Label-free recovery of a run's compact network, and its agreement with the dense one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, final

from torch import nn

from depl0._util.distributed import broadcast_buffers, broadcast_parameters
from depl0.app.runs.progress import shown_as
from depl0.app.tasks.classification import Classification, Segmentation
from depl0.app.training.evaluate import evaluate
from depl0.app.training.search import calibration
from depl0.app.training.session import Session
from depl0.search.calibration import MOST_INPUTS, Calibration
from depl0.search.one_shot import note_agreement
from depl0.search.recovery.distillation import BLOCKS
from depl0.search.recovery.outputs import compare_by, measure_agreement
from depl0.search.recovery.self_distillation import VALUE_BLOCKS, distill

JUDGING_INPUTS = 256
_FIRST_EPOCH = 2_000_000
"""epoch of the training data; those of a search start from 0"""


def recover(session: Session, compact: nn.Module, dense: nn.Module) -> None:
    """Distill the compact network from the dense network, for at most as many steps as in the recipe.

    It is evaluated on validation images, or on training images if there are none. Agreement is measured at the end, on
    images that are not used in training.
    """
    data, steps, reporter = session.data, session.recipe.finetune.recover, session.reporter
    if steps > 0:
        reporter.note(
            f"recovering from the dense network's answers: at most {steps} steps (finetune.recover = 0: none)"
        )
        judging = calibration(session).judge if data.validation is None else data.validation.epoch(0)
        with shown_as(reporter, "recovery"):
            done = distill(
                compact,
                dense,
                _TrainingInputs(session),
                Calibration(judging, (), (), session.task.loss).inputs(JUDGING_INPUTS),
                steps=steps,
                soft=session.task.distill if session.task.distills else None,
                blocks=BLOCKS if session.task.distills else VALUE_BLOCKS,
            )
        broadcast_parameters(compact)  # each process has used different data
        broadcast_buffers(compact)
        score = evaluate(session.accelerator, compact, data.for_choices.epoch(0), session.task)
        losses = {"loss_before": done.before, "loss_after": done.after}
        figures: dict[str, Any] = {"steps": done.steps, **losses, session.task.metric.name: score}
        session.log_event("recovery", session.epoch, **figures)
        shown = f"{session.task.metric.label} {session.task.metric.show(score)}"
        reporter.note(f"recovered in {done.steps} steps: loss {done.before or 0:.3g} -> {done.after or 0:.3g}, {shown}")
    inputs = Calibration(data.for_choices.epoch(0), (), (), session.task.loss).inputs(MOST_INPUTS)
    has_classes = isinstance(session.task, (Classification, Segmentation))
    comparison = compare_by(dense, inputs[0], 1 if has_classes else "auto")
    note_agreement(compact, measure_agreement(compact, dense, inputs, comparison))


@final
class _TrainingInputs:
    """Inputs of the training data with the recipe's augmentation, epoch after epoch."""

    def __init__(self, session: Session) -> None:
        self._train = session.data.train

    def __iter__(self) -> Iterator[Any]:
        for epoch in count(_FIRST_EPOCH):
            yield from (inputs for inputs, _ in self._train.epoch(epoch))
