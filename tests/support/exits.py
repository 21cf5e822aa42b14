"""Runs of two processes that end as programs do, interpreter and all: ``python -m tests.support.exits FOLDER TIMES``.

Everything is imported once, and every process is forked from here. Prints the exit codes of each run as JSON.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import torch

from depl0.app.cli.app import main
from depl0.app.recipes.toml import write_recipe
from tests.networks.tiny import tiny_gated, tiny_recipe
from tests.support.plans import remembered


def one_run(folder: Path) -> list[int]:
    """Prune in two processes, and return how each of them ended."""
    folder.mkdir(parents=True)
    fields = {"search__epochs": 1, "finetune__epochs": 0, "run__trackers": ["tensorboard"]}
    (folder / "recipe.toml").write_text(write_recipe(tiny_recipe(**fields)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids = []
    for rank in range(2):
        pids.append(os.fork())
        if pids[-1] == 0:
            log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
            os.environ.update({name: str(value) for name, value in numbers.items()}, MASTER_ADDR="127.0.0.1")
            sys.exit(main(["prune", str(folder / "recipe.toml"), "--out", str(folder / "run")]))
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


if __name__ == "__main__":
    from depl0.gated import attaching

    attaching.make_plan = remembered
    torch.set_num_threads(1)
    tiny_gated()  # imports what torch.export needs
    print(json.dumps([one_run(Path(sys.argv[1]) / str(number)) for number in range(int(sys.argv[2]))]))
