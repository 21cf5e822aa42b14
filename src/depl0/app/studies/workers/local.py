"""``--on local:N``: run N members at a time, as processes of this machine."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import final

from depl0.app.studies.member import LostWorkerError, run_process
from depl0.app.studies.workers import RETRIES, Job, Resources, Workers, register
from depl0.errors import InputError


@final
@register("local")
class Local(Workers):
    """Threads, each of which waits for one process after the other."""

    def __init__(self, argument: str, resources: Resources) -> None:
        if not argument.isdecimal() or int(argument) < 1:
            raise InputError(
                f"--on local takes a number of processes, got {argument or 'none'!r} instead.",
                hint="for example --on local:4.",
            )
        self._resources, self._where, self._closing = resources, os.getcwd(), False
        self._pool, self._running = ThreadPoolExecutor(int(argument)), dict[str, subprocess.Popen[bytes]]()
        self._places: SimpleQueue[int] = SimpleQueue()  # numbers of processes, which select their GPUs
        for place in range(int(argument)):
            self._places.put(place)

    def submit(self, folder: Path, name: str) -> Job:
        """Submit a member."""
        return self._pool.submit(self._run, str(folder.absolute()), name)

    def _run(self, folder: str, name: str) -> str | None:
        place = self._places.get()
        try:
            for retry in range(RETRIES + 1):
                try:
                    return run_process(
                        folder, name, self._where, self._variables(place), lambda p: self._started(name, p)
                    )
                except LostWorkerError:
                    if retry == RETRIES or self._closing:
                        raise
            raise AssertionError("returned or raised")
        finally:
            self._running.pop(name, None)
            self._places.put(place)

    def _variables(self, place: int) -> dict[str, str]:
        gpus = self._resources.gpus
        own = ",".join(str(gpus * place + number) for number in range(gpus))
        return {**self._resources.variables, **({"CUDA_VISIBLE_DEVICES": own} if gpus else {})}

    def _started(self, name: str, process: subprocess.Popen[bytes]) -> None:
        self._running[name] = process
        if self._closing:
            process.terminate()

    def close(self, cancel: bool) -> None:
        """End the threads, and with ``cancel`` also their processes."""
        self._closing = cancel
        for process in list(self._running.values()) if cancel else []:
            process.terminate()
        self._pool.shutdown(cancel_futures=cancel)
