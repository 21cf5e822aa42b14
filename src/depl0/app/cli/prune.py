"""``depl0 prune``: from data to a smaller network."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from depl0.app.cli.options import QUIET, SET, choice, echo, read_assignments, with_options_of
from depl0.app.table import printable
from depl0.errors import InputError

if TYPE_CHECKING:
    from depl0.app.recipes.recipe import Recipe

QUICK = {"search.epochs": 0, "finetune.epochs": 0, "search.compensate": True, "finetune.recover": 600}
"""fields that ``--quick`` sets, besides the method"""
QUICK_METHOD = "reconstruction"
LEARNED_FIELDS = (
    "gates.generator",
    "gates.direction",
    "gates.draw",
    "gate_optimizer.lr",
    "penalty.weight",
)
"""fields that only learned gates have, so that setting one of them selects a method that learns gates"""
BUDGETS = ("macs", "params", "latency")
GROUPS = {
    "Network and data": ("model", "weights", "pretrained", "data", "task"),
    "Budget": ("budget", "of", "round_to", "method", "quick", "recover"),
    "Training": ("epochs", "finetune_epochs", "batch_size", "lr", "seed", "device", "set_"),
}
"""options of a training in the order of the help; all others are options of a run"""


def chosen_recipe(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="Recipe name or TOML file, see depl0 recipes, or a model as of --model, pruned with --quick if it is "
            "trained (default: digits, or custom with --model)."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="resnet56, torchvision:…, timm:…, package.module:make or file.py:make.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="digits, mnist:DIR, fashion-mnist:DIR, cifar10:DIR, cifar100:DIR, folder:DIR, file.py:make."),
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
    budget: Annotated[float | None, typer.Option(help="Fraction of the cost to keep, e.g. 0.5.")] = None,
    of: Annotated[str | None, choice("--of", BUDGETS, "Cost that the budget is a fraction of.")] = None,
    round_to: Annotated[
        str | None,
        typer.Option(help="Keep a multiple of this many channels per group, e.g. 8."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="Pruning method: dep-l0, l0-hc, reconstruction, l1-norm, fpgm, slimming, taylor, hrank, sfp, random, "
            "package.module:Name or file.py:Name."
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Score, prune and compensate a trained network, and recover without labels, in minutes "
            "(--recover 0: the cut alone).",
        ),
    ] = False,
    recover: Annotated[
        int | None, typer.Option(help="Steps of recovery without labels after the cut (0: none).")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of the search.")] = None,
    finetune_epochs: Annotated[int | None, typer.Option(help="Epochs of fine-tuning.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per training step, over all processes.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the weights.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = None,
    set_: Annotated[list[str] | None, SET] = None,
) -> Recipe:
    """Return the recipe that a command line describes. Its parameters are the options of every command that trains."""
    fields = {
        "model.spec": model,
        "data.spec": data,
        "task.spec": task,
        "model.weights": weights,
        "model.pretrained": pretrained,
        "gates.budget": budget,
        "gates.of": of,
        "gates.round_to": round_to,
        "gates.method": method or (QUICK_METHOD if quick else None),
        "search.epochs": epochs,
        "finetune.epochs": finetune_epochs,
        "finetune.recover": recover,
        "data.batch_size": batch_size,
        "weight_optimizer.lr": lr,
        "run.seed": seed,
        "run.device": device,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    source = data or read_assignments(set_).get("data.spec")
    base = recipe_for(model, source, recipe, trained=bool(weights or pretrained))
    chosen = complete(base, {**(QUICK if quick else {}), **given}, set_)
    if quick and not chosen.model.starts_trained:
        raise InputError("--quick needs a trained network.", hint="pass --weights FILE or --pretrained.")
    return chosen


@with_options_of(chosen_recipe)
def prune_command(
    options: dict[str, Any],
    out: Annotated[str | None, typer.Option(help="Folder of the run (default: runs/NAME).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a stopped run.")] = False,
    quiet: Annotated[bool, QUIET] = False,
    as_json: Annotated[bool, typer.Option("--json", hidden=True)] = False,
) -> None:
    """Prune a network, and report the result."""
    from depl0.app.cli.result import closing_line, result_table
    from depl0.app.runs.progress import make_reporter
    from depl0.app.runtime.processes import is_first_process
    from depl0.app.training.prune import prune

    recipe, reporter = chosen_recipe(**with_model(options)), make_reporter(quiet)
    folder, summary = prune(recipe, out, resume=resume, reporter=reporter)
    if is_first_process():
        if as_json:
            echo(json.dumps(summary, indent=2))
        else:
            echo(result_table(summary, folder.path))
            typer.secho(printable(closing_line(summary, folder.path)), fg="green", bold=True)


def with_model(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with a model that was passed as the recipe moved to ``--model``.

    A trained one sets ``--quick``.

    >>> with_model({"recipe": "timm:resnet18", "model": None, "weights": None, "pretrained": True, "quick": False})
    {'recipe': None, 'model': 'timm:resnet18', 'weights': None, 'pretrained': True, 'quick': True}
    """
    given = options["recipe"]
    if given is None or options["model"] is not None or ":" not in given or given.lower().endswith(".toml"):
        return options
    trained = bool(options["weights"] or options["pretrained"])
    return {**options, "recipe": None, "model": given, "quick": options["quick"] or trained}


def recipe_for(model: str | None, data: str | None, recipe: str | None = None, *, trained: bool = False) -> Recipe:
    """Return the recipe of a command line: the one it names, digits, or one for the user's own network or data.

    The last one has lower learning rates if the network is already trained.
    """
    from depl0.app.recipes import catalog
    from depl0.app.runs.paths import find_recipe

    if recipe is not None and recipe.lower().endswith((".pt", ".pth", ".safetensors")):
        raise InputError(
            f"{recipe} holds weights, and a recipe was expected.",
            hint=f"depl0 prune --model MODEL --weights {recipe} --data DATA.",
        )
    if recipe is not None:
        named = find_recipe(recipe)
        return catalog.for_trained(named) if trained and recipe.startswith("custom") else named
    if model is None and data is None:
        return catalog.get("digits")
    if data is None:
        raise InputError(
            f"--model {model} needs data.", hint="pass --data folder:DIR, cifar10:DIR, file.py:make or digits."
        )
    if model is None:
        raise InputError(
            f"--data {data} needs a network.",
            hint="pass --model resnet20, torchvision:resnet18, timm:… or file.py:make, or name a recipe first (depl0 "
            "recipes lists them).",
        )
    own = catalog.for_trained(catalog.get("custom")) if trained else catalog.get("custom")
    words = re.findall(r"[\w.+]+", f"{model} {data.partition(':')[0]}")
    return own.replace(name="-".join(words))


def complete(recipe: Recipe, given: dict[str, Any], assignments: list[str] | None) -> Recipe:
    """Apply the options of a command line to a recipe; ``--set`` takes precedence.

    A method selects a generator that it allows, and fields of learned gates select a method that learns them.
    """
    from depl0.app.methods import METHODS, Scored
    from depl0.app.recipes.recipe import for_method
    from depl0.app.recipes.toml import with_overrides

    fields = {**given, **read_assignments(assignments)}
    if "gates.method" in given:
        fields = {**for_method(recipe, given["gates.method"]), **fields}
    elif "gates.method" not in fields:
        scored = isinstance(METHODS.get(recipe.gates.method), Scored)
        depends = recipe.gates.method == "l0-hc" and fields.get("gates.generator", "independent") != "independent"
        if depends or (scored and any(name in fields for name in LEARNED_FIELDS)):
            fields["gates.method"] = "dep-l0"
    return with_overrides(recipe, fields)
