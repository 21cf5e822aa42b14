"""``--on ray`` or ``--on ray:ADDRESS``: tasks of a Ray cluster, or of one that is started on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, final

from depl0._util.optional import require
from depl0.app.studies.engines.base import RETRIES, Engine, Job, Resources, register
from depl0.app.studies.member import LostWorkerError, run_process


@final
@register("ray")
class Ray(Engine):
    """One task a member. Ray finds the machine, and starts a member again whose worker or machine is lost."""

    def __init__(self, argument: str, resources: Resources) -> None:
        self._ray: Any = require("ray", "ray", "for --on ray", extra="ray")
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            self._ray.init(address=argument or None, log_to_driver=False, include_dashboard=False)
        task = self._ray.remote(run_process)
        self._task = task.options(
            num_cpus=resources.cpus,
            num_gpus=resources.gpus,
            max_retries=RETRIES,
            retry_exceptions=[LostWorkerError],
        )
        self._resources, self._jobs = resources, list[Any]()

    def submit(self, folder: Path, name: str) -> Job:
        """Take a member."""
        reference = self._task.remote(str(folder.absolute()), name, os.getcwd(), self._resources.variables)
        self._jobs.append(reference)
        job: Job = reference.future()
        return job

    def close(self, cancel: bool) -> None:
        """Cancel tasks, and let go of the cluster; one that was started here ends."""
        if cancel:
            for reference in self._jobs:
                self._ray.cancel(reference)
            self._ray.wait(self._jobs, num_returns=len(self._jobs), timeout=60)
        if self._is_ours:
            self._ray.shutdown()
