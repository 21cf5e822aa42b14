"""What has to be true before any test or doctest is collected."""

from __future__ import annotations

import contextlib

from depl0._util.optional import import_torchvision

with contextlib.suppress(ImportError):  # trainers import torchvision, which may not fit the installed torch
    import_torchvision()
