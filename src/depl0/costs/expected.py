"""The cost of a gated model as a differentiable function of its open probabilities.

A weight between an output channel with gate o and an input channel with gate i is kept if both are open. For
independent gates P(o open and i open) = p_o·p_i, and p_o if o and i are the same gate (a residual stream's
convolution). So with S(axis) = Σ p over an axis' positions, where frozen positions count 1,

    E[cost] = constant + Σ_terms c·( S(out)·S(in) + Σ_g n_out(g)·n_in(g)·(p_g - p_g²) )

which is exact. With S as a vector over all axes and C the symmetric matrix of the c, this is the bilinear form SᵀCS, so
value and gradient need only a few operators, however deep the network is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor, nn

from depl0._util.registry import Registry
from depl0._util.tensors import ConstantTensors
from depl0.analysis.plan import Plan
from depl0.costs.count import Cost
from depl0.costs.terms import AxisTable, PairwiseCost, pairwise

KINDS = ("params", "macs", "groups")
PENALTIES: Registry[type[ConstantTensors]] = Registry("penalty", plugins="depl0.penalties")
"""More expected costs by name: modules of (plan, parameter shapes, number of weights of every gate's own filters)."""


class ExpectedCost(ConstantTensors):
    """Expected parameters, MACs and the paper's Σ|g_k|π_k, computed from open probabilities.

    The costs in :data:`PENALTIES` are available by their names too.
    """

    axis_of: Tensor
    gate_of: Tensor
    count: Tensor
    fixed: Tensor
    pairs: Tensor
    same_gate: Tensor
    constants: Tensor
    filter_weights: Tensor

    def __init__(self, plan: Plan, shapes: Mapping[str, Sequence[int]], dense_macs: int) -> None:
        """``shapes`` are those of the host's parameters; ``dense_macs`` is its full cost, including attention."""
        super().__init__()
        self.num_gates = plan.num_gates
        self.dense_params, self.dense_macs = sum(map(prod, shapes.values())), dense_macs
        table = AxisTable(plan)
        terms: list[tuple[int, int, int, float]] = []  # (place in KINDS, axis, axis, cost of a pair of positions)
        constants = [0.0, float(dense_macs)]
        for name, sizes in shapes.items():
            bound = [dim for dim in range(len(sizes)) if (name, dim) in plan.axes]
            per_pair = float(prod(size for dim, size in enumerate(sizes) if dim not in bound))
            if not bound:
                constants[0] += per_pair
                continue
            assert len(bound) <= 2, f"{name} has more than two channel dimensions"
            axes = [table.index((name, dim), sizes[dim]) for dim in bound]
            terms.append((0, axes[0], axes[1] if len(axes) == 2 else table.one, per_pair))
        for use in plan.uses:
            out = table.index(use.out_axis, use.out_size)
            into = table.one if use.in_axis is None else table.index(use.in_axis, use.in_size)
            constants[1] -= use.macs_per_pair * use.out_size * (1 if use.in_axis is None else use.in_size)
            terms.append((1, out, into, float(use.macs_per_pair)))
        for product in plan.products:
            constants[1] -= product.macs * len(product.gates)
            terms.append((1, table.index_of(product.gates), table.one, product.macs))

        pairs = torch.zeros(2, len(table.fixed), len(table.fixed), dtype=torch.float64)
        same_gate = torch.zeros(2, plan.num_gates, dtype=torch.float64)
        for row, a, b, per_pair in terms:
            pairs[row, a, b] += per_pair / 2  # half on each side of the diagonal
            pairs[row, b, a] += per_pair / 2
            for gate, times in table.same_gates(a, b).items():
                same_gate[row, gate] += times * per_pair
        filter_weights = torch.zeros(plan.num_gates + 1, dtype=torch.float64)  # the last entry: frozen positions
        for (name, dim), gates in {**{axis: plan.axes[axis] for axis in plan.filters}, **plan.uncut_filters}.items():
            own = torch.full_like(gates, prod(shapes[name]) // shapes[name][dim])
            filter_weights.index_add_(0, gates % (plan.num_gates + 1), own.double())
        self._exact = {
            "axis_of": torch.tensor(table.axis_of, dtype=torch.long),
            "gate_of": torch.tensor(table.gate_of, dtype=torch.long),
            "count": torch.tensor(table.count, dtype=torch.float64),
            "fixed": torch.tensor(table.fixed, dtype=torch.float64),
            "pairs": pairs,
            "same_gate": same_gate,
            "constants": torch.tensor(constants, dtype=torch.float64),
            "filter_weights": filter_weights[: plan.num_gates],
        }
        self._described = plan, shapes
        self._penalties = nn.ModuleDict()
        for name, tensor in self._exact.items():
            setattr(self, name, tensor.float() if tensor.is_floating_point() else tensor)

    def forward(self, open_probability: Tensor, kind: str) -> Tensor:
        """Return one expected cost, which is differentiable."""
        open_probability = open_probability.to(self.constants.dtype)  # double if the network is
        if kind == "groups":
            return torch.dot(open_probability, self.filter_weights)
        if kind not in KINDS:
            penalty: Tensor = self._penalty(kind)(open_probability)
            return penalty
        value, gradient = self.value_and_gradient(open_probability.detach(), kind)
        # The product is 0, and its gradient is the one above: a tenth of the operators that autograd would record.
        return value + torch.dot(gradient, open_probability - open_probability.detach())

    def _penalty(self, kind: str) -> nn.Module:
        """Return one of :data:`PENALTIES`, created on first use."""
        if kind not in self._penalties:
            made = PENALTIES.find(kind)(*self._described, self._exact["filter_weights"])
            self._penalties[kind] = made.to(self.constants.device)
        return self._penalties[kind]

    def value_and_gradient(self, open_probability: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """Return expected parameters or MACs and their gradient in closed form, outside autograd."""
        return _value_and_gradient(open_probability.to(self.constants.dtype), vars(self), KINDS.index(kind))

    def dense(self, kind: str) -> float:
        """Return one cost with every gate open."""
        if kind == "groups":
            return float(self._exact["filter_weights"].sum())
        if kind not in KINDS:
            return float(self(torch.ones(self.num_gates, device=self.device), kind))
        return self.dense_macs if kind == "macs" else self.dense_params

    @property
    def device(self) -> torch.device:
        """Return the device of the constants."""
        return self.constants.device

    def pairwise(self, kind: str, choices: Sequence[tuple[Tensor, Tensor]], others: Tensor) -> PairwiseCost:
        """Return parameters or MACs as a sum over groups and pairs of groups (:func:`~depl0.costs.terms.pairwise`)."""
        return pairwise(self._exact, KINDS.index(kind), choices, others)

    def rounded(self, open_probability: Tensor) -> Cost:
        """Return expected parameters and MACs, computed in float64 and rounded to integers."""
        p = open_probability.detach().double().cpu()
        params, macs = (round(float(_value_and_gradient(p, self._exact, row)[0])) for row in (0, 1))
        return Cost(params, macs)


def _value_and_gradient(p: Tensor, t: Mapping[str, Tensor], row: int) -> tuple[Tensor, Tensor]:
    per_axis = t["fixed"].index_add(0, t["axis_of"], p.index_select(0, t["gate_of"]) * t["count"])
    by_axis, same_gate = t["pairs"][row].mv(per_axis), t["same_gate"][row]
    both_open = torch.addcmul(same_gate, same_gate, p, value=-1)  # n·(1 - p)
    value = torch.dot(per_axis, by_axis) + torch.dot(p, both_open) + t["constants"][row]
    by_entry = by_axis.index_select(0, t["axis_of"]) * t["count"]
    direct = torch.addcmul(same_gate, same_gate, p, value=-2)  # n·(1 - 2p)
    return value, direct.index_add(0, t["gate_of"], by_entry, alpha=2)
