"""The sections of a recipe: one for each thing that a training is made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from typing import ClassVar, Literal, TypeAlias, final, get_args

import torch

from depl0.app.checks import Either, Flag, ListOf, Maybe, Named, Number, OneOf, Refused, Text, Whole, shown
from depl0.app.data.settings import DataFields
from depl0.app.methods import METHODS, Learned
from depl0.app.models.spec import check_spec
from depl0.app.recipes.section import Section, allow, refusal
from depl0.app.tasks import TASKS, find_task
from depl0.app.tasks import check_spec as check_task
from depl0.config import EvaluationRule, PenaltyKind, PenaltyScale
from depl0.costs.expected import PENALTIES
from depl0.errors import InputError
from depl0.gates.generators import GENERATORS, PRESETS, Direction
from depl0.gates.generators.base import Conditioning
from depl0.gates.threshold import BudgetKind
from depl0.search.search import FirstScores
from depl0.select.rounding import AUTO, RoundTo

SCHEDULES = ("constant", "step", "cosine", "one-cycle")
CONTINUED = "continued"
"""the schedule of a fine-tuning that goes on where the search's learning rate was"""


def penalties() -> tuple[str, ...]:
    """Name the costs that a penalty may be of."""
    return ("params", "macs", "groups", *PENALTIES)


PRECISIONS = ("fp32", "bf16", "fp16")
Compaction: TypeAlias = Literal["once", "progressive", "never"]
CHANNELS_LAST = ("auto", "on", "off")
TRACKERS = ("tensorboard", "wandb", "mlflow")


def _is_model(spec: str) -> bool:
    try:
        check_spec(spec)
    except InputError as error:
        raise Refused(error.hint) from error
    return True


def _is_task(spec: str) -> bool:
    try:
        check_task(spec)
    except InputError as error:
        raise Refused(error.hint) from error
    return True


def _is_device(name: str) -> bool:
    if name == "auto":
        return True
    try:
        torch.device(name)
    except RuntimeError:
        return False
    return True


_GROUPS = Either(OneOf(("all", "inner")), ListOf(entry=Text("a group's name"), at_least=1))
_MILESTONES = ListOf(entry=Whole(at_least=1), rising=True)
_FACTOR = Number(above=0, at_most=1)
_SETTING = Either(Either(Flag(), Whole(at_least=-(2**63), at_most=2**63 - 1)), Either(Number(), Text()))


def _check_steps(section: str, schedule: str, milestones: tuple[int, ...]) -> None:
    if schedule == "step" and not milestones:
        words = "a list of at least one epoch where the schedule is 'step'"
        raise refusal(f"{section}.milestones", words, list(milestones), "schedule = 'constant' takes no steps.")


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSection(Section):
    """The network.

    Attributes:
        spec: a built-in name (``resnet56``), ``torchvision:NAME``, ``timm:NAME``, or a callable that returns a module:
            ``my_package.nets:make`` or ``path/to/file.py:make``.
        weights: the file to start from; empty: from scratch.
        pretrained: whether to start from the weights that timm or torchvision publish for ``spec``. A callable of your
            own is given ``pretrained=True`` where its signature names it, and is taken to return a trained network.
        strict: whether weights for another number of classes are refused; else their backbone is used, with a new head.
    """

    title: ClassVar[str] = "model"

    spec: str = field(default="resnet56", metadata=allow(Text("a model's name or module:callable", valid=_is_model)))
    weights: str = field(default="", metadata=allow(Text("a file's name, or empty", may_be_empty=True)))
    pretrained: bool = field(default=False, metadata=allow(Flag()))
    strict: bool = field(default=False, metadata=allow(Flag()))

    def _check_together(self) -> None:
        if self.pretrained and self.weights:
            raise InputError("recipe fields model.weights and model.pretrained are both set; at most one may be.")
        if self.pretrained and ":" not in self.spec:
            words = "false for a built-in network, which comes without weights"
            raise refusal("model.pretrained", words, True, "start from a file: --weights FILE.")

    @property
    def starts_trained(self) -> bool:
        """Whether the recipe names trained weights to start from."""
        return bool(self.weights) or self.pretrained


