"""Several processes of one run, as torchrun starts them, with things that happen to one of them."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import depl0.search.freezing as freezing
from depl0.app.cli.app import main
from depl0.app.recipes.toml import write_recipe
from tests.networks.tiny import tiny_recipe
from tests.support.faults import fail_at


def carry_out(
    folder: str,
    world: int,
    what: str,
    fault: dict[str, Any] | None = None,
    timeout: str | None = None,
    elastic: bool = False,
    seconds: float = 400.0,
    **arguments: Any,
) -> int:
    """Start all ranks, note their exit codes and how long they took, and return the worst code.

    A rank that a fault has stopped (SIGSTOP) is killed when another one has ended; ``timeout`` is how long they wait,
    and ``elastic`` lets them think that torchrun is their parent.
    """
    if timeout is not None:
        os.environ["DEPL0_TIMEOUT"] = timeout
    if elastic:
        os.environ["TORCHELASTIC_RUN_ID"] = "none"
    hangs = (fault or {}).get("how") == signal.SIGSTOP
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    find_task(what)  # what it imports, which may be large, is imported once
    start, pids, ends = time.monotonic(), [], []
    for rank in range(world):
        pids.append(os.fork())
        if pids[-1] == 0:
            one_rank(rank, world, port, folder, what, fault, arguments)
    (Path(folder) / "pids.json").write_text(json.dumps(pids))
    for pid in pids:
        while not (done := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() - start > seconds or (hangs and pid == pids[1] and len(ends) == 1):
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        ends.append(os.waitstatus_to_exitcode(done[1]))
    (Path(folder) / "ends.json").write_text(json.dumps({"codes": ends, "seconds": time.monotonic() - start}))
    return max(map(abs, ends))


def one_rank(
    rank: int, world: int, port: int, folder: str, what: str, fault: dict[str, Any] | None, arguments: dict[str, Any]
) -> None:
    log = os.open(Path(folder) / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in numbers.items()}, MASTER_ADDR="127.0.0.1")
    torch.set_num_threads(1)
    code = 98
    try:
        if fault is not None:
            fail_at(**fault)
        code = find_task(what)(rank, Path(folder), **arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# -- what a rank does ------------------------------------------------------------------------------------------------


def run(rank: int, folder: Path, fields: dict[str, Any], resume: bool = False) -> int:
    recipe = folder / f"recipe{rank}.toml"
    recipe.write_text(write_recipe(tiny_recipe(**fields)))
    return main(["prune", str(recipe), "--out", str(folder / "run"), *(["--resume"] if resume else [])])


def disagree(rank: int, folder: Path, **arguments: Any) -> int:
    choose = freezing.select_gates

    def freeze_otherwise(*args: Any, **rules: Any) -> Any:
        frozen = choose(*args, **rules)
        return dataclasses.replace(frozen, gates=1 - frozen.gates) if rank == 1 else frozen

    freezing.select_gates = freeze_otherwise
    return run(rank, folder, **arguments)


def find_task(what: str) -> Callable[..., int]:
    """Return one of the tasks here, or the function of another file of tests ("tests.gated.test_distributed:train")."""
    module, colon, name = what.partition(":")
    task: Callable[..., int] = getattr(importlib.import_module(module), name) if colon else TASKS[what]
    return task


TASKS = {"run": run, "disagree": disagree}
