"""``depl0 claims``: what the paper claims, judged by runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

CONTROL = "gates.generator=bias"
"""the generator whose weights between gates are held at 0"""


def claims_command(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs or of studies, or an earlier claims.json.", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option(help="Folder for README.md and claims.json.")] = None,
    method: Annotated[str, typer.Option(help="What is called Dep-L0, e.g. dep-l0 or dep-l0:conditioning=gates.")] = (
        "dep-l0"
    ),
    control: Annotated[
        str, typer.Option(help="The recipe field that makes a run of Dep-L0 the control W = 0.")
    ] = CONTROL,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Judge the paper's claims by finished runs: confirmed, not confirmed or open, with figures, n and spread."""
    from depl0.studies.claims.judge import judge
    from depl0.studies.claims.page import page, write_claims

    result = judge(runs, method, control)
    if out is not None:
        write_claims(result, out)
    typer.echo(json.dumps(result, indent=2, ensure_ascii=False) if as_json else page(result), nl=as_json)