@dataclasses.dataclass(frozen=True, kw_only=True)
class _DataSpec(Section):
    """Which data: a class of its own, because the first field of a section is that of its last base."""

    spec: str = field(default="digits", metadata=allow(Text("the name of a data set")))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSection(DataFields, _DataSpec):
    """The images.

    Attributes:
        spec: which data, for instance ``digits`` or ``cifar10:DIR``.

    All others are those of :class:`~depl0.app.data.settings.DataFields`.
    """

    title: ClassVar[str] = "data"

    def _check_together(self) -> None:
        if (self.mean is None) != (self.std is None) or (self.mean and self.std and len(self.mean) != len(self.std)):
            raise InputError(
                "recipe fields data.mean and data.std must have one number per channel each, or both be left out, "
                f"got mean {shown(self.mean)} and std {shown(self.std)} instead."
            )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSection(Section):
    """What the network is trained for: loss and metric (:mod:`depl0.app.tasks`).

    Attributes:
        spec: ``classification``, ``segmentation``, ``regression``, or a task of your own:
            ``my_package.tasks:Name`` or ``path/to/file.py:Name``.
        settings: what the task takes, by name: ``{ignore_index = 0}``; left out: its defaults.
    """

    title: ClassVar[str] = "task"

    spec: str = field(default="classification", metadata=allow(Text("a task's name or module:class", valid=_is_task)))
    settings: tuple[tuple[str, object], ...] | None = field(default=None, metadata=allow(Maybe(Named(_SETTING))))

    def _check_together(self) -> None:
        if self.settings and self.spec in TASKS:
            try:
                find_task(self.spec, **dict(self.settings))
            except InputError as error:
                raise InputError(f"recipe field task.settings cannot be used: {error.message}", error.hint) from error


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class GatesSection(Section):
    """The gates and the generator that gives them.

    Attributes:
        method: ``dep-l0``; ``l0-hc``, whose gates are independent; or one that scores channels, to compare with
            (:mod:`depl0.app.methods`). The latter need a budget and do not use the generator.
        method_weight: the weight of what the method adds to the loss; left out: the method's own (``slimming``: 1e-4).
        generator: the network that gives every group's log α.
        direction: the order in which the generator walks the groups.
        conditioning: what a group is fed on: the ``log_alpha`` of the group before it, or its ``gates``.
        groups: ``all``, ``inner`` (those that no shortcut is added to), or a list of names or shell patterns.
        alone: layers whose output gets gates of its own although it is added to a shortcut; they multiply and cut
            nothing. Left out where there is a budget, and by methods that score channels.
        preset: how the generator is scaled and initialised.
        start: the first log α of every gate; left out: the preset's.
        evaluation: the rule for the gates outside training.
        importance: what the first scores come from where a budget is given and the network has learned something
            already: ``taylor`` (first-order change of the loss for the cost), ``reconstruction`` (the error that is
            left when the layers behind a channel make up for its loss), or ``none``.
        dependency: how much the scores of a group start to depend on which gates of the group before it are closed, as
            a share of the spread of all scores; needs a budget, generator ``fc`` and conditioning on ``gates``.
    """

    title: ClassVar[str] = "gates"

    method: str = field(default="dep-l0", metadata=allow(OneOf(lambda: sorted(METHODS))))
    method_weight: float | None = field(default=None, metadata=allow(Maybe(Number(at_least=0))))
    generator: str = field(default="fc", metadata=allow(OneOf(lambda: sorted(GENERATORS))))
    direction: Direction = field(default="forward", metadata=allow(OneOf(get_args(Direction))))
    conditioning: Conditioning = field(default="log_alpha", metadata=allow(OneOf(get_args(Conditioning))))
    groups: str | tuple[str, ...] = field(default="all", metadata=allow(_GROUPS))
    alone: tuple[str, ...] = field(default=(), metadata=allow(ListOf(entry=Text("a layer's name"), distinct=True)))
    preset: str = field(default="default", metadata=allow(OneOf(lambda: PRESETS)))
    start: float | None = field(default=None, metadata=allow(Maybe(Number())))
    evaluation: EvaluationRule = field(default="median", metadata=allow(OneOf(get_args(EvaluationRule))))
    importance: FirstScores = field(default="taylor", metadata=allow(OneOf(get_args(FirstScores))))
    dependency: float = field(default=0.0, metadata=allow(Number(at_least=0, at_most=1)))

    def _check_together(self) -> None:
        method = METHODS[self.method]
        if isinstance(method, Learned) and method.generators and self.generator not in method.generators:
            words = f"{' or '.join(map(repr, method.generators))} where gates.method is {self.method!r}"
            raise refusal("gates.generator", words, self.generator, "set gates.method to 'dep-l0' for this generator.")
        if self.start is not None:
            try:
                PRESETS[self.preset].with_start(self.start)
            except InputError as error:
                raise InputError(f"recipe field gates.start cannot be used: {error.message}", error.hint) from error


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetSection(Section):
    """How much is pruned: exactly one of ``budget`` and ``penalty_weight`` is set.

    Attributes:
        budget: the share of the cost that may be left.
        of: the cost that the budget is a share of; ``latency`` is measured on this machine.
        round_to: every group keeps a multiple of so many channels, or all of them; 8, 16 or 32 suit most hardware.
            ``auto`` is the multiple that pays on the device, measured once and kept with the run.
        penalty_weight: λ, where the penalty has a fixed weight and the share follows from it.
        penalty: the expected cost that λ multiplies: ``params``, ``macs``, the paper's ``groups``, or ``chain`` and
            ``groups-k2``, which the authors' code has in its place (:mod:`depl0.paper.penalties`).
        penalty_scale: whether λ multiplies the ``count`` (of parameters, or of multiply-accumulates of one image), as
            published λ are meant, or the ``share`` of what the dense network costs.
        remove_blocks: whether layers that closed groups have made constant are taken out; else one channel stays.
    """

    title: ClassVar[str] = "target"

    budget: float | None = field(default=None, metadata=allow(Maybe(Number(above=0, at_most=1))))
    of: BudgetKind = field(default="macs", metadata=allow(OneOf(get_args(BudgetKind))))
    round_to: RoundTo = field(default=1, metadata=allow(Either(Whole(at_least=1), OneOf((AUTO,)))))
    penalty_weight: float | None = field(default=None, metadata=allow(Maybe(Number(at_least=0))))
    penalty: PenaltyKind = field(default="params", metadata=allow(OneOf(penalties)))
    penalty_scale: PenaltyScale = field(default="count", metadata=allow(OneOf(get_args(PenaltyScale))))
    remove_blocks: bool = field(default=False, metadata=allow(Flag()))

    def _check_together(self) -> None:
        if self.budget is None and self.penalty_weight is None:
            raise InputError(
                "recipe fields target.budget and target.penalty_weight are both left out; exactly one must be set.",
                hint="budget = 0.5 leaves half of the MACs.",
            )
        if self.budget is not None and self.penalty_weight is not None:
            raise InputError(
                f"recipe fields target.budget ({self.budget:g}) and target.penalty_weight ({self.penalty_weight:g}) "
                "are both set; exactly one must be.",
                hint="with a budget the weight of the penalty is found by itself.",
            )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchSection(Section):
    """The training with gates.

    Attributes:
        epochs: its length.
        gate_warmup: the share of it, at its start, during which all gates stay open and unpenalised.
        ramp: the share of it, after the warm-up, over which the target is lowered from all of the cost to the budget.
        label_smoothing: the share of every label that is spread over all classes, where the task has classes.
        clip_norm: the norm to which larger gradients of the weights are cut; left out: none are.
        ema_decay: decay of a running mean of the weights, which is then what is evaluated; left out: no mean is kept.
        distill: the share of the loss that comes from the outputs of the dense network that the run starts from, during
            search and fine-tuning; 0: none; left out: 0.9 where weights are given and the task says how to learn from
            outputs. It costs one more forward pass a step.
        distill_temperature: softens those outputs.
        distill_blocks: the weight of the error of block outputs against the dense network's, relative to their size,
            where pruning leaves their shape as it is; 0: they are not looked at; left out: 5 where there is
            distillation, and 0 with ``run.compile``, which cannot look.
        converged_change: the share of the gates that may have opened or closed while the search counts as settled.
        converged_epochs: the epochs that it must have been settled for to have converged; never before the target of a
            budget has come down to it, nor while every gate is open.
        dense_baseline: whether the dense network is trained too, for as long as search and fine-tuning take, to
            compare with; only where no weights are given.
    """

    title: ClassVar[str] = "search"

    epochs: int = field(metadata=allow(Whole(at_least=0)))
    gate_warmup: float = field(default=0.0, metadata=allow(Number(at_least=0, below=1)))
    ramp: float = field(default=0.6, metadata=allow(Number(at_least=0, at_most=1)))
    label_smoothing: float = field(default=0.0, metadata=allow(Number(at_least=0, below=1)))
    clip_norm: float | None = field(default=None, metadata=allow(Maybe(Number(above=0))))
    ema_decay: float | None = field(default=None, metadata=allow(Maybe(Number(above=0, below=1))))
    distill: float | None = field(default=None, metadata=allow(Maybe(Number(at_least=0, at_most=1))))
    distill_temperature: float = field(default=4.0, metadata=allow(Number(above=0)))
    distill_blocks: float | None = field(default=None, metadata=allow(Maybe(Number(at_least=0))))
    converged_change: float = field(default=0.01, metadata=allow(Number(at_least=0, below=1)))
    converged_epochs: float = field(default=5.0, metadata=allow(Number(above=0)))
    dense_baseline: bool = field(default=False, metadata=allow(Flag()))

    def _check_together(self) -> None:
        if self.gate_warmup + self.ramp > 1 + 1e-9:
            raise InputError(
                "recipe fields search.gate_warmup and search.ramp must together be at most 1, "
                f"got {self.gate_warmup:g} and {self.ramp:g} instead.",
                hint="both are shares of the search, one after the other.",
            )


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightOptimizerSection(Section):
    """SGD with momentum, for the weights of the network.

    Attributes:
        lr: the first learning rate (the highest one of ``one-cycle``).
        momentum: of the gradient.
        nesterov: whether the momentum looks ahead.
        weight_decay: on all weights of the network.
        schedule: how the rate changes during the search.
        milestones: the epochs at which a ``step`` schedule multiplies the rate by ``factor``.
        factor: what a ``step`` schedule multiplies the rate by at each milestone.
        warmup_epochs: the first epochs, during which the rate rises from 0.
    """

    title: ClassVar[str] = "weight_optimizer"

    lr: float = field(metadata=allow(Number(above=0)))
    momentum: float = field(default=0.9, metadata=allow(Number(at_least=0, below=1)))
    nesterov: bool = field(default=False, metadata=allow(Flag()))
    weight_decay: float = field(default=5e-4, metadata=allow(Number(at_least=0)))
    schedule: str = field(default="cosine", metadata=allow(OneOf(SCHEDULES)))
    milestones: tuple[int, ...] = field(default=(), metadata=allow(_MILESTONES))
    factor: float = field(default=0.1, metadata=allow(_FACTOR))
    warmup_epochs: float = field(default=0.0, metadata=allow(Number(at_least=0)))

    def _check_together(self) -> None:
        _check_steps(self.title, self.schedule, self.milestones)
        if self.nesterov and self.momentum == 0:
            raise refusal("weight_optimizer.momentum", "above 0 where nesterov is true", self.momentum)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class GateOptimizerSection(Section):
    """Adam, for the generator, without weight decay.

    Attributes:
        lr: the first learning rate; left out: chosen from the length of the search.
        schedule: how the rate changes during the search.
        milestones: the epochs at which a ``step`` schedule multiplies the rate by ``factor``.
        factor: what a ``step`` schedule multiplies the rate by at each milestone.
        betas: Adam's two decays.
    """

    title: ClassVar[str] = "gate_optimizer"

    lr: float | None = field(default=None, metadata=allow(Maybe(Number(above=0))))
    schedule: str = field(default="constant", metadata=allow(OneOf(SCHEDULES)))
    milestones: tuple[int, ...] = field(default=(), metadata=allow(_MILESTONES))
    factor: float = field(default=0.1, metadata=allow(_FACTOR))
    betas: tuple[float, float] = field(
        default=(0.9, 0.999), metadata=allow(ListOf(entry=Number(at_least=0, below=1), length=2))
    )

    def _check_together(self) -> None:
        _check_steps(self.title, self.schedule, self.milestones)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RecoverySection(Section):
    """What is done at the cut, for every method alike, so that less has to be trained back.

    Attributes:
        compensate: whether the layers behind closed channels are fitted anew, in closed form, to what they read after
            the cut. Batch-norm statistics are then not measured anew.
        renew_statistics: whether batch-norm statistics are measured anew for the frozen gates, and kept where the loss
            on other training batches falls.
    """

    title: ClassVar[str] = "recovery"

    compensate: bool = field(default=False, metadata=allow(Flag()))
    renew_statistics: bool = field(default=True, metadata=allow(Flag()))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneSection(Section):
    """The training after the search, with the gates as they are.

    Attributes:
        epochs: its length; 0: none.
        lr: the first learning rate; left out: a tenth of ``weight_optimizer.lr``.
        schedule: how the rate changes during fine-tuning; ``continued``: as in the search, whose schedule then covers
            both, so that there is one curve from the first step to the last, and ``lr`` is not looked at.
        milestones: the epochs of fine-tuning at which a ``step`` schedule multiplies the rate by ``factor``.
        factor: what a ``step`` schedule multiplies the rate by at each milestone.
        weight_decay: left out: that of ``weight_optimizer``. Its momentum is used too.
        gated: true: train the gated network with its gates frozen, as the paper does on ImageNet, and extract
            afterwards. False: extract first and train the compact network.
    """

    title: ClassVar[str] = "finetune"

    epochs: int = field(default=0, metadata=allow(Whole(at_least=0)))
    lr: float | None = field(default=None, metadata=allow(Maybe(Number(above=0))))
    schedule: str = field(default="cosine", metadata=allow(OneOf((*SCHEDULES, CONTINUED))))
    milestones: tuple[int, ...] = field(default=(), metadata=allow(_MILESTONES))
    factor: float = field(default=0.1, metadata=allow(_FACTOR))
    weight_decay: float | None = field(default=None, metadata=allow(Maybe(Number(at_least=0))))
    gated: bool = field(default=False, metadata=allow(Flag()))

    def _check_together(self) -> None:
        _check_steps(self.title, self.schedule, self.milestones)


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class DeploySection(Section):
    """What is done with the compact network when the run is finished.

    Attributes:
        then: ``nothing``, or ``int8``: write it as an int8 ONNX file, measured beside the dense and the float network.
        max_drop: how much of the metric int8 may lose; more is refused.
        calibration_images: training images that the ranges of activations are measured on.
    """

    title: ClassVar[str] = "deploy"

    then: str = field(default="nothing", metadata=allow(OneOf(("nothing", "int8"))))
    max_drop: float = field(default=1.0, metadata=allow(Number(at_least=0)))
    calibration_images: int = field(default=512, metadata=allow(Whole(at_least=1)))


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSection(Section):
    """How the training is executed.

    Attributes:
        seed: of everything random.
        precision: of the network's arithmetic; gates are always float32.
        device: ``auto``, or one that PyTorch knows: ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        trackers: where curves are sent.
        compact: when closed channels are cut out of the network: ``progressive`` (during the search, whenever it
            pays), ``once`` (when the search has converged, or at its end), ``never`` (after all training).
        checkpoint_minutes: least time between two checkpoints; 0: one after every epoch.
        checkpoint_steps: steps between two checkpoints; left out: ``checkpoint_minutes`` decides.
        keep_checkpoints: how many of the newest checkpoints are kept.
        on_nan: what happens on non-finite values: ``stop``, or ``rollback`` to the last checkpoint
            with half the learning rates.
        sync_bn: whether batch norms see the batch of all processes, not their own part alone.
        channels_last: how the weights of convolutions lie in memory: ``on``, ``off``, or ``auto``, which measures both
            before a long training and takes the faster one. Results differ by rounding.
        compile: whether training steps run as one graph of ``torch.compile``, gates included.
    """

    title: ClassVar[str] = "run"

    seed: int = field(default=0, metadata=allow(Whole(at_least=0, at_most=2**32 - 1)))
    precision: str = field(default="fp32", metadata=allow(OneOf(PRECISIONS)))
    device: str = field(default="auto", metadata=allow(Text("'auto', 'cpu', 'cuda', 'cuda:1', …", valid=_is_device)))
    trackers: tuple[str, ...] = field(
        default=("tensorboard",), metadata=allow(ListOf(entry=OneOf(TRACKERS), distinct=True))
    )
    compact: Compaction = field(default="progressive", metadata=allow(OneOf(get_args(Compaction))))
    checkpoint_minutes: float = field(default=10.0, metadata=allow(Number(at_least=0)))
    checkpoint_steps: int | None = field(default=None, metadata=allow(Maybe(Whole(at_least=1))))
    keep_checkpoints: int = field(default=2, metadata=allow(Whole(at_least=1)))
    on_nan: str = field(default="stop", metadata=allow(OneOf(("stop", "rollback"))))
    sync_bn: bool = field(default=False, metadata=allow(Flag()))
    channels_last: str = field(default="auto", metadata=allow(OneOf(CHANNELS_LAST)))
    compile: bool = field(default=False, metadata=allow(Flag()))


SECTIONS: Mapping[str, type[Section]] = MappingProxyType(
    {
        section.title: section
        for section in (
            ModelSection,
            DataSection,
            TaskSection,
            GatesSection,
            TargetSection,
            SearchSection,
            WeightOptimizerSection,
            GateOptimizerSection,
            RecoverySection,
            FinetuneSection,
            DeploySection,
            RunSection,
        )
    }
)
"""The sections of a recipe by their names, in the order in which they are written."""
