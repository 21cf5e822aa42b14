"""Where tests have always found this function; it is part of the package now."""

from depl0._util.optional import import_torchvision

__all__ = ["import_torchvision"]
