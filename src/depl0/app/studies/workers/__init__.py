"""Workers that run members of a study in parallel: processes of this machine, a Ray cluster, Slurm."""

from depl0._util.registry import import_modules_of
from depl0.app.studies.workers.base import WORKERS, Job, Resources, Workers, find_workers, register

import_modules_of(__name__)

__all__ = ["WORKERS", "Job", "Resources", "Workers", "find_workers", "register"]
