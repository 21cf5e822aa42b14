"""The sections of a recipe: one for each part of a training.

A setting of the library has the same name here: [gates] has the fields of :class:`~depl0.config.GateConfig`, [search]
those of :class:`~depl0.search.SearchConfig`. The text below a field is what ``depl0 recipes fields`` prints.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias, final

import annotated_types as at
from pydantic import Strict, model_validator
from typing_extensions import Self

from depl0._util.registry import unknown
from depl0.app.data.base import DataFields
from depl0.app.methods import METHODS, Learned, Method, Scored
from depl0.app.models.spec import check_spec
from depl0.app.schema import (
    Above0,
    BelowOne,
    Count,
    Distinct,
    Flag,
    Increasing,
    Name,
    NonNegative,
    Number,
    Positive,
    Schema,
    Seed,
    Share,
    ShareAbove0,
    Text,
    checked,
    only,
    shown,
)
from depl0.app.tasks import TASKS
from depl0.config import Draw, EvaluationRule, PenaltyScale, Runtime
from depl0.costs.expected import PENALTIES
from depl0.errors import InputError
from depl0.gates.generators import GENERATORS, PRESETS, Direction
from depl0.gates.threshold import BudgetKind
from depl0.search.config import FirstScores
from depl0.search.recovery.distillation import BLOCKS, TEMPERATURE

Schedule: TypeAlias = Literal["constant", "step", "cosine"]
Cut: TypeAlias = Literal["progressive", "never"]
Precision: TypeAlias = Literal["fp32", "bf16", "fp16"]
Tracker: TypeAlias = Literal["tensorboard", "wandb", "mlflow"]
CONTINUED = "continued"
"""the fine-tuning schedule that continues the search's learning-rate curve"""


def refusal(name: str, words: str, value: object, hint: str | None = None) -> InputError:
    """Return the error for a value that conflicts with other fields."""
    return InputError(f"recipe field {name} must be {words}, got {shown(value)} instead.", hint=hint)


def _check_penalty(kind: str) -> None:
    known = ("params", "macs", "groups", *sorted(PENALTIES))  # other packages add to them
    if kind not in known:
        raise unknown("kind of penalty", kind, known)


_Setting: TypeAlias = Flag | Annotated[int, Strict()] | Number | Name
Milestones = Annotated[tuple[Positive, ...], Increasing]


class Section(Schema):
    """Base of the sections of a recipe."""

    title: ClassVar[str]

    @classmethod
    def called(cls, field: str) -> str:
        """Return the name of a field in error messages."""
        return f"recipe field {cls.title}.{field}"


@final
class ModelSection(Section):
    """The network."""

    title = "model"

    spec: Annotated[Name, checked(check_spec)] = "resnet56"
    """Built-in name (resnet56), torchvision:NAME, timm:NAME, or a callable that returns a module:
    my_package.nets:make or path/to/file.py:make."""
    weights: Text = ""
    """File with weights to start from; empty: train from scratch."""
    pretrained: Flag = False
    """Start from the weights that timm or torchvision publish. Your own callable receives pretrained=True if its
    signature has it, and is expected to return a trained network."""
    allow_chance: Flag = False
    """Prune a trained network that does no better than guessing on the test images.

    Without it the run stops: the images are probably not preprocessed as in the network's training.
    """

    @model_validator(mode="after")
    def _check_start(self) -> Self:
        if self.pretrained and self.weights:
            raise InputError("recipe fields model.weights and model.pretrained are both set; at most one may be.")
        if self.pretrained and ":" not in self.spec:
            words = "false for a built-in network, which comes without weights"
            raise refusal("model.pretrained", words, True, "set model.weights to a file.")
        return self

    @property
    def starts_trained(self) -> bool:
        """Whether the recipe names trained weights to start from."""
        return bool(self.weights) or self.pretrained


class _DataSpec(Section):
    """A separate class, because the fields of the last base come first."""

    spec: Name = "digits"
    """Data set: digits, mnist:DIR, fashion-mnist:DIR, cifar10:DIR, cifar100:DIR, folder:DIR or module:make."""


@final
class DataSection(DataFields, _DataSpec):
    """The images."""

    title = "data"

    @model_validator(mode="after")
    def _check_normalisation(self) -> Self:
        if (self.mean is None) != (self.std is None) or (self.mean and self.std and len(self.mean) != len(self.std)):
            raise InputError(
                "recipe fields data.mean and data.std must have one number per channel each, or both be left out, "
                f"got mean {shown(self.mean)} and std {shown(self.std)} instead."
            )
        return self


