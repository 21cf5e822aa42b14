"""``depl0 prune``: from data to a smaller network."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from depl0.app.cli.choice import choice
from depl0.app.cli.options import with_options_of
from depl0.errors import InputError

if TYPE_CHECKING:
    from depl0.app.recipes.recipe import Recipe

QUICK_METHOD = "reconstruction"
"""how channels are chosen where nothing is trained"""


BUDGETS = ("macs", "params", "latency")
DIRECTIONS = ("forward", "backward")
COMPACTIONS = ("progressive", "once", "never")
PRECISIONS = ("fp32", "bf16", "fp16")
ON_NAN = ("stop", "rollback")
GROUPS = {
    "Data": ("model", "weights", "pretrained", "strict", "data", "task", "limit_train", "workers"),
    "Budget": ("budget", "of", "round_to", "penalty_weight", "groups", "remove_blocks"),
    "Channels": ("method", "generator", "direction", "conditioning", "gate_lr", "quick", "compensate"),
    "Training": (
        "epochs",
        "finetune_epochs",
        "batch_size",
        "lr",
        "distill",
        "compact",
        "precision",
        "on_nan",
        "sync_bn",
        "compile_",
    ),
}
"""the options of a training as help lists them; all others are those of a run"""


def chosen_recipe(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A recipe's name or TOML file (depl0 recipes lists them); "
            "without one: digits, or custom where --model or --data is given."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="resnet56, torchvision:…, timm:…, package.module:make or file.py:make.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="digits, mnist:DIR, fashion-mnist:DIR, cifar10:DIR, cifar100:DIR, folder:DIR, module:make."),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(help="classification, segmentation, regression, package.module:Name or file.py:Name."),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Trained weights to start from: .safetensors, .pt or .pth.")
    ] = None,
    pretrained: Annotated[
        bool | None, typer.Option("--pretrained", help="Start from the weights that timm or torchvision publish.")
    ] = None,
    strict: Annotated[
        bool | None, typer.Option("--strict", help="Refuse weights for another number of classes.")
    ] = None,
    budget: Annotated[float | None, typer.Option(help="Share of the cost that may be left, e.g. 0.5.")] = None,
    of: Annotated[str | None, choice("--of", BUDGETS, "What the budget counts.")] = None,
    round_to: Annotated[
        str | None,
        typer.Option(help="Keep a multiple of so many channels, e.g. 8, or all of a group; auto: what pays here."),
    ] = None,
    penalty_weight: Annotated[float | None, typer.Option(help="The paper's fixed λ, instead of a budget.")] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="dep-l0, l0-hc, reconstruction, l1-norm, fpgm, slimming, taylor, hrank, sfp or random: "
            "what chooses channels."
        ),
    ] = None,
    remove_blocks: Annotated[
        bool | None, typer.Option("--remove-blocks", help="Remove layers whose output has become constant.")
    ] = None,
    generator: Annotated[str | None, typer.Option(help="Gate generator: fc, independent, fc-relu, …")] = None,
    direction: Annotated[str | None, choice("--direction", DIRECTIONS, "Order of the groups.")] = None,
    conditioning: Annotated[str | None, typer.Option(help="What the generator reads: log_alpha or gates.")] = None,
    groups: Annotated[str | None, typer.Option(help="all or inner.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of search.")] = None,
    finetune_epochs: Annotated[int | None, typer.Option(help="Epochs of fine-tuning.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images of a training step, over all processes.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the weights.")] = None,
    gate_lr: Annotated[float | None, typer.Option(help="Learning rate of the gates.")] = None,
    distill: Annotated[
        float | None,
        typer.Option(help="The dense network's share of the loss (default: 0.9 where --weights are given; 0: none)."),
    ] = None,
    compensate: Annotated[
        bool | None,
        typer.Option("--compensate/--no-compensate", help="Fit the layers behind a cut to what they read."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Train nothing: score, cut and compensate a trained network, in minutes."),
    ] = False,
    then: Annotated[
        str | None, typer.Option(help="What follows: int8 writes the deployed file and measures all variants.")
    ] = None,
    compact: Annotated[
        str | None,
        choice("--compact", COMPACTIONS, "When closed channels are cut out: during the search, after it, or never."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = None,
    precision: Annotated[str | None, choice("--precision", PRECISIONS, "Numbers of the training steps.")] = None,
    limit_train: Annotated[int | None, typer.Option(help="Use only so many training images.")] = None,
    checkpoint_steps: Annotated[int | None, typer.Option(help="Steps between two checkpoints.")] = None,
    checkpoint_minutes: Annotated[
        float | None, typer.Option(help="Minutes between two checkpoints (default: 10); 0: after every epoch.")
    ] = None,
    keep: Annotated[int | None, typer.Option(help="How many of the newest checkpoints are kept.")] = None,
    on_nan: Annotated[
        str | None,
        choice("--on-nan", ON_NAN, "On non-finite values: stop, or go back to a checkpoint and halve the rates."),
    ] = None,
    sync_bn: Annotated[
        bool | None, typer.Option("--sync-bn/--no-sync-bn", help="Batch norms see the batch of all processes.")
    ] = None,
    compile_: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="Run training steps through torch.compile.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that read images; left out: as many as cores are free.", min=0)
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any recipe field: section.field=value.")] = None,
) -> Recipe:
    """Return the recipe that a command line describes. Its parameters are the options of every command that trains."""
    if quick:
        method, epochs, finetune_epochs = method or QUICK_METHOD, epochs or 0, finetune_epochs or 0
        compensate = True if compensate is None else compensate
    own = recipe_for(model, data, recipe, trained=bool(weights or pretrained))
    if method is None and any(o is not None for o in (generator, direction, conditioning, gate_lr, penalty_weight)):
        method = _learned(own)  # these are about learned gates
    chosen = complete(
        own,
        {
            "model.spec": model,
            "data.spec": data,
            "task.spec": task,
            "model.weights": weights,
            "model.pretrained": pretrained,
            "model.strict": strict,
            "gates.of": of,
            "gates.round_to": round_to,
            "gates.method": method,
            "gates.remove_blocks": remove_blocks,
            "gates.generator": generator,
            "gates.direction": direction,
            "gates.conditioning": conditioning,
            "gates.groups": groups,
            "search.epochs": epochs,
            "finetune.epochs": finetune_epochs,
            "data.batch_size": batch_size,
            "weight_optimizer.lr": lr,
            "gate_optimizer.lr": gate_lr,
            "distill.weight": distill,
            "search.compensate": compensate,
            "deploy.then": then,
            "search.cut": compact,
            "run.seed": seed,
            "run.device": device,
            "run.precision": precision,
            "data.limit_train": limit_train,
            "data.workers": workers,
            "run.checkpoint_steps": checkpoint_steps,
            "run.checkpoint_minutes": checkpoint_minutes,
            "run.keep_checkpoints": keep,
            "run.on_nan": on_nan,
            "run.sync_bn": sync_bn,
            "run.compile": compile_,
        },
        budget,
        penalty_weight,
        set_ or [],
    )
    if quick and not chosen.model.starts_trained:
        raise InputError(
            "--quick needs a network that was trained already.",
            hint="give --weights FILE or --pretrained.",
        )
    return chosen


@with_options_of(chosen_recipe)
def prune_command(
    options: dict[str, Any],
    out: Annotated[str | None, typer.Option(help="Folder of the run (default: runs/NAME).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a stopped run.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but the result.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Train a network with gates, cut the closed channels out, fine-tune what is left, and report the result."""
    from depl0.app.cli.deployed import check_deployable, deploy, deployed_table
    from depl0.app.cli.result import result_table
    from depl0.app.runs.progress import make_reporter
    from depl0.app.runtime.engine import is_first_process
    from depl0.app.training.prune import prune

    recipe, reporter = chosen_recipe(**options), make_reporter(quiet)
    check_deployable(recipe)
    folder, summary = prune(recipe, out, resume=resume, reporter=reporter)
    if is_first_process():
        if not as_json:
            typer.echo(result_table(summary, folder.path))
        deployed = deploy(recipe, folder.path, reporter.note)
        if as_json:
            typer.echo(json.dumps(summary if deployed is None else {**summary, "deployed": deployed}, indent=2))
        elif deployed is not None:
            typer.echo(deployed_table(deployed, folder.path))


