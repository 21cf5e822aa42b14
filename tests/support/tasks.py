"""What the processes of the fork server do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from depl0.app.cli.app import main
from depl0.app.recipes.toml import write_recipe
from depl0.app.runs.checkpoint import BackgroundSaver, load_newest, save_checkpoint
from tests.networks.tiny import tiny_recipe
from tests.support import ranks
from tests.support.crash import Counter


def carry_out(task: str, die_at: int | None = None, **arguments: Any) -> int:
    if task == "save":
        return save(die_at=die_at, **arguments)
    if task == "ranks":
        return ranks.carry_out(**arguments)
    return prune(die_at=die_at, **arguments)


def prune(
    out: str, fields: dict[str, Any], resume: bool, options: list[str], die_at: int | None, count: bool = False
) -> int:
    """Run the command; perhaps die at a file operation, perhaps say how many there were."""
    torch.set_num_threads(1)
    recipe = Path(out).with_suffix(".toml")
    recipe.write_text(write_recipe(tiny_recipe(**fields)))
    counter = Counter(Path(out), die_at)
    if die_at is not None or count:
        counter.install()
    code = main(["prune", str(recipe), "--out", out, *(["--resume"] if resume else []), *options])
    if count:
        Path(out).with_suffix(".count").write_text(str(counter.count))
    return code


def save(folder: str, steps: list[int], keep: int, die_at: int | None, background: bool = False) -> int:
    """Save checkpoints, and die while the last one is saved; the exit code is 0 when it was not."""
    *before, last = steps
    for number, step in enumerate(before):
        save_checkpoint(Path(folder), step, state(number), keep)
    Counter(Path(folder), die_at).install()
    if background:
        with BackgroundSaver(Path(folder), keep) as saver:
            saver.save(last, state(len(before)))
    else:
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
