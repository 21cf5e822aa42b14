"""A host network with gates on its channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, final, get_args

import torch
from torch import Tensor, nn

from depl0._util.precision import out_of_half_precision
from depl0._util.registry import unknown
from depl0.analysis.plan import Plan
from depl0.config import GateConfig, PenaltyKind, PenaltyScale
from depl0.costs.count import Cost, cost
from depl0.costs.expected import KINDS, PENALTIES, ExpectedCost
from depl0.costs.latency_table import ExpectedLatency
from depl0.costs.terms import CostTerms
from depl0.equivalence.certificate import depends_on_input
from depl0.errors import GateError, InputError
from depl0.gated.checks import check_closing, check_saved_gates, checked_gates, checked_log_alpha
from depl0.gated.description import describe
from depl0.gated.followers import Followers
from depl0.gated.signature import shown_as
from depl0.gates import hard_concrete
from depl0.gates.generators import Generator
from depl0.gates.scaling import SiteScaling
from depl0.gates.threshold import Budget, BudgetKind
from depl0.host.functional import call_gated
from depl0.host.inputs import ExampleInputs
from depl0.host.network import Gated, tied_names
from depl0.latency.network import expected_latency
from depl0.select.freeze import Frozen, check_budget, final_gates, freeze, within
from depl0.select.rounding import check_round_to, round_gates
from depl0.surgery.extraction import extract
from depl0.surgery.shrink import Narrowed, certify_and_remember, narrow, present_gates
from depl0.surgery.slicing import kept_gates

FIXED, GONE, PRESENT = "fixed_gates", "gone_gates", "present_gates"
"""keys of the state dict, each only where there is something to say"""


@final
class GatedModel(Gated):
    """A host whose channels are multiplied by gates; call it like the host.

    In training mode every call samples all gates, once for the batch; in evaluation mode the deterministic evaluation
    gates are used. The host is called with its gated parameters in place of its own
    (:func:`torch.func.functional_call`), so nothing in it is replaced, renamed or hooked. A call changes nothing about
    the gates, so it may be repeated: accumulated gradients, activation checkpointing and several forward passes in one
    step are all fine.

    ``state_dict`` holds everything, gates that are fixed or gone included. Loaded into a freshly attached network, it
    also brings the host to the size that it had.
    """

    def __init__(
        self,
        host: nn.Module,
        plan: Plan,
        generator: Generator,
        example: ExampleInputs,
        config: GateConfig | None = None,
        dense_cost: Cost | None = None,
    ) -> None:
        super().__init__()
        self.config = config or GateConfig()
        self.plan = plan
        self._host_plan = plan  # of the host as it stands, which may have been shrunk
        self.dense_cost = dense_cost or cost(host, example)
        self._example = example
        self._followers = Followers()
        parameters = dict(host.named_parameters())
        device = next(iter(parameters.values())).device
        self.host = host
        self._ties = tied_names(host)
        self.generator = generator.to(device)
        self._scaling = SiteScaling(plan, parameters).to(device)
        shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        self._expected = ExpectedCost(plan, shapes, self.dense_cost.macs).to(device)
        self.budget: Budget | None = None
        self._fixed: Tensor | None = None
        self._gone: Tensor | None = None
        self.training = host.training
        if self.config.budget is not None:
            self.set_budget(self.config.budget, self.config.of)
        self.forward = shown_as(self.forward, host)  # type: ignore[method-assign]

    @property
    def example(self) -> ExampleInputs:
        """Return the inputs that the network was analysed with, where the network is now."""
        return self._example

    @property
    def host_plan(self) -> Plan:
        """Return the plan of the host as it stands; a smaller host's axes keep the gate numbers of the dense one."""
        return self._host_plan

    @property
    def device(self) -> torch.device:
        """Return where the gates are."""
        return self._scaling.index.device

    # -- the network -----------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the host with gates: sampled in training mode, evaluation gates otherwise, or the fixed ones."""
        return self.with_gates(self._gates(), *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Give what the host has and this class has not: ``gated.num_features``, ``gated.get_classifier()``."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            host = self.__dict__.get("_modules", {}).get("host")
            if host is None or name.startswith("_") or not hasattr(host, name):
                raise
            return getattr(host, name)

    def with_gates(self, gates: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Call the host with these gates, which may carry a gradient."""
        return call_gated(self.host, self._gated_parameters(gates), args, kwargs, self._ties, self.plan.checkpointing)

    def with_penalty(
        self, kind: PenaltyKind, *args: Any, scale: PenaltyScale = "share", **kwargs: Any
    ) -> tuple[Any, Tensor]:
        """Do as :meth:`forward` and return the penalty too; the generator, asked once, gives log α for both."""
        if self._fixed is not None or not self.training or self.generator.conditioning == "gates":
            return self.forward(*args, **kwargs), self.penalty(kind, scale=scale)  # which is for other gates than these
        log_alpha = self.log_alpha()
        outputs = self.with_gates(hard_concrete.sample_gates(log_alpha), *args, **kwargs)
        return outputs, self.penalty(kind, log_alpha, scale=scale)

    def _gates(self) -> Tensor:
        if self._fixed is not None:
            return self._fixed
        if not self.training:
            return hard_concrete.evaluation_gates(self.log_alpha(), self.config.evaluation)
        if self.generator.conditioning == "gates":  # group after group; the noise of all gates is drawn at once
            uniform = torch.rand(self.plan.num_gates, device=self.device)
            return hard_concrete.sample(self._located(self._scores(uniform)), uniform)
        return hard_concrete.sample_gates(self.log_alpha())

    def _scores(self, uniform: Tensor | None = None) -> Tensor:
        """Return what the generator gives; fed on gates, on those of this noise, or else on evaluation gates."""
        if self.generator.conditioning == "log_alpha":
            scores: Tensor = self.generator()
            return scores
        return self.generator.on_gates(lambda group, scores: self.gates_of_group(group, scores, uniform))

    def gates_of_group(self, group: int, scores: Tensor, uniform: Tensor | None = None) -> Tensor:
        """Return one group's gates for its scores: those of this noise (of all gates), or else evaluation gates."""
        log_alpha = scores if self.budget is None else self.budget.sharpness * (scores - self.budget.shift)
        place = self.plan.groups[group].gates
        if uniform is None:
            gates = hard_concrete.evaluation_gates(log_alpha, self.config.evaluation)
        else:
            gates = hard_concrete.sample(log_alpha, uniform[place])
        return gates if self._gone is None else gates.masked_fill(self._gone[place], 0.0)

    def _located(self, scores: Tensor) -> Tensor:
        """Return log α for the generator's scores: they are it, or the budget's threshold is taken off."""
        log_alpha: Tensor = scores if self.budget is None else self.budget(scores)
        return log_alpha

    def _gated_parameters(self, gates: Tensor) -> dict[str, Tensor]:
        parameters = {name: self.host.get_parameter(name) for name in self._scaling.names}
        scaled: dict[str, Tensor] = self._scaling(parameters, gates)
        return scaled

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GatedModel:
        """Move and convert the host as asked; everything about gates and cost stays out of half precision."""
        keep_precision = out_of_half_precision(fn)
        for child in self.children():
            child._apply(fn if child is self.host else keep_precision)
        if self._fixed is not None:
            self._fixed = keep_precision(self._fixed)
        if self._gone is not None:
            self._gone = keep_precision(self._gone)
        self._example = self._example.map_tensors(lambda t: _moved_like(t, fn(t)))
        return self

    def __repr__(self) -> str:
        return describe(self)

    # -- state -----------------------------------------------------------------------------------------------------

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._fixed is not None:
            destination[prefix + FIXED] = self._fixed
        if self._gone is not None:
            destination[prefix + GONE], destination[prefix + PRESENT] = self._gone, self.present

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Bring the host to the size that it had, before its own values are loaded."""
        saved: dict[str, Any] = {key: state_dict.get(prefix + key) for key in (FIXED, GONE, PRESENT)}
        rest = {key: value for key, value in state_dict.items() if key.removeprefix(prefix) not in saved}
        super()._load_from_state_dict(rest, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        self._restore_size(saved[GONE], saved[PRESENT])
        self._fixed = None
        if saved[FIXED] is not None:
            self.fix_gates(saved[FIXED])

    def _restore_size(self, gone: Tensor | None, present: Tensor | None) -> None:
        check_saved_gates(self.plan, self.gone, gone, present)
        if gone is None or present is None:
            return
        if bool((gone.cpu() & ~self.gone).any()):
            self.close(gone.cpu())
        if not torch.equal(present.cpu(), self.present):
            self.shrink(present.cpu())

    def when_shrunk(self, follow: Callable[[Narrowed], None]) -> None:
        """Call ``follow`` whenever the host is replaced by a smaller one: to take along what holds its parameters."""
        self._followers.append(follow)

    # -- gates -----------------------------------------------------------------------------------------------------

    def log_alpha(self) -> Tensor:
        """Return the location of every gate's distribution: flat, in plan order, differentiable.

        Where groups are fed on gates, this is for the evaluation gates of the groups before them.
        """
        return self._located(self._scores())

    def start_from(self, scores: Tensor) -> None:
        """Let the generator give these scores (without a budget: log α), and the budget follow from there."""
        self.generator.start_from(scores)
        if self.budget is not None:
            with torch.no_grad():  # all gates are open at the start, whatever the threshold was before
                on_gates = self.generator.conditioning == "gates"
                self.budget.solve(
                    self.generator.on_gates(lambda _, s: torch.ones_like(s)) if on_gates else self.generator()
                )

    @torch.no_grad()
    def follow_budget(self) -> None:
        """Move the budget's threshold towards its target, for the scores as they are: once before every step."""
        if self.budget is not None:
            self.budget.follow(self._scores())

    def open_probability(self) -> Tensor:
        """Return P(gate > 0) of every gate: flat, in plan order, differentiable."""
        if self._fixed is not None:
            return (self._fixed > 0).float()
        return self._without_gone(hard_concrete.open_probability(self.log_alpha()))

    @torch.no_grad()
    def evaluation_gates(self) -> Tensor:
        """Return the deterministic gates by this model's rule (``config.evaluation``), or the fixed gates."""
        if self._fixed is not None:
            return self._fixed.clone()
        return self._without_gone(hard_concrete.evaluation_gates(self._checked_log_alpha(), self.config.evaluation))

    def rounded_gates(self, round_to: int, *, remove_blocks: bool = False) -> Tensor:
        """Return evaluation gates whose groups keep a multiple of ``round_to`` channels, or all of them.

        The most doubtful gates change: reopened ones are 1. Without a budget every group goes to the nearest multiple;
        with one, what stays is within it.
        """
        check_round_to(round_to)
        gates = self.evaluation_gates()
        if round_to == 1:
            return gates
        limit = None if self.budget is None else within(self, self.budget.share, self.budget.of)
        is_open = gates.cpu() > 0
        kept = round_gates(self.plan, is_open, self._score(), round_to, limit, may_vanish=remove_blocks, gone=self.gone)
        return torch.where(kept.to(gates.device), torch.where(gates > 0, gates, 1.0), 0.0)

    def freeze(self) -> Frozen:
        """Fix the gates for good, within the budget if there is one, and go on gated: train, evaluate, extract.

        The best gates by log α stay open, as many as the budget allows, in multiples of ``config.round_to`` channels.
        """
        self._fixed = None
        budget, of = (self.budget.share, self.budget.of) if self.budget is not None else (None, self.config.of)
        return freeze(self, budget, of, self.config.remove_blocks, round_to=self.config.multiple)

    def fix_gates(self, values: Tensor) -> None:
        """Use these gates from now on, in training and in evaluation mode."""
        values = checked_gates(values, self.plan, self.gone)
        self._fixed = values.detach().to(device=self.device, dtype=torch.float32, copy=True)

    def free_gates(self) -> None:
        """Stop using fixed gates."""
        self._fixed = None

    @property
    def is_fixed(self) -> bool:
        """Return whether fixed gates are used."""
        return self._fixed is not None

    # -- gates that are gone -----------------------------------------------------------------------------------------

    @property
    def gone(self) -> Tensor:
        """Return which gates are closed for good."""
        return torch.zeros(self.plan.num_gates, dtype=torch.bool) if self._gone is None else self._gone.cpu()

    def close(self, gates: Tensor) -> None:
        """Close gates for good: they are 0 and cost nothing from now on, whatever their log α; that goes on as before.

        ``gates`` has True for each of them. The host keeps its size until :meth:`shrink`.
        """
        check_closing(gates, self.plan)
        self._gone = (self.gone | gates.cpu()).to(self.device)
        if self._fixed is not None:
            self._fixed = self._without_gone(self._fixed)
        if self.budget is not None:
            self.budget.close(self._gone)
        self._rebuild_scaling()

    def shrink(self, present: Tensor | None = None) -> Narrowed:
        """Replace the host by a smaller one, without the channels of gates that are gone. The former is not modified.

        Outputs are compared before anything is replaced. Optimizers and running means hold the former host's
        parameters: :class:`depl0.Search` takes them along, or :func:`depl0.carry_over` by hand. A group of which no
        gate is left keeps one channel, at 0; ``present`` says which, where the same was done before (:attr:`present`).
        """
        if present is None:
            present = kept_gates(self._host_plan, ~self.gone, self._score())
        narrowed = narrow(self._host_plan, self.host, present)
        dense, left = (self.dense_cost.params, self.dense_cost.macs), self._cost_at(present.float())
        gates, before = self.evaluation_gates(), (self._host_plan, self.host)
        certify_and_remember(before, narrowed, gates, self._example, (dense, (left.params, left.macs)))
        self.host, self._host_plan = narrowed.host, narrowed.plan
        self._rebuild_scaling()
        for follow in self._followers:
            follow(narrowed)
        return narrowed

    @property
    def present(self) -> Tensor:
        """Return which gates' channels the host still has."""
        return present_gates(self._host_plan)

    def cost_without(self, gates: Tensor) -> Cost:
        """Return what the host would cost after :meth:`close` of these gates and :meth:`shrink`."""
        return self._cost_at(kept_gates(self._host_plan, ~(self.gone | gates.cpu()), self._score()).float())

    def can_go(self, gates: Tensor) -> Tensor:
        """Return those of these gates whose channels could be cut out: one of every group stays in any case."""
        return gates & ~kept_gates(self._host_plan, ~(self.gone | gates), self._score())

    def _rebuild_scaling(self) -> None:
        parameters = dict(self.host.named_parameters())
        self._ties = tied_names(self.host)
        self._scaling = SiteScaling(self._host_plan, parameters, self._gone).to(self.device)

    def _without_gone(self, values: Tensor) -> Tensor:
        return values if self._gone is None else values.masked_fill(self._gone, 0.0)

    # -- cost ------------------------------------------------------------------------------------------------------

    def set_budget(self, share: float, of: BudgetKind = "macs") -> Budget:
        """Let the gates follow a budget: the share of the dense MACs, parameters or latency that may be left."""
        if of == "latency":
            self.time_layers()
        budget = Budget(self._expected, self._dense(of), share, of).to(self.device)
        check_budget(self, share, of, self.config.multiple)
        if self._gone is not None:
            budget.close(self._gone)
        budget.solve(self._scores().detach())
        self.budget = budget
        return budget

    def penalty(
        self, kind: PenaltyKind = "params", log_alpha: Tensor | None = None, *, scale: PenaltyScale = "share"
    ) -> Tensor:
        """Return the expected cost, differentiable: multiply it by λ and add it to the loss.

        Args:
            kind: "params" or "macs", "groups" (the paper's Σ|g_k|π_k: every filter counts its own weights, whether or
                not their inputs are open), "chain" or "groups-k2" (those of the authors' code,
                :mod:`depl0.paper.penalties`), or "latency" (after :meth:`time_layers`).
            log_alpha: the log α to use, where the caller has it already.
            scale: "share" of what the dense network costs, so that λ means the same for every network and example; or
                "count": the number of parameters, multiply-accumulates or seconds, as published λ are meant.

        Where groups are fed on gates, the expectation in training mode is that of one sample of them.
        """
        if kind not in KINDS and kind not in PENALTIES:
            raise unknown("kind", kind, (*KINDS, *PENALTIES))
        if scale not in get_args(PenaltyScale):
            raise InputError(f"scale must be 'share' or 'count', got {scale!r} instead.")
        if log_alpha is None and self.training and self._fixed is None and self.generator.conditioning == "gates":
            log_alpha = self._located(self._scores(torch.rand(self.plan.num_gates, device=self.device)))
        if log_alpha is not None:
            open_probability = self._without_gone(hard_concrete.open_probability(log_alpha))
        else:
            open_probability = self.open_probability()
        expected: Tensor = self._expected(open_probability, kind)
        return expected if scale == "count" else expected / self._dense(kind)

    def expected_cost(self) -> Cost:
        """Return expected parameters and MACs over the gates, rounded."""
        self._checked_log_alpha()
        return self._cost_at(self.open_probability())

    def kept_cost(self) -> Cost:
        """Return the parameters and MACs that the compact network would have."""
        gates = self.evaluation_gates().cpu()
        kept = kept_gates(self._host_plan, gates > 0, self._score())
        return self._cost_at(kept.float())

    def share_of(self, gates: Tensor, of: BudgetKind, score: Tensor | None = None) -> float:
        """Return the share of the dense MACs, parameters or latency that the compact network would have.

        Latency is what the tables of :meth:`time_layers` say; the compact network itself may be measured. ``score``
        decides which channel of a closed group stays; who asks often passes log α, so that it is computed once.
        """
        kept = kept_gates(self._host_plan, gates.cpu() > 0, self._score() if score is None else score).float()
        if of == "latency":
            return float(self._expected(kept.to(self.device), of)) / self._dense(of)
        left = self._cost_at(kept)
        return (left.macs if of == "macs" else left.params) / self._dense(of)

    def time_layers(self) -> ExpectedLatency:
        """Measure what every layer takes on this device with how many channels, so that latency can be a cost.

        Takes some seconds, once: the tables are kept in the user's cache folder (DEPL0_CACHE names another one), by
        device, number of threads and shape.
        """
        if self._expected.latency is None:
            timed = expected_latency(self.plan, self.host, self._example)
            self._expected.latency = timed.to(self.device)
        return self._expected.latency

    def _dense(self, of: PenaltyKind) -> float:
        if of == "latency":
            return self._expected.timed().dense
        if of == "groups":
            return self._expected.dense_groups
        if of not in KINDS:
            return float(self._expected(torch.ones(self.plan.num_gates, device=self.device), of))
        return self.dense_cost.macs if of == "macs" else self.dense_cost.params

    def expected_cost_gradient(self, open_probability: Tensor, kind: PenaltyKind) -> tuple[Tensor, Tensor]:
        """Return the expected cost for these open probabilities, and its gradient, outside autograd."""
        return self._expected.value_and_gradient(open_probability.detach(), kind)

    def cost_terms(self, of: BudgetKind) -> CostTerms | None:
        """Return parameters or MACs as terms of decided gates; None for latency, which comes from tables."""
        return None if of == "latency" else self._expected.terms(of)

    def _cost_at(self, open_probability: Tensor) -> Cost:
        params, macs = self._expected.exact(open_probability)
        return Cost(round(params), round(macs))

    # -- training --------------------------------------------------------------------------------------------------

    def weight_parameters(self) -> Iterator[nn.Parameter]:
        """Return the host's parameters, for the first of the paper's two optimizers."""
        return self.host.parameters()

    def gate_parameters(self) -> Iterator[nn.Parameter]:
        """Return the generator's parameters, for the second."""
        return self.generator.parameters()

    # -- the compact network ---------------------------------------------------------------------------------------

    def extract(self, *, remove_blocks: bool | None = None, round_to: int | None = None) -> nn.Module:
        """Return a plain network of the host's class, without the closed channels, that gives the same outputs.

        The outputs of both are compared in float64, on the example and on random inputs, before anything is returned.
        With a budget the compact network keeps it: gates are chosen as :meth:`freeze` would, and fixed gates that cost
        more are refused. A group whose gates are all closed keeps one channel; with ``remove_blocks`` the layers around
        it are replaced by the constant that they have become. Both arguments default to the configuration's.
        """
        remove_blocks = self.config.remove_blocks if remove_blocks is None else remove_blocks
        gates = self._gates_to_extract(remove_blocks, round_to)
        dense = (self.dense_cost.params, self.dense_cost.macs)
        return extract(self._host_plan, self.host, gates, self._score(), self._example, dense, remove_blocks)

    def _gates_to_extract(self, remove_blocks: bool, round_to: int | None) -> Tensor:
        budget, wanted = self.budget, self.config.multiple if round_to is None else round_to
        check_round_to(wanted)
        if self._fixed is None:
            if budget is None:
                return self.rounded_gates(wanted, remove_blocks=remove_blocks)
            return final_gates(self, budget.share, budget.of, remove_blocks, round_to=wanted).gates
        gates = self._fixed if round_to is None else self.rounded_gates(round_to, remove_blocks=remove_blocks)
        share = 0.0 if budget is None or budget.of == "latency" else self.share_of(gates, budget.of)
        if budget is not None and share > budget.share + 1e-9:  # of a latency the measurement decides, not the table
            raise GateError(
                f"the fixed gates leave {share:.4f} of the {budget.of}, more than the budget of {budget.share:g}.",
                hint="let gated.freeze() choose gates within the budget, or set another one with gated.set_budget.",
            )
        return gates

    def reacts(self, gates: Tensor) -> bool:
        """Tell whether the host's outputs still depend on its inputs with these gates."""
        return depends_on_input(self._host_plan, self.host, gates, self._example)

    # -- checks ----------------------------------------------------------------------------------------------------

    def _score(self) -> Tensor:
        """Return what decides which channel of a closed group stays."""
        return self._checked_log_alpha().cpu()

    def _checked_log_alpha(self) -> Tensor:
        return checked_log_alpha(self.log_alpha().detach(), self.plan)


def _moved_like(tensor: Tensor, moved: Tensor) -> Tensor:
    """Bring an example input to where the host has gone, with its values (which ``moved`` may have lost)."""
    return tensor if moved.is_meta else tensor.to(moved.device, moved.dtype)
