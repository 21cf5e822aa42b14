"""Runs in processes of their own that can be killed, without paying for imports each time.

A server imports everything once and forks for every task. A task is a line of JSON: a recipe's overrides, the folder,
whether to resume, and what is to happen to the process (``tests.support.faults``), if anything.
"""

from __future__ import annotations

import gc
import json
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class ForkServer:
    """The side of the tests."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forkserver"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, log: Path, **task: Any) -> int:
        """Start a run; return the number of its process."""
        self._send({**task, "log": str(log)})
        return int(self._receive())

    def wait(self) -> int:
        """Return how the process ended: its exit code, or minus the signal."""
        self._send("wait")
        return int(self._receive())

    def run(self, log: Path, **task: Any) -> int:
        """Start a run and wait for its end."""
        self.start(log, **task)
        return self.wait()

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(timeout=60)

    def _send(self, message: Any) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(message) + "\n")
        self._server.stdin.flush()

    def _receive(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline()


def ranks(server: ForkServer, folder: Path, what: str, world: int = 2, **arguments: Any) -> tuple[list[int], list[str]]:
    """Return the exit codes of all ranks, and what they said."""
    folder.mkdir(exist_ok=True)
    server.run(folder / "log", task="ranks", folder=str(folder), world=world, what=what, **arguments)
    assert (folder / "ends.json").exists(), (folder / "log").read_text()
    ends = json.loads((folder / "ends.json").read_text())
    assert ends["seconds"] < 390, "a process waited for another one"  # DEPL0_TIMEOUT is ten minutes
    return ends["codes"], [own_words((folder / f"rank{rank}.log").read_text()) for rank in range(world)]


def own_words(text: str) -> str:
    """Leave out what torch says by itself."""
    return "\n".join(line for line in text.splitlines() if not re.match(r"\[(rank\d+\]:\[)?[WIE]\d{4} ", line))


# -- the side of the server ------------------------------------------------------------------------------------------


def serve() -> None:
    import contextlib
    import io

    from depl0 import gated
    from depl0.app.cli.app import main
    from tests.networks.tiny import tiny_gated
    from tests.support import tasks
    from tests.support.plans import remembered

    gated.make_plan = remembered
    tiny_gated()  # torch.export imports a thousand modules: here, and not in every task
    with contextlib.redirect_stdout(io.StringIO()):
        main(["recipes"])
    gc.collect()
    gc.freeze()  # what is imported already is nobody's garbage; runs collect several times
    pid = 0
    for line in sys.stdin:
        message = json.loads(line)
        if message == "wait":
            _, status = os.waitpid(pid, 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            descriptor = os.open(message.pop("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for standard in (0, 1, 2):
                os.dup2(os.open(os.devnull, os.O_RDONLY) if standard == 0 else descriptor, standard)
            code = 98
            try:
                code = tasks.carry_out(**message)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(pid, flush=True)


if __name__ == "__main__":
    serve()
