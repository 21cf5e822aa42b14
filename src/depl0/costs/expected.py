"""The cost of a gated model as a differentiable function of its open probabilities.

A weight between an output channel with gate o and an input channel with gate i is kept if both are open. For
independent gates P(o open and i open) = p_o·p_i, and p_o if o and i are the same gate (a residual stream's
convolution). So with S(axis) = Σ p over an axis' positions, where frozen positions count 1,

    E[cost] = constant + Σ_terms c·( S(out)·S(in) + Σ_g n_out(g)·n_in(g)·(p_g - p_g²) )

which is exact. With S as a vector over all axes and C the symmetric matrix of the c, this is the bilinear form SᵀCS, so
value and gradient need only a few operators, however deep the network is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

import torch
from torch import Tensor, nn

from depl0._util.registry import Registry
from depl0._util.tensors import ConstantTensors
from depl0.analysis.plan import Plan
from depl0.costs.count import Cost
from depl0.costs.terms import AxisTable, CostTerms

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

    def __init__(self, plan: Plan, shapes: Mapping[str, Iterable[int]], dense_macs: int) -> None:
        """``shapes`` are those of the host's parameters; ``dense_macs`` is its full cost, including attention."""
        super().__init__()
        shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.num_gates = plan.num_gates
        self.dense_params, self.dense_macs = sum(map(prod, shapes.values())), dense_macs
        table = AxisTable(plan)
        terms: list[tuple[int, int, float, float]] = []  # (axis, axis, parameters, MACs) for a pair of positions
        constant_params = 0
        for name, shape in shapes.items():
            sizes = list(shape)
            bound = [dim for dim in range(len(sizes)) if (name, dim) in plan.axes]
            per_pair = prod(size for dim, size in enumerate(sizes) if dim not in bound)
            if not bound:
                constant_params += per_pair
                continue
            assert len(bound) <= 2, f"{name} has more than two channel dimensions"
            axes = [table.index((name, dim), sizes[dim]) for dim in bound]
            terms.append((axes[0], axes[1] if len(axes) == 2 else table.one, float(per_pair), 0.0))
        constant_macs = float(dense_macs)
        for use in plan.uses:
            out = table.index(use.out_axis, use.out_size)
            into = table.one if use.in_axis is None else table.index(use.in_axis, use.in_size)
            constant_macs -= use.macs_per_pair * use.out_size * (1 if use.in_axis is None else use.in_size)
            terms.append((out, into, 0.0, float(use.macs_per_pair)))
        for product in plan.products:
            constant_macs -= product.macs * len(product.gates)
            terms.append((table.index_of(product.gates), table.one, 0.0, product.macs))
        self._register(plan, table, terms, [float(constant_params), float(constant_macs)], shapes)

    def _register(
        self,
        plan: Plan,
        table: AxisTable,
        terms: list[tuple[int, int, float, float]],
        constants: list[float],
        shapes: Mapping[str, Iterable[int]],
    ) -> None:
        pairs = torch.zeros(2, len(table.fixed), len(table.fixed), dtype=torch.float64)
        for a, b, *per_pair in terms:  # half on each side of the diagonal
            halves = torch.tensor(per_pair, dtype=torch.float64) / 2
            pairs[:, a, b] += halves
            pairs[:, b, a] += halves
        same_gate = torch.zeros(2, plan.num_gates, dtype=torch.float64)
        for a, b, per_params, per_macs in terms:
            for gate, times in table.same_gates(a, b).items():
                same_gate[0, gate] += times * per_params
                same_gate[1, gate] += times * per_macs
        filter_weights = torch.zeros(plan.num_gates + 1, dtype=torch.float64)
        gates_of = {**{axis: plan.axes[axis] for axis in plan.filters}, **plan.uncut_filters}
        for (name, dim), gates in gates_of.items():
            sizes = list(shapes[name])
            filter_weights.index_add_(
                0, gates % (plan.num_gates + 1), torch.full_like(gates, prod(sizes) // sizes[dim]).double()
            )
        tensors = {
            "axis_of": torch.tensor(table.axis_of, dtype=torch.long),
            "gate_of": torch.tensor(table.gate_of, dtype=torch.long),
            "count": torch.tensor(table.count, dtype=torch.float64),
            "fixed": torch.tensor(table.fixed, dtype=torch.float64),
            "pairs": pairs,
            "same_gate": same_gate,
            "constants": torch.tensor(constants, dtype=torch.float64),
            "filter_weights": filter_weights[: plan.num_gates],
        }
        self._exact = tensors
        self.dense_groups = float(tensors["filter_weights"].sum())
        self._described = plan, shapes
        self._penalties = nn.ModuleDict()
        for name, tensor in tensors.items():
            setattr(self, name, tensor.float() if tensor.is_floating_point() else tensor)

    def forward(self, open_probability: Tensor, kind: str) -> Tensor:
        """Return one expected cost, which is differentiable."""
        open_probability = open_probability.to(self.constants.dtype)  # double if the network is
        if kind == "groups":
            return torch.dot(open_probability, self.filter_weights)
        if kind not in KINDS:
            penalty: Tensor = self._penalty(kind)(open_probability)
            return penalty
        row = KINDS.index(kind)
        return _evaluate(open_probability, {name: getattr(self, name) for name in self._exact}, row)

    def _penalty(self, kind: str) -> nn.Module:
        """Return one of :data:`PENALTIES`, created on first use."""
        if kind not in self._penalties:
            made = PENALTIES.find(kind)(*self._described, self._exact["filter_weights"])
            self._penalties[kind] = made.to(self.constants.device)
        return self._penalties[kind]

    def value_and_gradient(self, open_probability: Tensor, kind: str) -> tuple[Tensor, Tensor]:
        """Return expected parameters or MACs and their gradient in closed form, outside autograd."""
        open_probability = open_probability.to(self.constants.dtype)
        p, row = open_probability, KINDS.index(kind)
        gradient, per_axis, by_axis = self._gradient(p, row)
        same_gate = self.same_gate[row]
        both_open = torch.addcmul(same_gate, same_gate, p, value=-1)  # n·(1 - p)
        return torch.dot(per_axis, by_axis) + torch.dot(p, both_open) + self.constants[row], gradient

    def gradient(self, open_probability: Tensor, kind: str) -> Tensor:
        """Return only the gradient, with fewer operators, because a training step needs it a second time."""
        return self._gradient(open_probability, KINDS.index(kind))[0]

    def _gradient(self, p: Tensor, row: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradient, the open positions S of every axis, and CS."""
        per_axis = self.fixed.index_add(0, self.axis_of, p.index_select(0, self.gate_of) * self.count)
        by_axis = self.pairs[row].mv(per_axis)
        direct = torch.addcmul(self.same_gate[row], self.same_gate[row], p, value=-2)  # n·(1 - 2p)
        by_entry = by_axis.index_select(0, self.axis_of) * self.count
        return direct.index_add(0, self.gate_of, by_entry, alpha=2), per_axis, by_axis

    def dense(self, kind: str) -> float:
        """Return one cost with every gate open."""
        if kind == "groups":
            return self.dense_groups
        if kind not in KINDS:
            return float(self(torch.ones(self.num_gates, device=self.device), kind))
        return self.dense_macs if kind == "macs" else self.dense_params

    @property
    def device(self) -> torch.device:
        """Return the device of the constants."""
        return self.constants.device

    def terms(self, kind: str) -> CostTerms:
        """Return the terms of parameters or MACs, which are exact for binary gates."""
        t, row = self._exact, KINDS.index(kind)
        return CostTerms(
            t["axis_of"],
            t["gate_of"],
            t["count"],
            t["fixed"],
            t["pairs"][row],
            float(t["constants"][row]),
        )

    def exact(self, open_probability: Tensor) -> tuple[float, float]:
        """Return expected parameters and MACs in float64 on the CPU."""
        p = open_probability.detach().double().cpu()
        return float(_evaluate(p, self._exact, 0)), float(_evaluate(p, self._exact, 1))

    def rounded(self, open_probability: Tensor) -> Cost:
        """Return expected parameters and MACs, rounded to integers."""
        params, macs = self.exact(open_probability)
        return Cost(round(params), round(macs))


def _evaluate(p: Tensor, t: Mapping[str, Tensor], row: int) -> Tensor:
    per_axis = t["fixed"].index_add(0, t["axis_of"], p.index_select(0, t["gate_of"]) * t["count"])
    same_gate = torch.dot(torch.addcmul(p, p, p, value=-1), t["same_gate"][row])
    return torch.dot(per_axis, t["pairs"][row].mv(per_axis)) + same_gate + t["constants"][row]
