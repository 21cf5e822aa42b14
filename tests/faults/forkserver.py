"""Runs in processes of their own that can be killed, without paying for imports each time.

A server imports everything once and forks for every task. A task is a line of JSON: a recipe's overrides, the folder,
whether to resume, and at which file operation the process is to die, if at all.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
KILLED_BY_PLAN = 99


class ForkServer:
    """The side of the tests."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.forkserver"],
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


# -- the side of the server ------------------------------------------------------------------------------------------


def serve() -> None:
    import depl0.cli.app
    from tests.faults import tasks

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
    assert depl0.cli.app


if __name__ == "__main__":
    serve()