@final
class TaskSection(Section):
    """Loss and metric."""

    title = "task"

    spec: Annotated[Name, checked(TASKS.check)] = "classification"
    """classification, segmentation, regression, or your own: my_package.tasks:Name or path/to/file.py:Name."""
    settings: dict[Name, _Setting] | None = None
    """Arguments of the task by name, e.g. {label_smoothing = 0.1}."""


@final
class GatesSection(Section):
    """Gates, their generator and the budget: the fields of GateConfig, and the pruning method."""

    title = "gates"

    method: Annotated[Name, checked(METHODS.check)] = "dep-l0"
    """dep-l0; l0-hc (independent gates); or a method that scores channels, which needs a budget and no generator. Your
    own: my_package.methods:Name or path/to/file.py:Name."""
    method_weight: NonNegative | None = None
    """Weight of the term that the method adds to the loss (default: the method's own; slimming: 1e-4)."""
    generator: Annotated[Name, checked(GENERATORS.check)] = "fc"
    """Network that computes the log α of every group. Your own: my_package.gates:Name or path/to/file.py:Name."""
    direction: Direction = "forward"
    """Order in which the generator visits the groups."""
    draw: Draw = "batch"
    """Whether gates are sampled once for the batch, or for each image as in the authors' code (more memory)."""
    groups: Literal["all", "inner"] | Annotated[tuple[Name, ...], at.MinLen(1)] = "all"
    """all, inner (groups that no shortcut is added to), or a list of names or shell patterns."""
    alone: Annotated[tuple[Name, ...], Distinct] = ()
    """Layers whose output is gated although it is added to a shortcut; nothing is cut for these gates. Ignored with a
    budget and by methods that score channels."""
    preset: Annotated[Name, only(lambda name: name in PRESETS, f"one of {', '.join(PRESETS)}")] = "default"
    """Scaling and initialisation of the generator."""
    start: Number | None = None
    """Initial log α of every gate (default: the preset's)."""
    evaluation: EvaluationRule = "median"
    """Rule for the gates outside training."""
    budget: ShareAbove0 | None = None
    """Fraction of the cost to keep."""
    of: BudgetKind = "macs"
    """Cost that the budget is a fraction of; latency is measured on this machine."""
    runtime: Runtime = "pytorch"
    """Runtime that a budget of latency is measured in; onnxruntime if the network is deployed so."""
    round_to: Positive = 1
    """Keep a multiple of this many channels in every group, or all of them."""
    remove_blocks: Flag = False
    """Remove layers that closed groups have made constant, instead of keeping one channel."""
    min_share: Share = 0.0
    """Fraction of its channels that every group keeps at least."""

    def check_method(self, method: Method | None) -> None:
        """Raise if a field conflicts with the method; None: a user-defined method, which is imported later."""
        if isinstance(method, Learned) and method.generators and self.generator not in method.generators:
            words = f"{' or '.join(map(repr, method.generators))} where gates.method is {self.method!r}"
            raise refusal("gates.generator", words, self.generator, "set gates.method to 'dep-l0' for this generator.")
        if isinstance(method, Scored) and self.budget is None:
            raise InputError(
                f"recipe field gates.budget must be set where gates.method is {self.method!r}: its channels are "
                "chosen by their scores, and a penalty weight says nothing about how many stay.",
                hint="gates.budget = 0.5 keeps half of the MACs.",
            )

    @model_validator(mode="after")
    def _check_generator(self) -> Self:
        self.check_method(METHODS.get(self.method))
        return self


@final
class PenaltySection(Section):
    """A penalty of fixed weight instead of a budget, as in the paper."""

    title = "penalty"

    weight: NonNegative | None = None
    """λ; how much is kept follows from it. Exactly one of penalty.weight and gates.budget is set."""
    kind: Annotated[Name, checked(_check_penalty)] = "params"
    """Expected cost that λ multiplies: params, macs, groups (the paper's), or chain and groups-k2 (the authors')."""
    scale: PenaltyScale = "count"
    """Whether λ multiplies a count, as published values do, or the fraction of the dense network's cost."""


