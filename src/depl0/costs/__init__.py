"""What a network costs: counted as it stands, or expected over its gates."""

from depl0.costs.count import Cost, LayerCost, cost
from depl0.costs.expected import KINDS, ExpectedCost

__all__ = ["KINDS", "Cost", "ExpectedCost", "LayerCost", "cost"]
