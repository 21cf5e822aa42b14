"""``--on ray`` or ``--on ray:ADDRESS``: tasks of an existing Ray cluster, or of one that is started on this machine."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

from depl0._util.optional import require
from depl0.app.studies.member import LostWorkerError, run_process
from depl0.app.studies.workers.base import RETRIES, Job, Resources, Workers, register
from depl0.errors import TrainingError

SECONDS = 180.0
"""time limit for starting Ray on this machine, or for reaching a cluster"""


def _start(start: Callable[[], Any], address: str, seconds: float = SECONDS) -> threading.Event:
    """Start Ray, with a message while waiting, and return an event that ends the starting thread.

    Ray asks the kernel to end its processes together with the thread that started them, so that thread waits until Ray
    has been shut down.

    Raises:
        TrainingError: Ray has failed to start, or to start in time.
    """
    what = f"the Ray cluster at {address}" if address else "Ray to start on this machine"
    print(f"waiting for {what}, at most {seconds:g} s …", file=sys.stderr, flush=True)
    failed: list[Exception] = []
    started, ended = threading.Event(), threading.Event()

    def run() -> None:
        try:
            start()
        except Exception as error:  # raised below, in the caller's thread
            failed.append(error)
            ended.set()
        started.set()
        ended.wait()

    threading.Thread(target=run, daemon=True).start()
    in_time = started.wait(seconds)
    if failed or not in_time:
        ended.set()
        reason = f"failed: {str(failed[0]).partition(chr(10))[0][:200]}" if failed else f"took more than {seconds:g} s"
        raise TrainingError(
            f"waiting for {what} {reason}.",
            hint="look at `ray status` and at the address, or use --on local:N for processes of this machine.",
        )
    return ended


@final
@register("ray")
class Ray(Workers):
    """One task per member. Ray finds the machine, and restarts a member whose worker or machine is lost."""

    def __init__(self, argument: str, resources: Resources) -> None:
        self._ray: Any = require("ray", "ray", "for --on ray", extra="ray")
        self._is_ours = not self._ray.is_initialized()
        self._ended = threading.Event()
        if self._is_ours:
            self._ended = _start(
                lambda: self._ray.init(address=argument or None, log_to_driver=False, include_dashboard=False), argument
            )
        task = self._ray.remote(run_process)
        self._task = task.options(
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            max_retries=RETRIES,
            retry_exceptions=[LostWorkerError],
        )
        self._resources, self._jobs = resources, list[Any]()

    def submit(self, folder: Path, name: str) -> Job:
        """Submit a member."""
        reference = self._task.remote(str(folder.absolute()), name, os.getcwd(), self._resources.variables)
        self._jobs.append(reference)
        job: Job = reference.future()
        return job

    def close(self, cancel: bool) -> None:
        """Cancel tasks and disconnect from the cluster. A cluster that was started here is shut down."""
        if cancel:
            for reference in self._jobs:
                self._ray.cancel(reference)
            self._ray.wait(self._jobs, num_returns=len(self._jobs), timeout=60)
        if self._is_ours:
            self._ray.shutdown()
            self._ended.set()
