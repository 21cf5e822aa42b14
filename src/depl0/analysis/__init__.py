"""Which channels of a network belong together, and which can go."""

from depl0.analysis.analyse import Analysis
from depl0.analysis.plan import FROZEN, Group, LayerReport, Plan
from depl0.analysis.selection import GroupChoice

__all__ = ["FROZEN", "Analysis", "Group", "GroupChoice", "LayerReport", "Plan"]
