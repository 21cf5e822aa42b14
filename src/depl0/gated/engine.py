"""Internal: operations of :class:`depl0.Search` and the app on a gated model.

``gated.engine`` is an :class:`Engine`: a handle on the parts of a :class:`~depl0.GatedModel` that are not public.
Everything outside this package uses it. It has no state of its own, and its interface may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from depl0._util.process import library_defaults
from depl0.analysis.plan import Plan
from depl0.config import PenaltyKind, PenaltyScale
from depl0.costs.count import Cost
from depl0.costs.expected import ExpectedCost
from depl0.gated.checks import check_closing, checked_gates
from depl0.gates.threshold import Threshold
from depl0.host.inputs import ExampleInputs
from depl0.select.snapshot import Snapshot
from depl0.surgery.shrink import Shrunk, certify_shrunk, remaining_gates, shrink, shrunk_between

if TYPE_CHECKING:
    from depl0.gated.model import GatedModel


class HostState(NamedTuple):
    """A host and its plan at one point in time."""

    host: nn.Module
    plan: Plan


class Engine:
    """A handle on the gates, costs and host of a gated model."""

    def __init__(self, gated: GatedModel) -> None:
        self._gated = gated

    @property
    def device(self) -> torch.device:
        """Return the device of the gates."""
        return self._gated._scaling.index.device

    @property
    def example(self) -> ExampleInputs:
        """Return the inputs of the analysis, on the network's current device."""
        return self._gated._example

    @property
    def host_plan(self) -> Plan:
        """Return the plan of the current host; the axes of a smaller host keep the gate numbers of the original one."""
        return self._gated._host_plan

    @property
    def threshold(self) -> Threshold | None:
        """Return the threshold that follows the budget, or None without a budget."""
        return self._gated._threshold

    @property
    def expected(self) -> ExpectedCost:
        """Return the expected costs."""
        return self._gated._expected

    @property
    def has_wrapper(self) -> bool:
        """Return True if the model is called by a DDP that follows its cuts (:mod:`depl0.gated.wrapping`)."""
        return self._gated._has_wrapper

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the current network, to select gates from."""
        gated = self._gated
        return Snapshot(
            gated.plan,
            gated.host,
            gated._host_plan,
            gated._example,
            gated._expected,
            self.removed,
            gated._checked_log_alpha().cpu(),
            gated.evaluation_gates().cpu(),
            gated._fixed is not None,
        )

    # -- forward -----------------------------------------------------------------------------------------------------

    def call_with_gates(self, gates: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Call the host with these gates, which may carry a gradient."""
        return self._gated._call(gates, args, kwargs)

    def call_with_penalty(
        self, kind: PenaltyKind, *args: Any, scale: PenaltyScale = "share", **kwargs: Any
    ) -> tuple[Any, Tensor]:
        """Return outputs and penalty; the generator runs once and its log α is used for both."""
        gated = self._gated
        if gated._fixed is not None or not gated.training or gated.generator.conditioning == "gates":
            return gated.forward(*args, **kwargs), gated.penalty(kind, scale=scale)  # which belongs to other gates
        log_alpha = gated.log_alpha()
        outputs = self.call_with_gates(gated._sample(log_alpha, args, kwargs), *args, **kwargs)
        return outputs, self.penalty_at(log_alpha, kind, scale=scale)

    def penalty_at(self, log_alpha: Tensor, kind: PenaltyKind, *, scale: PenaltyScale = "share") -> Tensor:
        """Return the penalty for this log α."""
        return self._gated._penalty(kind, scale, log_alpha)

    # -- gates -------------------------------------------------------------------------------------------------------

    @library_defaults()
    def start_from(self, scores: Tensor) -> None:
        """Set the generator so that it returns these scores (without a budget: log α), and reset the threshold."""
        generator, threshold = self._gated.generator, self._gated._threshold
        generator.start_from(scores)
        if threshold is not None:
            with torch.no_grad():  # all gates are open at the start, whatever the previous threshold was
                on_gates = generator.conditioning == "gates"
                threshold.solve(generator.on_gates(lambda _, s: torch.ones_like(s)) if on_gates else generator())

    @torch.no_grad()
    def follow_budget(self) -> None:
        """Move the threshold towards its target for the current scores: once before every step."""
        if self._gated._threshold is not None:
            self._gated._threshold.follow(self._gated._scores())

    @library_defaults()
    def fix_gates(self, values: Tensor) -> None:
        """Use these gates from now on, in training and in evaluation mode."""
        values = checked_gates(values, self._gated.plan, self.removed)
        self._gated._fixed = values.detach().to(device=self.device, dtype=torch.float32, copy=True)

    def free_gates(self) -> None:
        """Stop using fixed gates."""
        self._gated._fixed = None

    @property
    def is_fixed(self) -> bool:
        """Return True if fixed gates are used."""
        return self._gated._fixed is not None

    # -- removed gates and the smaller host ----------------------------------------------------------------------------

    @property
    def removed(self) -> Tensor:
        """Return a mask of the gates that are permanently closed."""
        gated = self._gated
        return torch.zeros(gated.plan.num_gates, dtype=torch.bool) if gated._removed is None else gated._removed.cpu()

    @property
    def kept(self) -> Tensor:
        """Return a mask of the gates whose channels the host still has."""
        return remaining_gates(self._gated._host_plan)

    @library_defaults()
    def close(self, gates: Tensor) -> None:
        """Close gates permanently: they are 0 and cost nothing from now on.

        The host keeps its size until :meth:`shrink`.

        ``gates`` is True for each of them.
        """
        gated = self._gated
        check_closing(gates, gated.plan)
        gated._removed = (self.removed | gates.cpu()).to(self.device)
        if gated._fixed is not None:
            gated._fixed = gated._without_removed(gated._fixed)
        if gated._threshold is not None:
            gated._threshold.close(gated._removed)
        gated._rebuild_scaling()

    @library_defaults()
    def shrink(self, kept: Tensor | None = None) -> Shrunk:
        """Replace the host by a smaller one, without the channels of removed gates. The former host is not modified.

        Outputs are compared before anything is replaced. Optimizers and averages hold the former host's parameters: the
        caller updates them with the returned object. A group without any open gate keeps one channel, at 0; ``kept``
        selects this channel if the same cut was made before (:attr:`kept`).
        """
        gated, network = self._gated, self.snapshot()
        kept = network.kept(~network.removed) if kept is None else kept
        shrunk = shrink(gated._host_plan, gated.host, kept)
        left, dense = gated._expected.rounded(kept.float()), gated.dense_cost
        costs = (dense.params, dense.macs), (left.params, left.macs)
        before = (gated._host_plan, gated.host)
        certify_shrunk(before, shrunk, gated.evaluation_gates(), gated._example, costs)
        gated.host, gated._host_plan = shrunk.host, shrunk.plan
        gated._rebuild_scaling()
        return shrunk

    def host_state(self) -> HostState:
        """Return the current host and plan, for :meth:`shrunk_since`."""
        return HostState(self._gated.host, self._gated._host_plan)

    def shrunk_since(self, before: HostState) -> Shrunk | None:
        """Return the mapping from a former host's tensors to the current ones; None if it is still the host.

        Loading a state dict may shrink the host. Code that holds its parameters calls this method afterwards.
        """
        if before.host is self._gated.host:
            return None
        return shrunk_between(before.plan, before.host, self._gated._host_plan, self._gated.host)

    def match_size(self, other: GatedModel) -> None:
        """Shrink this network, a copy of another, to the current size of the other one."""
        if not torch.equal(self.kept, other.engine.kept):
            self.close(other.engine.removed)
            self.shrink(other.engine.kept)

    # -- costs -------------------------------------------------------------------------------------------------------

    def cost_without(self, gates: Tensor) -> Cost:
        """Return the cost of the host after :meth:`close` of these gates and :meth:`shrink`."""
        return self.snapshot().cost(~(self.removed | gates.cpu()))

    def removable(self, gates: Tensor) -> Tensor:
        """Return the subset of these gates that can be removed; each group keeps one channel."""
        return gates & ~self.snapshot().kept(~(self.removed | gates))

    def expected_cost(self) -> Cost:
        """Return expected parameters and MACs over the gates, rounded."""
        self._gated._checked_log_alpha()
        return self._gated._expected.rounded(self._gated.open_probability())