@final
class SearchSection(Section):
    """Training with gates: the fields of SearchConfig, and the training's own."""

    title = "search"

    epochs: Count
    """Number of epochs."""
    warmup: BelowOne = 0.0
    """Fraction of the search, at its start, during which all gates stay open."""
    ramp: Share = 0.6
    """Fraction of the search, after the warm-up, over which the target falls from the full cost to the budget."""
    cut: Cut = "progressive"
    """When closed channels are removed: progressive (during the search, whenever it pays) or never (after all
    training)."""
    first_scores: FirstScores = "taylor"
    """Initial scores with a budget and a trained network: taylor (first-order change of the loss), reconstruction
    (error that remains after refitting downstream layers) or none."""
    compensate: Flag = False
    """Refit downstream layers by least squares after pruning."""
    renew_statistics: Flag = True
    """Re-estimate batch-norm statistics for the frozen gates, and keep them if the loss falls."""
    clip_norm: Above0 | None = None
    """Clip the gradient norm of the weights (default: no clipping)."""
    dense_baseline: Flag = False
    """Also train the dense network, for as long as search and fine-tuning, to compare with; only without weights."""

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        if self.warmup + self.ramp > 1 + 1e-9:
            raise InputError(
                "recipe fields search.warmup and search.ramp must together be at most 1, "
                f"got {self.warmup:g} and {self.ramp:g} instead.",
                hint="both are fractions of the search, one after the other.",
            )
        return self


@final
class DistillSection(Section):
    """Distillation from the dense network that the run starts from, during search and fine-tuning."""

    title = "distill"

    weight: Share | None = None
    """Fraction of the loss that comes from the dense network's outputs; costs one more forward pass per step (default:
    0.9 if the run starts from trained weights and the task can be distilled, else 0)."""
    temperature: Above0 = TEMPERATURE
    """Softens the dense network's outputs."""
    blocks: NonNegative = BLOCKS
    """Weight of the relative error of block outputs whose shape pruning keeps."""


@final
class WeightOptimizerSection(Section):
    """SGD with momentum, for the weights of the network."""

    title = "weight_optimizer"

    lr: Above0
    """Initial learning rate."""
    momentum: BelowOne = 0.9
    """Momentum."""
    nesterov: Flag = False
    """Nesterov momentum."""
    weight_decay: NonNegative = 5e-4
    """Weight decay on all weights of the network."""
    schedule: Schedule = "cosine"
    """Learning-rate schedule of the search."""
    milestones: Milestones = ()
    """Epochs at which a step schedule multiplies the rate by factor."""
    factor: ShareAbove0 = 0.1
    """Factor of a step schedule."""
    warmup_epochs: NonNegative = 0.0
    """Epochs over which the rate rises from 0."""


@final
class GateOptimizerSection(Section):
    """Adam without weight decay, for the generator."""

    title = "gate_optimizer"

    lr: Above0 | None = None
    """Initial learning rate (default: chosen from the length of the search)."""
    schedule: Schedule = "constant"
    """Learning-rate schedule of the search."""
    milestones: Milestones = ()
    """Epochs at which a step schedule multiplies the rate by factor."""
    factor: ShareAbove0 = 0.1
    """Factor of a step schedule."""


@final
class FinetuneSection(Section):
    """Training after the search, with fixed gates."""

    title = "finetune"

    epochs: Count = 0
    """Number of epochs."""
    lr: Above0 | None = None
    """Initial learning rate (default: a tenth of weight_optimizer.lr)."""
    schedule: Literal["constant", "step", "cosine", "continued"] = "cosine"
    """Learning-rate schedule; continued: the search's schedule covers both phases, and lr is ignored."""
    milestones: Milestones = ()
    """Epochs of fine-tuning at which a step schedule multiplies the rate by factor."""
    factor: ShareAbove0 = 0.1
    """Factor of a step schedule."""
    gated: Flag = False
    """Fine-tune the gated network and extract afterwards, as the paper does on ImageNet, instead of extracting
    first."""
    recover: Count = 0
    """Steps of label-free recovery right after the cut, at most: the compact network is distilled from the dense
    network, while that improves it. --quick sets 600."""


@final
class RunSection(Section):
    """How the training is executed."""

    title = "run"

    seed: Seed = 0
    """Random seed."""
    precision: Precision = "fp32"
    """Floating-point precision for training; gates are always float32."""
    device: Name = "auto"
    """auto, cpu, cuda, cuda:1, mps."""
    trackers: Annotated[tuple[Tracker, ...], Distinct] = ("tensorboard",)
    """Experiment trackers to log to."""
    checkpoint_minutes: NonNegative = 10.0
    """Minimum minutes between two checkpoints; 0: one after every epoch."""
    checkpoint_steps: Positive | None = None
    """Steps between two checkpoints (default: checkpoint_minutes decides)."""
    keep_checkpoints: Positive = 2
    """Number of checkpoints to keep."""
    gates_steps: Positive | None = None
    """Steps between two lines of gates.jsonl (default: one line per epoch)."""
    channels_last: Flag = False
    """Keep convolutions in the channels-last memory format, which is often faster. Results differ by rounding."""
