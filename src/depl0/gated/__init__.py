"""A host network with gates on its channels."""

from depl0.gated.attaching import attach
from depl0.gated.model import FIXED, GONE, PRESENT, GatedModel

__all__ = ["FIXED", "GONE", "PRESENT", "GatedModel", "attach"]
