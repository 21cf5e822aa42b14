"""Trainers import torchvision where it is installed, also where its compiled operators do not fit the torch."""

from __future__ import annotations

import contextlib

from depl0._util.optional import import_torchvision

with contextlib.suppress(ImportError):
    import_torchvision()
