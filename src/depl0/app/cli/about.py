"""Commands that inform: ``depl0 recipes`` lists recipes and their fields, ``depl0 doctor`` what is installed."""

from __future__ import annotations

import json
import os
import platform
import sys
from importlib import metadata
from typing import Annotated

import typer

from depl0 import __version__
from depl0._util.optional import install_command
from depl0.app.cli.options import JSON, GroupedCommand, echo

app = typer.Typer(help="List recipes and their fields.", invoke_without_command=True, rich_markup_mode=None)


@app.callback()
def list_command(
    context: typer.Context,
    all_: Annotated[bool, typer.Option("--all", help="List every recipe, variants and the paper's included.")] = False,
) -> None:
    """List recipes and their fields."""
    if context.invoked_subcommand is not None:
        return
    from depl0.app.recipes import catalog
    from depl0.app.recipes.toml import read_table

    names = catalog.names() if all_ else tuple(read_table(catalog.BUILT_IN))
    width = max(len(name) for name in names)
    for name in names:
        echo(f"{name:<{width}}  {catalog.describe(name)}")
    if not all_:
        print(f"{len(catalog.names()) - len(names)} more: depl0 recipes --all", file=sys.stderr)


@app.command("show", cls=GroupedCommand)
def show_command(name: Annotated[str, typer.Argument(help="Recipe name or TOML file.")]) -> None:
    """Print a recipe as TOML, complete."""
    from depl0.app.recipes import catalog
    from depl0.app.recipes.toml import write_recipe

    echo(write_recipe(catalog.find(name)), nl=False)


@app.command("fields", cls=GroupedCommand)
def fields_command(
    section: Annotated[str | None, typer.Argument(help="Only this section, e.g. search.")] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """List every recipe field that --set can change, with its default."""
    from textwrap import fill

    from depl0._util.registry import unknown
    from depl0.app.recipes.recipe import SECTIONS
    from depl0.app.recipes.toml import describe_fields

    if section is not None and section not in SECTIONS:
        raise unknown("section", section, SECTIONS)
    found = describe_fields([section] if section is not None else list(SECTIONS))
    if as_json:
        echo(json.dumps(found, indent=2))
        return
    for field in found:
        default = "required" if field["required"] else f"default: {field['default']}"
        echo(field["name"] + ("" if field["default"] == "none" and not field["required"] else f" ({default})"))
        echo(fill(field["description"], 100, initial_indent="    ", subsequent_indent="    "))


EXTRAS = {
    "cli": ("accelerate", "filelock", "jinja2", "matplotlib", "pydantic", "rich", "tomli-w", "typer"),
    "export": ("onnx", "onnxruntime", "onnxscript"),
    "openvino": ("openvino",),
    "executorch": ("executorch",),
    "hub": ("huggingface_hub",),
    "transformers": ("transformers",),
    "lightning": ("lightning",),
    "ray": ("ray",),
    "slurm": ("submitit",),
}
"""extra -> packages that it brings"""


def doctor_command() -> None:
    """Print versions, hardware and missing packages."""
    import torch

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    chosen = "OMP_NUM_THREADS" if "OMP_NUM_THREADS" in os.environ else "PyTorch's default"
    rows = {
        "depl0": f"{__version__} in {os.path.dirname(os.path.dirname(os.path.dirname(__file__)))}",
        "python": f"{platform.python_version()} on {platform.platform()}",
        "torch": str(torch.__version__),
        "cpu": f"{os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}",
        "threads": f"{torch.get_num_threads()} ({chosen})",
        "gpus": ", ".join(gpus) or "none",
    }
    missing: dict[str, list[str]] = {}
    for extra, packages in EXTRAS.items():
        versions = {package: _version(package) for package in packages}
        absent = [package for package, version in versions.items() if version is None]
        rows[f"[{extra}]"] = ", ".join(f"{package} {version}" for package, version in versions.items() if version)
        if absent:
            missing[extra] = absent
    width = max(map(len, rows))
    for title, text in rows.items():
        echo(f"{title:<{width}}  {text or 'not installed'}")
    for extra, absent in missing.items():
        echo(f"missing: {', '.join(absent)}; {install_command(extra)}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
