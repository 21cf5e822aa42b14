"""Where members of a study run at the same time: processes of this machine, a Ray cluster, Slurm."""

from depl0._util.registry import import_modules_of
from depl0.app.studies.engines.base import ENGINES, Engine, Job, Resources, find_engine, register

import_modules_of(__name__)

__all__ = ["ENGINES", "Engine", "Job", "Resources", "find_engine", "register"]
