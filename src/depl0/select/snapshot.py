"""A snapshot of a gated model with all data that the selection of its gates needs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from depl0.analysis.plan import Plan
from depl0.costs.count import Cost
from depl0.costs.expected import ExpectedCost
from depl0.equivalence.certificate import depends_on_input
from depl0.gates.threshold import BudgetKind, counted
from depl0.host.inputs import ExampleInputs
from depl0.surgery.extraction import extract
from depl0.surgery.slicing import kept_gates


@dataclass(frozen=True)
class Snapshot:
    """The network, its costs, and its gates. All tensors are on the CPU."""

    plan: Plan
    host: nn.Module
    host_plan: Plan
    """The plan of the current host, which may have been shrunk."""
    example: ExampleInputs
    expected: ExpectedCost
    removed: Tensor
    """Gates that are permanently closed."""
    log_alpha: Tensor
    """Also decides which channel of a closed group is kept."""
    gates: Tensor
    """The evaluation gates, or the fixed gates."""
    is_fixed: bool = False

    def kept(self, is_open: Tensor) -> Tensor:
        """Return the gates whose channels the pruned model has: the open ones, and one of each empty layer."""
        return kept_gates(self.host_plan, is_open, self.log_alpha)

    def removable(self, gates: Tensor) -> Tensor:
        """Return the subset of these gates that can be removed; each group keeps one channel."""
        return gates & ~self.kept(~(self.removed | gates))

    def cost(self, is_open: Tensor) -> Cost:
        """Return parameters and MACs of the pruned model."""
        return self.expected.rounded(self.kept(is_open).float())

    def share(self, is_open: Tensor, of: BudgetKind) -> float:
        """Return the pruned model's fraction of the original cost; for a latency budget, the fraction of the MACs."""
        cost = self.cost(is_open)
        return (cost.params if of == "params" else cost.macs) / self.expected.dense(counted(of))

    def marginal_cost(self, is_open: Tensor, of: BudgetKind) -> Tensor:
        """Return the cost that every gate adds if the gates in ``is_open`` are open."""
        return self.expected.value_and_gradient(is_open.float().to(self.expected.device), counted(of))[1].cpu()

    def depends_on_input(self, gates: Tensor) -> bool:
        """Return True if the host's outputs still depend on its inputs with these gates."""
        return depends_on_input(self.host_plan, self.host, gates, self.example)

    def extract(self, gates: Tensor, remove_blocks: bool) -> nn.Module:
        """Return the verified pruned model of these gates."""
        costs = Cost(self.expected.dense_params, self.expected.dense_macs), self.cost(gates.cpu() > 0)
        return extract(self.host_plan, self.host, gates, self.log_alpha, self.example, costs, remove_blocks)
