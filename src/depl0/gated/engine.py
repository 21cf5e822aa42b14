"""Internal: what :class:`depl0.Search` and the app do to a gated network.

``gated.engine`` gives an :class:`Engine`: a handle on the parts of a :class:`~depl0.GatedModel` that are not public.
Everything outside this package goes through it. It has no state of its own, and no promise of stability.
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
    """A host and its plan at some time."""

    host: nn.Module
    plan: Plan


class Engine:
    """A handle on the gates, costs and host of a gated network."""

    def __init__(self, gated: GatedModel) -> None:
        self._gated = gated

    @property
    def device(self) -> torch.device:
        """Return where the gates are."""
        return self._gated._scaling.index.device

    @property
    def example(self) -> ExampleInputs:
        """Return the inputs that the network was analysed with, where the network is now."""
        return self._gated._example

    @property
    def host_plan(self) -> Plan:
        """Return the plan of the host as it stands; a smaller host's axes keep the gate numbers of the dense one."""
        return self._gated._host_plan

    @property
    def threshold(self) -> Threshold | None:
        """Return what follows the budget; None where there is none."""
        return self._gated._threshold

    @property
    def expected(self) -> ExpectedCost:
        """Return the expected costs."""
        return self._gated._expected

    @property
    def has_wrapper(self) -> bool:
        """Return whether it is called by a DDP that follows its cuts (:mod:`depl0.gated.wrapping`)."""
        return self._gated._has_wrapper

    def snapshot(self) -> Snapshot:
        """Return the network as it stands, to select gates from."""
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
        """Return outputs and penalty; the generator runs once and gives log α for both."""
        gated = self._gated
        if gated._fixed is not None or not gated.training or gated.generator.conditioning == "gates":
            return gated.forward(*args, **kwargs), gated.penalty(
                kind, scale=scale
            )  # which is for other gates than these
        log_alpha = gated.log_alpha()
        outputs = self.call_with_gates(gated._sample(log_alpha, args, kwargs), *args, **kwargs)
        return outputs, self.penalty_at(log_alpha, kind, scale=scale)

    def penalty_at(self, log_alpha: Tensor, kind: PenaltyKind, *, scale: PenaltyScale = "share") -> Tensor:
        """Return the penalty for this log α."""
        return self._gated._penalty(kind, scale, log_alpha)

    # -- gates -------------------------------------------------------------------------------------------------------

    @library_defaults()
    def start_from(self, scores: Tensor) -> None:
        """Let the generator give these scores (without a budget: log α), and the threshold follow from there."""
        generator, threshold = self._gated.generator, self._gated._threshold
        generator.start_from(scores)
        if threshold is not None:
            with torch.no_grad():  # all gates are open at the start, whatever the threshold was before
                on_gates = generator.conditioning == "gates"
                threshold.solve(generator.on_gates(lambda _, s: torch.ones_like(s)) if on_gates else generator())

    @torch.no_grad()
    def follow_budget(self) -> None:
        """Move the threshold towards its target, for the scores as they are: once before every step."""
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
        """Return whether fixed gates are used."""
        return self._gated._fixed is not None

    # -- removed gates and the smaller host ----------------------------------------------------------------------------

    @property
    def removed(self) -> Tensor:
        """Return which gates are closed for good."""
        gated = self._gated
        return torch.zeros(gated.plan.num_gates, dtype=torch.bool) if gated._removed is None else gated._removed.cpu()

    @property
    def kept(self) -> Tensor:
        """Return which gates' channels the host still has."""
        return remaining_gates(self._gated._host_plan)

    @library_defaults()
    def close(self, gates: Tensor) -> None:
        """Close gates for good: they are 0 and cost nothing from now on. The host keeps its size until :meth:`shrink`.

        ``gates`` has True for each of them.
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
        """Replace the host by a smaller one, without the channels of removed gates. The former is not modified.

        Outputs are compared before anything is replaced. Optimizers and averages hold the former host's parameters: the
        caller takes them along with what this returns. A group of which no gate is left keeps one channel, at 0;
        ``kept`` says which, where the same was done before (:attr:`kept`).
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
        """Return host and plan as they stand, for :meth:`shrunk_since`."""
        return HostState(self._gated.host, self._gated._host_plan)

    def shrunk_since(self, before: HostState) -> Shrunk | None:
        """Return where the tensors of a former host have gone; None if it is still the host.

        Loading a state dict may shrink the host; whoever holds its parameters asks afterwards.
        """
        if before.host is self._gated.host:
            return None
        return shrunk_between(before.plan, before.host, self._gated._host_plan, self._gated.host)

    def match_size(self, other: GatedModel) -> None:
        """Bring this network, a copy of another, to the size that the other one has by now."""
        if not torch.equal(self.kept, other.engine.kept):
            self.close(other.engine.removed)
            self.shrink(other.engine.kept)

    # -- costs -------------------------------------------------------------------------------------------------------

    def cost_without(self, gates: Tensor) -> Cost:
        """Return what the host would cost after :meth:`close` of these gates and :meth:`shrink`."""
        return self.snapshot().cost(~(self.removed | gates.cpu()))

    def removable(self, gates: Tensor) -> Tensor:
        """Return the subset of these gates that can be removed; each group keeps one channel."""
        return gates & ~self.snapshot().kept(~(self.removed | gates))

    def expected_cost(self) -> Cost:
        """Return expected parameters and MACs over the gates, rounded."""
        self._gated._checked_log_alpha()
        return self._gated._expected.rounded(self._gated.open_probability())
