"""A host network with gates on its channels."""

from depl0.gated.attaching import attach
from depl0.gated.model import FIXED, KEPT, REMOVED, GatedModel

__all__ = ["FIXED", "KEPT", "REMOVED", "GatedModel", "attach"]
