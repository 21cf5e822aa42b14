"""Callbacks for trainers that people already use; each needs the extra of its name."""

import contextlib

from depl0._util.optional import import_torchvision

with contextlib.suppress(ImportError, RuntimeError):  # the trainers import it where it is installed
    import_torchvision()
