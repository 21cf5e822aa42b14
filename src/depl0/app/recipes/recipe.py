"""A recipe: the complete description of a training, as frozen data. It is validated when it is made."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, final, get_type_hints

from pydantic import model_validator
from typing_extensions import Self

from depl0._util.user_code import shown_spec
from depl0.app.methods import METHODS, Learned, Method, Scored
from depl0.app.recipes import sections as sec
from depl0.app.recipes.sections import CONTINUED, Section, refusal
from depl0.app.schema import FileName
from depl0.app.tasks import Task, find_task
from depl0.errors import InputError
from depl0.search.recovery.distillation import WEIGHT

FINETUNE_LR_SHARE = 0.1
"""default of ``finetune.lr``, as a fraction of ``weight_optimizer.lr``"""


@final
class Recipe(Section):
    """The complete description of a training. A run is one execution of it."""

    title: ClassVar[str] = ""

    name: FileName
    model: sec.ModelSection = sec.ModelSection()
    data: sec.DataSection = sec.DataSection()
    task: sec.TaskSection = sec.TaskSection()
    gates: sec.GatesSection = sec.GatesSection()
    penalty: sec.PenaltySection = sec.PenaltySection()
    search: sec.SearchSection
    distill: sec.DistillSection = sec.DistillSection()
    weight_optimizer: sec.WeightOptimizerSection
    gate_optimizer: sec.GateOptimizerSection = sec.GateOptimizerSection()
    finetune: sec.FinetuneSection = sec.FinetuneSection()
    run: sec.RunSection = sec.RunSection()

    @classmethod
    def called(cls, field: str) -> str:
        """Return the name of a field in error messages."""
        return f"recipe field {field}"

    @model_validator(mode="after")
    def _check_target(self) -> Self:
        budget, weight = self.gates.budget, self.penalty.weight
        if budget is None and weight is None:
            raise InputError(
                "recipe fields gates.budget and penalty.weight are both left out; exactly one must be set.",
                hint="gates.budget = 0.5 keeps half of the MACs.",
            )
        if budget is not None and weight is not None:
            raise InputError(
                f"recipe fields gates.budget ({budget:g}) and penalty.weight ({weight:g}) are both set; exactly one "
                "must be.",
                hint="with a budget the weight of the penalty is found automatically.",
            )
        return self

    @model_validator(mode="after")
    def _check_schedules(self) -> Self:
        for section in (self.weight_optimizer, self.gate_optimizer, self.finetune):
            if section.schedule == "step" and not section.milestones:
                words = "a list of at least one epoch where the schedule is 'step'"
                raise refusal(f"{section.title}.milestones", words, [], "schedule = 'constant' needs no milestones.")
        return self

    @model_validator(mode="after")
    def _check_distillation(self) -> Self:
        if self.distill.weight and not self.model.starts_trained:
            raise refusal(
                "distill.weight",
                "0 where model.weights is empty and model.pretrained false",
                self.distill.weight,
                "distillation needs a trained dense network: set model.weights or model.pretrained.",
            )
        return self

    @property
    def one_shot(self) -> bool:
        """Whether there is no search: the method needs no training of its own, and the weights are trained already."""
        method = method_of(self)
        return isinstance(method, Scored) and not method.trains and self.model.starts_trained

    @property
    def search_epochs(self) -> int:
        """Epochs before the network is cut."""
        return 0 if self.one_shot else self.search.epochs

    @property
    def finetune_epochs(self) -> int:
        """Epochs after the cut. Without a search they include its epochs, so that the totals agree."""
        return self.finetune.epochs + self.search.epochs - self.search_epochs

    @property
    def has_one_curve(self) -> bool:
        """Whether one learning-rate curve covers search and fine-tuning."""
        return self.finetune.schedule == CONTINUED

    @property
    def finetune_lr(self) -> float:
        """Initial learning rate of fine-tuning, with its default."""
        if self.has_one_curve:
            return self.weight_optimizer.lr
        return self.weight_optimizer.lr * FINETUNE_LR_SHARE if self.finetune.lr is None else self.finetune.lr


SECTIONS: Mapping[str, type[Section]] = MappingProxyType(
    {
        name: kind
        for name, kind in get_type_hints(Recipe).items()
        if isinstance(kind, type) and issubclass(kind, Section)
    }
)
"""The sections of a recipe by name, in the order in which they are written."""


def task_of(recipe: Recipe) -> Task:
    """Return the task that a recipe names, with its settings; a user-defined task is imported here.

    >>> from depl0.app.recipes import catalog
    >>> task_of(catalog.get("digits"))
    Classification(label_smoothing=0.0)
    """
    section = recipe.task
    task = find_task(section.spec, **(section.settings or {}))
    if recipe.distill.weight and not task.distills:
        raise InputError(
            f"recipe field distill.weight must be 0 where task.spec is {section.spec!r}, got "
            f"{recipe.distill.weight:g} instead: the task does not support distillation.",
            hint="add a method distill(outputs, wanted, temperature) to the task, or leave distill.weight out.",
        )
    return task


def method_of(recipe: Recipe) -> Method:
    """Return the method that a recipe names.

    A user-defined method is imported here, and the other fields are checked.
    """
    method = METHODS.find(recipe.gates.method)
    recipe.gates.check_method(method)
    return method


def distill_share(recipe: Recipe, task: Task) -> float:
    """Return the weight of the distillation loss, with its default: 0 if the task does not support distillation."""
    if not task.distills:
        return 0.0
    own = recipe.distill.weight
    return own if own is not None else WEIGHT if recipe.model.starts_trained else 0.0


def folder_name(name: str) -> str:
    """Return the folder name for a method or generator, which may be defined in a user's file.

    >>> folder_name("dep-l0"), folder_name("/home/me/mine.py:Mine")
    ('dep-l0', 'mine-Mine')
    """
    return shown_spec(name).replace(".py:", "-").replace(":", "-")


def for_method(recipe: Recipe, name: str) -> dict[str, object]:
    """Return the fields to change so that a recipe uses a method: its name, and a generator that the method allows.

    >>> from depl0.app.recipes import catalog
    >>> for_method(catalog.get("digits"), "l0-hc")
    {'name': 'digits-l0-hc', 'gates.method': 'l0-hc', 'gates.generator': 'independent'}
    >>> for_method(catalog.get("digits"), "fpgm")
    {'name': 'digits-fpgm', 'gates.method': 'fpgm'}
    """
    METHODS.check(name)
    if name == recipe.gates.method:
        return {}
    fields: dict[str, object] = {"name": f"{recipe.name}-{folder_name(name)}", "gates.method": name}
    method, had = METHODS.get(name), METHODS.get(recipe.gates.method)  # a user-defined one is not imported here
    if isinstance(method, Learned):
        if method.generators is not None and recipe.gates.generator not in method.generators:
            fields["gates.generator"] = method.generators[0]
        elif method.generators is None and isinstance(had, Learned) and had.generators is not None:
            fields["gates.generator"] = sec.GatesSection().generator  # the previous method required the old one
    return fields
