"""``--on slurm`` or ``--on slurm:PARTITION``: jobs of a Slurm cluster, through submitit.

submitit keeps its own files (pickles that it writes and reads itself) in the study's folder, under ``slurm``. ``--on
slurm-local`` runs the same jobs as processes of this machine, to try a study before queueing it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, final

from depl0._util.optional import require
from depl0.app.studies.member import run_process
from depl0.app.studies.workers.base import Job, Resources, Workers, register

HOURS = 24
"""time limit of a job; one that reaches it is submitted again and continues"""


class MemberJob:
    """A member as called by submitit. It is resubmitted if Slurm preempts it or its time limit is reached."""

    def __call__(self, *arguments: Any) -> dict[str, Any] | None:
        """Run the member."""
        return run_process(*arguments)

    def checkpoint(self, *arguments: Any) -> Any:
        """Return the job to submit in place of one that had to end."""
        submission = require("submitit.helpers", "submitit", "for --on slurm", extra="slurm").DelayedSubmission
        return submission(self, *arguments)


class _Submitit(Workers):
    cluster: str

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
@register("slurm")
class Slurm(_Submitit):
    """One job per member."""

    cluster = "slurm"


@final
@register("slurm-local")
class SlurmHere(_Submitit):
    """The same jobs on this machine."""

    cluster = "local"
