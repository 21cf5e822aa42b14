"""What the processes of the fork server do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from depl0.app.cli.app import main
from depl0.app.recipes.toml import write_recipe
from depl0.app.runs.checkpoint import load_newest, save_checkpoint
from tests.networks.tiny import tiny_recipe
from tests.support import ranks
from tests.support.faults import Counter, fail_at


def carry_out(task: str, fault: dict[str, Any] | None = None, **arguments: Any) -> int:
    """Carry out a task; ``fault`` is what fail_at is given, and strikes the ranks of a task or itself."""
    if task == "save":
        return save(fault or {}, **arguments)
    if task == "ranks":
        return ranks.carry_out(fault=fault, **arguments)
    torch.set_num_threads(1)
    if fault is not None:
        fail_at(**fault)
    return prune(**arguments) if task == "prune" else main(arguments["words"])


def prune(out: str, fields: dict[str, Any], resume: bool = False, count: bool = False) -> int:
    """Run the command; perhaps say how many file operations there were."""
    recipe = Path(out).with_suffix(".toml")
    recipe.write_text(write_recipe(tiny_recipe(**fields)))
    counter = Counter(Path(out))
    if count:
        counter.install()
    code = main(["prune", str(recipe), "--out", out, *(["--resume"] if resume else [])])
    if count:
        Path(out).with_suffix(".count").write_text(str(counter.count))
    return code


def save(fault: dict[str, Any], folder: str, steps: list[int], keep: int) -> int:
    """Save checkpoints, and perhaps die while the last one is saved."""
    *before, last = steps
    for number, step in enumerate(before):
        save_checkpoint(Path(folder), step, state(number), keep)
    fail_at(**fault)
    save_checkpoint(Path(folder), last, state(len(before)), keep)
    return 0


def state(number: int) -> dict[str, Any]:
    return {"number": number, "weights": torch.full((50,), float(number))}


def number_of(folder: Path) -> int | None:
    """Which of the states is the newest whole one."""
    found = load_newest(folder)
    if found is None:
        return None
    number = found[1]["number"]
    assert torch.equal(found[1]["weights"], torch.full((50,), float(number)))
    return int(number)
