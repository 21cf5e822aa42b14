"""A recipe is frozen data that refuses wrong values by the name of the field."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import get_args

import pytest
from pydantic import ValidationError

from depl0.app.recipes import (
    SECTIONS,
    DataSection,
    DistillSection,
    FinetuneSection,
    GateOptimizerSection,
    GatesSection,
    ModelSection,
    PenaltySection,
    Recipe,
    RunSection,
    SearchSection,
    TaskSection,
    WeightOptimizerSection,
)
from depl0.app.recipes.recipe import DISTILL, DISTILL_BLOCKS
from depl0.app.schema import accepts
from depl0.config import EvaluationRule, GateConfig
from depl0.errors import InputError
from depl0.gates import RULES
from depl0.search.config import SearchConfig
from depl0.search.recovery.distillation import BLOCKS, TEMPERATURE, WEIGHT


def recipe(**sections):
    needed = {
        "gates": GatesSection(budget=0.5),
        "search": SearchSection(epochs=3),
        "weight_optimizer": WeightOptimizerSection(lr=0.1),
    }
    return Recipe(name="mine", **{**needed, **sections})


def test_nothing_can_be_changed():
    r = recipe()
    with pytest.raises(ValidationError, match="frozen"):
        r.name = "yours"
    with pytest.raises(ValidationError, match="frozen"):
        r.search.epochs = 4


def test_values_are_stored_in_one_form():
    optimizer = WeightOptimizerSection(lr=1, schedule="step", milestones=[2, 4])
    assert optimizer == WeightOptimizerSection(lr=1.0, schedule="step", milestones=(2, 4))
    assert (type(optimizer.lr), type(optimizer.milestones)) == (float, tuple)
    assert DataSection(mean=[0, 1], std=[1, 2]).mean == (0.0, 1.0)
    assert hash(GatesSection(groups=["a", "-b*"])) == hash(GatesSection(groups=("a", "-b*")))


def test_what_fine_tuning_takes_from_the_weights_optimizer():
    weights = WeightOptimizerSection(lr=0.5, weight_decay=1e-3)
    left_out = recipe(weight_optimizer=weights)
    assert (left_out.finetune_lr, left_out.finetune_weight_decay) == (0.05, 1e-3)
    own = recipe(weight_optimizer=weights, finetune=FinetuneSection(lr=0.2, weight_decay=0.0))
    assert (own.finetune_lr, own.finetune_weight_decay) == (0.2, 0.0)


METHODS = (
    "one of 'dep-l0', 'fpgm', 'hrank', 'l0-hc', 'l1-norm', 'random', 'reconstruction', 'sfp', 'slimming', 'taylor', "
    "or path/to/file.py:Name"
)
TABLE = "a table of names in which every value is true, false, a number or a line of text"
LIST = "a list in which every entry is"
WHOLE = "an integer of at least"
SIDES = "a list of 2 in which every entry is an integer of at least 1"
SCHEDULES = "one of 'constant', 'step', 'cosine', 'one-cycle'"

REFUSED = [
    (SearchSection, "search.compensate", "yes", "true or false"),
    (SearchSection, "search.renew_statistics", 1, "true or false"),
    (GatesSection, "gates.alone", ["conv1", "conv1"], f"{LIST} a layer's name, without duplicates"),
    (PenaltySection, "penalty.scale", "whole", "one of 'share', 'count'"),
    (SearchSection, "search.epochs", -1, f"{WHOLE} 0"),
    (SearchSection, "search.epochs", 2.0, f"{WHOLE} 0"),
    (SearchSection, "search.epochs", True, f"{WHOLE} 0"),
    (SearchSection, "search.epochs", "20", f"{WHOLE} 0"),
    (SearchSection, "search.epochs", None, f"{WHOLE} 0"),
    (SearchSection, "search.warmup", 1.0, "a number of at least 0 and below 1"),
    (SearchSection, "search.ramp", 1.1, "a number of at least 0 and at most 1"),
    (SearchSection, "search.label_smoothing", math.nan, "a number of at least 0 and below 1"),
    (SearchSection, "search.clip_norm", 0.0, "a number above 0, or left out"),
    (SearchSection, "search.clip_norm", math.inf, "a number above 0, or left out"),
    (SearchSection, "search.ema_decay", 1.0, "a number above 0 and below 1, or left out"),
    (DistillSection, "distill.weight", 1.5, "a number of at least 0 and at most 1, or left out"),
    (DistillSection, "distill.temperature", 0, "a number above 0"),
    (DistillSection, "distill.blocks", -1, "a number of at least 0, or left out"),
    (SearchSection, "search.dependency", 2, "a number of at least 0 and at most 1"),
    (SearchSection, "search.converged_change", 1.0, "a number of at least 0 and below 1"),
    (SearchSection, "search.converged_after", 0.0, "a number above 0 and at most 1"),
    (SearchSection, "search.dense_baseline", 0, "true or false"),
    (ModelSection, "model.spec", "", "a model's name or module:callable"),
    (ModelSection, "model.weights", 3, "a file's name, or empty"),
    (ModelSection, "model.weights", "a\nb", "a file's name, or empty"),
    (ModelSection, "model.weights", "\ud800", "a file's name, or empty"),
    (ModelSection, "model.pretrained", "yes", "true or false"),
    (ModelSection, "model.strict", 1, "true or false"),
    (TaskSection, "task.spec", "", "a task's name or module:class"),
    (TaskSection, "task.spec", "segmentaton", "a task's name or module:class"),
    (TaskSection, "task.spec", "tasks.py:", "a task's name or module:class"),
    (TaskSection, "task.settings", {"a b": 1}, f"{TABLE}, or left out"),
    (TaskSection, "task.settings", {"a": [1]}, f"{TABLE}, or left out"),
    (TaskSection, "task.settings", 3, f"{TABLE}, or left out"),
    (DataSection, "data.spec", "", "the name of a data set"),
    (DataSection, "data.batch_size", 0, f"{WHOLE} 1"),
    (DataSection, "data.eval_batch_size", 0, f"{WHOLE} 1"),
    (DataSection, "data.mean", [], "a non-empty list in which every entry is a finite number, or left out"),
    (DataSection, "data.mean", 0.5, "a non-empty list in which every entry is a finite number, or left out"),
    (DataSection, "data.std", [0.0], "a non-empty list in which every entry is a number above 0, or left out"),
    (DataSection, "data.augment", "flip", "one of 'default', 'none', 'crop', 'crop-flip', 'imagenet'"),
    (DataSection, "data.crop_padding", -1, f"{WHOLE} 0"),
    (DataSection, "data.image_size", 0, f"{WHOLE} 1, or {SIDES}, or left out"),
    (DataSection, "data.image_size", [8], f"{WHOLE} 1, or {SIDES}, or left out"),
    (DataSection, "data.crop_share", 0.0, "a number above 0 and at most 1, or left out"),
    (DataSection, "data.interpolation", "nearest", "one of 'bilinear', 'bicubic', or left out"),
    (DataSection, "data.limit_train", -1, f"{WHOLE} 0"),
    (DataSection, "data.limit_test", -1, f"{WHOLE} 0"),
    (ModelSection, "model.allow_chance", 1, "true or false"),
    (RunSection, "run.examples", -1, f"{WHOLE} 0"),
    (DataSection, "data.epoch_images", -1, f"{WHOLE} 0"),
    (DataSection, "data.validation", 1.0, "a number of at least 0 and below 1"),
    (DataSection, "data.workers", -1, f"{WHOLE} 0, or left out"),
    (GatesSection, "gates.method", "l1", METHODS),
    (GatesSection, "gates.method_weight", -1, "a number of at least 0, or left out"),
    (GatesSection, "gates.direction", "up", "one of 'forward', 'backward'"),
    (GatesSection, "gates.conditioning", "weights", "one of 'log_alpha', 'gates'"),
    (GatesSection, "gates.draw", "example", "one of 'batch', 'image'"),
    (GatesSection, "gates.preset", "mine", "one of 'default', 'paper', 'reference', 'reference-vgg16'"),
    (GatesSection, "gates.evaluation", "mean", "one of 'median', 'paper'"),
    (SearchSection, "search.first_scores", "hessian", "one of 'taylor', 'reconstruction', 'none'"),
    (GatesSection, "gates.budget", 0.0, "a number above 0 and at most 1, or left out"),
    (GatesSection, "gates.budget", 1.5, "a number above 0 and at most 1, or left out"),
    (GatesSection, "gates.of", "seconds", "one of 'macs', 'params', 'latency'"),
    (GatesSection, "gates.round_to", 0, "an integer of at least 1, or 'auto'"),
    (GatesSection, "gates.round_to", "automatic", "an integer of at least 1, or 'auto'"),
    (PenaltySection, "penalty.weight", -1e-7, "a number of at least 0, or left out"),
    (PenaltySection, "penalty.kind", "flops", "one of 'params', 'macs', 'groups', 'chain', 'groups-k2'"),
    (GatesSection, "gates.remove_blocks", 1, "true or false"),
    (GatesSection, "gates.min_share", 1.5, "a number of at least 0 and at most 1"),
    (WeightOptimizerSection, "weight_optimizer.lr", 0, "a number above 0"),
    (WeightOptimizerSection, "weight_optimizer.momentum", 1, "a number of at least 0 and below 1"),
    (WeightOptimizerSection, "weight_optimizer.nesterov", 1, "true or false"),
    (WeightOptimizerSection, "weight_optimizer.weight_decay", -1, "a number of at least 0"),
    (WeightOptimizerSection, "weight_optimizer.schedule", "linear", SCHEDULES),
    (WeightOptimizerSection, "weight_optimizer.factor", 0, "a number above 0 and at most 1"),
    (WeightOptimizerSection, "weight_optimizer.warmup_epochs", -0.5, "a number of at least 0"),
    (GateOptimizerSection, "gate_optimizer.lr", 0, "a number above 0, or left out"),
    (GateOptimizerSection, "gate_optimizer.schedule", "linear", SCHEDULES),
    (GateOptimizerSection, "gate_optimizer.factor", 1.1, "a number above 0 and at most 1"),
    (FinetuneSection, "finetune.epochs", -1, f"{WHOLE} 0"),
    (FinetuneSection, "finetune.recover", -1, f"{WHOLE} 0"),
    (FinetuneSection, "finetune.lr", -1, "a number above 0, or left out"),
    (FinetuneSection, "finetune.schedule", 1, f"{SCHEDULES}, 'continued'"),
    (FinetuneSection, "finetune.factor", 0, "a number above 0 and at most 1"),
    (FinetuneSection, "finetune.weight_decay", -1, "a number of at least 0, or left out"),
    (FinetuneSection, "finetune.gated", "yes", "true or false"),
    (RunSection, "run.seed", -1, "an integer from 0 to 4294967295"),
    (RunSection, "run.seed", 2**32, "an integer from 0 to 4294967295"),
    (RunSection, "run.precision", "fp8", "one of 'fp32', 'bf16', 'fp16'"),
    (RunSection, "run.device", "abacus", "'auto', 'cpu', 'cuda', 'cuda:1', …"),
    (SearchSection, "search.cut", "twice", "one of 'progressive', 'once', 'never'"),
    (RunSection, "run.checkpoint_minutes", -1, "a number of at least 0"),
    (RunSection, "run.checkpoint_steps", 0, f"{WHOLE} 1, or left out"),
    (RunSection, "run.keep_checkpoints", 0, f"{WHOLE} 1"),
    (RunSection, "run.gates_steps", 0, f"{WHOLE} 1, or left out"),
    (RunSection, "run.on_nan", "pray", "one of 'stop', 'rollback'"),
    (RunSection, "run.sync_bn", "yes", "true or false"),
    (RunSection, "run.channels_last", True, "one of 'auto', 'on', 'off'"),
    (RunSection, "run.compile", "yes", "true or false"),
    *(
        (kind, f"{kind.title}.milestones", value, f"a list in increasing order in which every entry is {WHOLE} 1")
        for kind in (WeightOptimizerSection, GateOptimizerSection, FinetuneSection)
        for value in ([0], [2, 2], [3, 2], 60, ["60"])
    ),
    *(
        (
            GateOptimizerSection,
            "gate_optimizer.betas",
            value,
            "a list of 2 in which every entry is a number of at least 0 and below 1",
        )
        for value in ([0.9], [0.9, 1.0], [0.9, 0.9, 0.9])
    ),
    *(
        (
            RunSection,
            "run.trackers",
            value,
            "a list in which every entry is one of 'tensorboard', 'wandb', 'mlflow', without duplicates",
        )
        for value in (["aim"], ["wandb", "wandb"], "wandb")
    ),
]


@pytest.mark.parametrize(("kind", "field", "value", "allowed"), REFUSED)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(kind, field, value, allowed):
    needed = {SearchSection: {"epochs": 1}, WeightOptimizerSection: {"lr": 0.1}}.get(kind, {})
    with pytest.raises(InputError) as caught:
        kind(**{**needed, field.partition(".")[2]: value})
    assert caught.value.message == f"recipe field {field} must be {allowed}, got {value!r} instead."


def test_every_field_but_free_ones_is_refused_somewhere_above():
    tried = {field for _, field, _, _ in REFUSED}
    every = {f"{title}.{name}" for title, kind in SECTIONS.items() for name in kind.model_fields}
    assert every - tried == {"gates.generator", "gates.groups", "gates.start"}  # they have tests of their own


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: GatesSection(generator="fcc"),
            "recipe field gates.generator must be one of 'bias', 'conv1d', 'conv1d-deep', 'fc', 'fc-relu', "
            "'fc-tanh', 'independent', 'lstm', 'lstm-shared', or path/to/file.py:Name, got 'fcc' instead.\n"
            "hint: did you mean fc?",
        ),
        (
            lambda: GatesSection(groups="iner"),
            "recipe field gates.groups must be one of 'all', 'inner', or a non-empty list in which every entry "
            "is a group's name, got 'iner' instead.\nhint: did you mean inner?",
        ),
        (
            lambda: GatesSection(groups=[]),
            "recipe field gates.groups must be one of 'all', 'inner', or a non-empty list in which every entry "
            "is a group's name, got [] instead.",
        ),
        (
            lambda: GatesSection(start="4"),
            "recipe field gates.start must be a finite number, or left out, got '4' instead.",
        ),
        (
            lambda: GatesSection(start=6.9),
            "recipe field gates.start cannot be used: The 'start' of a Preset must be None or between -6.77 and 6.77 "
            "(0.98 of the bound), got 6.9 instead.",
        ),
        (
            lambda: GatesSection(method="l0-hc"),
            "recipe field gates.generator must be 'independent' where gates.method is 'l0-hc', got 'fc' instead.\n"
            "hint: set gates.method to 'dep-l0' for this generator.",
        ),
        (
            lambda: recipe(gates=GatesSection(method="fpgm"), penalty=PenaltySection(weight=1e-6)),
            "recipe field gates.budget must be set where gates.method is 'fpgm': its channels are chosen by their "
            "scores, and a penalty weight says nothing about how many stay.\n"
            "hint: gates.budget = 0.5 keeps half of the MACs.",
        ),
        (
            lambda: recipe(gates=GatesSection()),
            "recipe fields gates.budget and penalty.weight are both left out; exactly one must be set.\n"
            "hint: gates.budget = 0.5 keeps half of the MACs.",
        ),
        (
            lambda: recipe(penalty=PenaltySection(weight=1e-6)),
            "recipe fields gates.budget (0.5) and penalty.weight (1e-06) are both set; exactly one must be.\n"
            "hint: with a budget the weight of the penalty is found automatically.",
        ),
        (
            lambda: DataSection(mean=[0.5]),
            "recipe fields data.mean and data.std must have one number per channel each, or both be left out, "
            "got mean (0.5,) and std None instead.",
        ),
        (
            lambda: DataSection(mean=[0.5], std=[1, 1, 1]),
            "recipe fields data.mean and data.std must have one number per channel each, or both be left out, "
            "got mean (0.5,) and std (1.0, 1.0, 1.0) instead.",
        ),
        (
            lambda: SearchSection(epochs=1, warmup=0.5),
            "recipe fields search.warmup and search.ramp must together be at most 1, got 0.5 and 0.6 instead.\n"
            "hint: both are shares of the search, one after the other.",
        ),
        (
            lambda: WeightOptimizerSection(lr=0.1, schedule="step"),
            "recipe field weight_optimizer.milestones must be a list of at least one epoch where the schedule is "
            "'step', got [] instead.\nhint: schedule = 'constant' needs no milestones.",
        ),
        (
            lambda: WeightOptimizerSection(lr=0.1, momentum=0, nesterov=True),
            "recipe field weight_optimizer.momentum must be above 0 where nesterov is true, got 0.0 instead.",
        ),
        (
            lambda: ModelSection(spec="resnet65"),
            "recipe field model.spec must be a model's name or module:callable, got 'resnet65' instead.\n"
            "hint: did you mean resnet56 or resnet50 or resnet44?",
        ),
        (
            lambda: TaskSection(spec="segmentaton"),
            "recipe field task.spec must be a task's name or module:class, got 'segmentaton' instead.\n"
            "hint: did you mean segmentation?",
        ),
        (
            lambda: TaskSection(spec="segmentation", settings={"ignore": 3}),
            "recipe field task.settings cannot be used: The setting of segmentation must be one of 'ignore_index', "
            "'label_smoothing', got 'ignore' instead.\nhint: did you mean ignore_index?",
        ),
        (
            lambda: TaskSection(spec="segmentation", settings={"ignore_index": 0.5}),
            "The setting 'ignore_index' of task 'segmentation' must be a whole number, got 0.5 instead.",
        ),
        (
            lambda: recipe(search=FinetuneSection()),
            "recipe field search must be a table, got FinetuneSection(epochs=0, lr=None, schedule='cosine', "
            "milestones=(), factor=0... instead.",
        ),
        (
            lambda: WeightOptimizerSection(lr=10**400),
            f"recipe field weight_optimizer.lr must be a number above 0, got 1{'0' * 76}... instead.",
        ),
        (
            lambda: WeightOptimizerSection(lr=10**5000),
            "recipe field weight_optimizer.lr must be a number above 0, got a very long int instead.",
        ),
        (lambda: recipe().replace(name=""), "recipe field name must be a name for a folder"),
    ],
)
def test_the_text_of_other_errors(make, message):
    with pytest.raises(InputError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    "start_and_preset", [{"start": 4.5}, {"start": -6.0}, {"start": None, "preset": "paper"}, {"preset": "reference"}]
)
def test_a_start_needs_a_preset_that_has_one(start_and_preset):
    assert GatesSection(**start_and_preset).start == start_and_preset.get("start")
    with pytest.raises(InputError, match=r"recipe field gates\.start cannot be used: Preset 'paper' has no start"):
        GatesSection(preset="paper", start=3.0)


def test_the_evaluation_rules_are_those_of_the_gates():
    assert set(get_args(EvaluationRule)) == set(RULES)


@pytest.mark.parametrize("kind", SECTIONS.values())
def test_what_may_be_left_out_of_a_file_is_none_by_default(kind):
    """Else a None that was chosen would be written as absent and read back as the default."""
    optional = [field for field in kind.model_fields.values() if accepts(field, None)]
    assert all(field.default is None for field in optional)


def test_the_sections_are_the_fields_of_a_recipe():
    assert ["name", *SECTIONS] == list(Recipe.model_fields)
    assert all(kind.title == title for title, kind in SECTIONS.items())
    assert all(field.description for kind in SECTIONS.values() for field in kind.model_fields.values())


def test_a_setting_has_one_name_in_python_and_in_recipes():
    gates = {field.name for field in dataclasses.fields(GateConfig)}
    assert set(GatesSection.model_fields) == gates | {"method", "method_weight"}
    search = {field.name for field in dataclasses.fields(SearchConfig)}
    training = {"epochs", "label_smoothing", "clip_norm", "ema_decay", "dense_baseline"}
    assert set(SearchSection.model_fields) == search | training


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:1", "mps"])
def test_devices(device):
    assert RunSection(device=device).device == device


def test_distillation_has_the_weights_of_the_library() -> None:
    """The command reads recipes without PyTorch, so they are written down twice."""
    assert (DISTILL, DISTILL_BLOCKS, DistillSection().temperature) == (WEIGHT, BLOCKS, TEMPERATURE)
