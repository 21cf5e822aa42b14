"""Callbacks for existing trainers; each requires the extra of its name."""

import contextlib

from depl0._util.optional import import_torchvision

with contextlib.suppress(ImportError, RuntimeError):  # the trainers import it if it is installed
    import_torchvision()
