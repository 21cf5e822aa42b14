"""Workers of clusters: ``--on ray[:ADDRESS]`` and ``--on slurm[:PARTITION]``.

Without an address, Ray is started on this machine. Slurm is used through submitit, which keeps its own files (pickles
that it writes and reads itself) in the study's folder, under ``slurm``; ``--on slurm-local`` runs the same jobs as
processes of this machine, to try a study before queueing it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, final

from depl0._util.optional import require
from depl0.app.studies.member import LostWorkerError, run_process
from depl0.app.studies.workers import RETRIES, Job, Resources, Workers, register
from depl0.errors import TrainingError
from depl0.host.network import first_line

HOURS = 24
"""time limit of a Slurm job; one that reaches it is submitted again and continues"""


@final
@register("ray")
class Ray(Workers):
    """One task per member. Ray finds the machine, and restarts a member whose worker or machine is lost."""

    def __init__(self, argument: str, resources: Resources) -> None:
        self._ray: Any = require("ray", "ray", "for --on ray", extra="ray")
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            what = f"the Ray cluster at {argument}" if argument else "Ray to start on this machine"
            print(f"waiting for {what} …", file=sys.stderr, flush=True)
            try:  # with time limits of its own
                self._ray.init(address=argument or None, log_to_driver=False, include_dashboard=False)
            except Exception as error:  # of many kinds
                raise TrainingError(
                    f"waiting for {what} failed: {first_line(error)[:200]}.",
                    hint="look at `ray status` and at the address, or use --on local:N for processes of this machine.",
                ) from error
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


class MemberJob:
    """A member as called by submitit. It is resubmitted if Slurm preempts it or its time limit is reached."""

    def __call__(self, *arguments: Any) -> str | None:
        """Run the member."""
        return run_process(*arguments)

    def checkpoint(self, *arguments: Any) -> Any:
        """Return the job to submit in place of one that had to end."""
        submission = require("submitit.helpers", "submitit", "for --on slurm", extra="slurm").DelayedSubmission
        return submission(self, *arguments)


@register("slurm")
class Slurm(Workers):
    """One job per member."""

    cluster = "slurm"

    def __init__(self, argument: str, resources: Resources) -> None:
        self._submitit: Any = require("submitit", "submitit", "for --on slurm", extra="slurm")
        self._partition, self._resources, self._jobs = argument, resources, list[Any]()

    def submit(self, folder: Path, name: str) -> Job:
        """Submit a member."""
        folder = folder.absolute()
        executor = self._submitit.AutoExecutor(folder=folder / "slurm", cluster=self.cluster)
        executor.update_parameters(
            name=f"depl0-{name.replace('/', '-')}",
            timeout_min=60 * HOURS,
            cpus_per_task=self._resources.cpus,
            gpus_per_node=self._resources.gpus,
            **({"slurm_partition": self._partition} if self._partition else {}),
        )
        job = executor.submit(MemberJob(), str(folder), name, os.getcwd(), self._resources.variables)
        self._jobs.append(job)
        taken: Job = job
        return taken

    def close(self, cancel: bool) -> None:
        """Cancel jobs. Without ``cancel`` they continue even after this process has ended."""
        for job in self._jobs if cancel else []:
            job.cancel()


@final
@register("slurm-local")
class SlurmHere(Slurm):
    """The same jobs on this machine."""

    cluster = "local"