def recipe_for(model: str | None, data: str | None, recipe: str | None = None, *, trained: bool = False) -> Recipe:
    """Return the recipe of a command line: the one it names, digits, or one for the user's own network or data.

    The last starts with lower rates where the network is trained already.
    """
    from depl0.app.recipes import catalog

    if recipe is not None:
        named = catalog.find(recipe)
        return catalog.for_trained(named) if trained and recipe.startswith("custom") else named
    if model is None and data is None:
        return catalog.get("digits")
    own = catalog.for_trained(catalog.get("custom")) if trained else catalog.get("custom")
    words = re.findall(r"[\w.+]+", f"{model or own.model.spec} {(data or own.data.spec).partition(':')[0]}")
    return own.replace(name="-".join(words))


def _learned(recipe: Recipe) -> str | None:
    """Return the method that learns gates where a recipe's own scores channels."""
    from depl0.app.methods import METHODS, Scored

    return "dep-l0" if isinstance(METHODS[recipe.gates.method], Scored) else None


def complete(
    recipe: Recipe,
    options: dict[str, Any],
    budget: float | None,
    penalty_weight: float | None,
    assignments: list[str],
) -> Recipe:
    """Change a recipe as the command line says: budget and λ exclude each other; ``--set`` has the last word."""
    from depl0.app.recipes.recipe import for_method
    from depl0.app.recipes.toml import with_overrides

    if budget is not None and penalty_weight is not None:
        raise InputError("--budget and --penalty-weight are both given; exactly one may be.")
    options = {**options, "gates.budget": budget, "penalty.weight": penalty_weight}
    overrides: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if "gates.method" in overrides:
        overrides = {**for_method(recipe, overrides["gates.method"]), **overrides}
    elif overrides.get("gates.generator", "independent") != "independent" and recipe.gates.method == "l0-hc":
        overrides["gates.method"] = "dep-l0"
    return with_overrides(recipe, {**overrides, **read_assignments(assignments)})


def read_assignments(assignments: list[str]) -> dict[str, str]:
    """Read what ``--set`` was given."""
    fields = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise InputError(f"--set takes section.field=value, got {assignment!r} instead.")
        fields[name.strip()] = value.strip()
    return fields
