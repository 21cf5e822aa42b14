"""A recipe: the complete description of a training, as frozen data.

Every field carries the check of its values. A recipe that exists is a valid one: wrong values are refused when it is
made, by the name of the field.
"""

from __future__ import annotations

import dataclasses
from dataclasses import field
from typing import ClassVar, final

from depl0.app.checks import Instance, Text
from depl0.app.methods import METHODS, Scored
from depl0.app.recipes.section import Section, allow, refusal
from depl0.app.recipes.sections import (
    CONTINUED,
    DataSection,
    DeploySection,
    FinetuneSection,
    GateOptimizerSection,
    GatesSection,
    ModelSection,
    RecoverySection,
    RunSection,
    SearchSection,
    TargetSection,
    TaskSection,
    WeightOptimizerSection,
)
from depl0.errors import InputError

DISTILL = 0.9
"""The dense network's share of the loss where it was trained already and nothing else is said."""

DISTILL_BLOCKS = 5.0
"""The weight of the relative error of block outputs there."""

FINETUNE_LR_SHARE = 0.1
"""The share of ``weight_optimizer.lr`` that fine-tuning starts from, where its own is left out."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe(Section):
    """The complete description of a training. A run is one execution of it."""

    title: ClassVar[str] = ""

    name: str = field(metadata=allow(Text("a line of text that is not empty")))
    model: ModelSection = field(default_factory=ModelSection, metadata=allow(Instance(ModelSection)))
    data: DataSection = field(default_factory=DataSection, metadata=allow(Instance(DataSection)))
    task: TaskSection = field(default_factory=TaskSection, metadata=allow(Instance(TaskSection)))
    gates: GatesSection = field(default_factory=GatesSection, metadata=allow(Instance(GatesSection)))
    target: TargetSection = field(metadata=allow(Instance(TargetSection)))
    search: SearchSection = field(metadata=allow(Instance(SearchSection)))
    weight_optimizer: WeightOptimizerSection = field(metadata=allow(Instance(WeightOptimizerSection)))
    gate_optimizer: GateOptimizerSection = field(
        default_factory=GateOptimizerSection, metadata=allow(Instance(GateOptimizerSection))
    )
    recovery: RecoverySection = field(default_factory=RecoverySection, metadata=allow(Instance(RecoverySection)))
    finetune: FinetuneSection = field(default_factory=FinetuneSection, metadata=allow(Instance(FinetuneSection)))
    deploy: DeploySection = field(default_factory=DeploySection, metadata=allow(Instance(DeploySection)))
    run: RunSection = field(default_factory=RunSection, metadata=allow(Instance(RunSection)))

    def _check_together(self) -> None:
        if self.search.distill and not self.model.starts_trained:
            raise refusal(
                "search.distill",
                "0 where model.weights is empty and model.pretrained false",
                self.search.distill,
                "distillation needs a trained dense network to learn from: give --weights or --pretrained.",
            )
        if self.search.distill_blocks and self.run.compile:
            raise refusal(
                "search.distill_blocks",
                "0 where run.compile is true",
                self.search.distill_blocks,
                "what blocks give inside a compiled graph cannot be looked at.",
            )
        if self.gates.dependency > 0 and (self.target.budget is None or self.gates.conditioning != "gates"):
            raise refusal(
                "gates.dependency",
                "0 unless there is a budget and gates.conditioning is 'gates'",
                self.gates.dependency,
                "set gates.conditioning to 'gates' (--conditioning gates).",
            )
        if isinstance(METHODS[self.gates.method], Scored) and self.target.budget is None:
            raise InputError(
                f"recipe field target.budget must be set where gates.method is {self.gates.method!r}: its channels are "
                "chosen by their scores, and a penalty weight says nothing about how many stay.",
                hint="set target.budget (--budget 0.5 leaves half of the MACs).",
            )

    @property
    def prunes_at_once(self) -> bool:
        """Whether there is no search: the method needs no training of its own, and the weights are trained already."""
        method = METHODS[self.gates.method]
        return isinstance(method, Scored) and not method.trains and self.model.starts_trained

    @property
    def search_epochs(self) -> int:
        """The epochs before the network is cut."""
        return 0 if self.prunes_at_once else self.search.epochs

    @property
    def finetune_epochs(self) -> int:
        """The epochs after the network was cut; the search's too where there is none, for all methods get as many."""
        return self.finetune.epochs + self.search.epochs - self.search_epochs

    @property
    def distill(self) -> float:
        """The dense network's share of the loss, where the task says how to learn from it."""
        own = self.search.distill
        return own if own is not None else DISTILL if self.model.starts_trained else 0.0

    @property
    def distill_blocks(self) -> float:
        """The weight of the error of block outputs, where the dense network is learned from."""
        own = self.search.distill_blocks
        return own if own is not None else 0.0 if self.run.compile else DISTILL_BLOCKS

    @property
    def has_one_curve(self) -> bool:
        """Whether one learning-rate curve goes through search and fine-tuning."""
        return self.finetune.schedule == CONTINUED

    @property
    def finetune_lr(self) -> float:
        """The learning rate that fine-tuning starts from."""
        if self.has_one_curve:
            return self.weight_optimizer.lr
        return self.weight_optimizer.lr * FINETUNE_LR_SHARE if self.finetune.lr is None else self.finetune.lr

    @property
    def finetune_weight_decay(self) -> float:
        """The weight decay of fine-tuning."""
        own = self.finetune.weight_decay
        return self.weight_optimizer.weight_decay if own is None else own
