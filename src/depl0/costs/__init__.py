"""The cost of a network: counted for the current network, or expected over its gates."""

from depl0.costs.count import Cost, LayerCost, cost
from depl0.costs.expected import KINDS, ExpectedCost

__all__ = ["KINDS", "Cost", "ExpectedCost", "LayerCost", "cost"]
