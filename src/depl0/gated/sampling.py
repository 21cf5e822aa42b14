"""The gates of a network: how they are sampled, fixed and penalised, whatever they multiply."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import torch
from torch import Tensor, nn

from depl0._util.process import library_defaults
from depl0._util.registry import unknown
from depl0.analysis.plan import Plan
from depl0.config import GateConfig, PenaltyKind, PenaltyScale
from depl0.costs.expected import KINDS, PENALTIES, ExpectedCost
from depl0.errors import InputError
from depl0.gated.checks import checked_gates, checked_log_alpha
from depl0.gated.per_image import batch_size
from depl0.gated.reuse import LastLogAlpha
from depl0.gates import hard_concrete
from depl0.gates.generators import Generator
from depl0.gates.rates import BETAS, gate_learning_rate
from depl0.gates.threshold import Threshold
from depl0.host.network import Gated


class SampledGates(Gated):
    """The part of :class:`~depl0.GatedModel` that computes gates, whose attributes that class sets."""

    host: nn.Module
    plan: Plan
    config: GateConfig
    generator: Generator
    expected: ExpectedCost
    _threshold: Threshold | None
    _fixed: Tensor | None
    _removed: Tensor | None
    _last: LastLogAlpha

    @property
    def device(self) -> torch.device:
        """Return the device of the gates."""
        return self.expected.device

    @property
    def threshold(self) -> Threshold | None:
        """Return the threshold that follows the budget, or None without a budget."""
        return self._threshold

    @property
    def is_fixed(self) -> bool:
        """Return True if fixed gates are used."""
        return self._fixed is not None

    @property
    def removed(self) -> Tensor:
        """Return a mask of the gates that are permanently closed."""
        return torch.zeros(self.plan.num_gates, dtype=torch.bool) if self._removed is None else self._removed.cpu()

    # -- sampling --------------------------------------------------------------------------------------------------

    def _gates(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        if self._fixed is not None:
            return self._fixed
        if not self.training:
            return hard_concrete.evaluation_gates(self.log_alpha(), self.config.evaluation)
        log_alpha = self.log_alpha()
        self._last.keep(log_alpha, self.generator, self._threshold)
        if self.config.draw == "batch":
            return hard_concrete.sample_gates(log_alpha)
        return self._without_removed(hard_concrete.sample_gates(log_alpha.expand(batch_size(args, kwargs), -1)))

    def log_alpha(self) -> Tensor:
        """Return the location of every gate's distribution: flat, in plan order, differentiable."""
        scores: Tensor = self.generator()
        log_alpha: Tensor = scores if self._threshold is None else self._threshold(scores)
        return log_alpha

    def open_probability(self) -> Tensor:
        """Return P(gate > 0) of every gate: flat, in plan order, differentiable."""
        if self._fixed is not None:
            return (self._fixed > 0).float()
        return self._without_removed(hard_concrete.open_probability(self.log_alpha()))

    @torch.no_grad()
    def evaluation_gates(self) -> Tensor:
        """Return the deterministic gates by this model's rule (``config.evaluation``), or the fixed gates.

        Raises:
            GateError: log α is not finite: the search has diverged.
        """
        if self._fixed is not None:
            return self._fixed.clone()
        return self._evaluated(checked_log_alpha(self.log_alpha(), self.plan))

    def _evaluated(self, log_alpha: Tensor) -> Tensor:
        return self._without_removed(hard_concrete.evaluation_gates(log_alpha, self.config.evaluation))

    def _without_removed(self, values: Tensor) -> Tensor:
        return values if self._removed is None else values.masked_fill(self._removed, 0.0)

    @library_defaults()
    def start_from(self, scores: Tensor) -> None:
        """Set the generator so that it returns these scores (without a budget: log α), and reset the threshold."""
        self.generator.start_from(scores)
        if self._threshold is not None:
            with torch.no_grad():
                self._threshold.solve(self.generator())

    @torch.no_grad()
    def follow_budget(self) -> None:
        """Move the threshold towards its target for the current scores: once before every step."""
        if self._threshold is not None:
            self._threshold.follow(self.generator())

    @library_defaults()
    def fix_gates(self, values: Tensor) -> None:
        """Use these gates from now on, in training and in evaluation mode."""
        values = checked_gates(values, self.plan, self.removed)
        self._fixed = values.detach().to(device=self.device, dtype=torch.float32, copy=True)

    def free_gates(self) -> None:
        """Stop using fixed gates."""
        self._fixed = None

    # -- cost ------------------------------------------------------------------------------------------------------

    def penalty(self, kind: PenaltyKind = "params", *, scale: PenaltyScale = "share") -> Tensor:
        """Return the expected cost, differentiable: multiply it by λ and add it to the loss.

        After a call in training mode, the penalty uses the log α of that call and shares its graph: call ``backward``
        once, on the sum of loss and penalty.

        Args:
            kind: "params" or "macs", "groups" (the paper's Σ|g_k|π_k: every filter counts its own weights, whether or
                not their inputs are open), "chain" or "groups-k2" (those of the authors' code,
                :mod:`depl0.paper.penalties`).
            scale: "share" of the original model's cost, so that λ means the same for every network and example; or
                "count": the number of parameters or multiply-accumulates, as in published λ.

        Raises:
            InputError: the kind or scale is unknown.

        Example:
            >>> import depl0
            >>> gated = depl0.attach(nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 2, 3)), torch.zeros(1, 1, 8, 8))
            >>> loss = gated(torch.zeros(1, 1, 8, 8)).square().mean() + 0.1 * gated.penalty("macs")
            >>> loss.backward()
        """
        if kind not in KINDS and kind not in PENALTIES:
            raise unknown("kind", kind, (*KINDS, *PENALTIES))
        if scale not in get_args(PenaltyScale):
            raise InputError(f"scale must be 'share' or 'count', got {scale!r} instead.")
        expected: Tensor = self.expected(self._penalised_probability(), kind)
        return expected if scale == "count" else expected / self.expected.dense(kind)

    def _penalised_probability(self) -> Tensor:
        if self._fixed is not None or not self.training:
            return self.open_probability()
        last = self._last.current(self.generator, self._threshold)
        log_alpha = self.log_alpha() if last is None else last
        return self._without_removed(hard_concrete.open_probability(log_alpha))

    # -- training --------------------------------------------------------------------------------------------------

    def weight_parameters(self) -> Iterator[nn.Parameter]:
        """Return the host's parameters."""
        return self.host.parameters()

    def gate_parameters(self) -> Iterator[nn.Parameter]:
        """Return the generator's parameters."""
        return self.generator.parameters()

    @library_defaults()
    def parameter_groups(
        self, *, lr: float, steps: int, weight_decay: float | None = None, betas: tuple[float, float] = BETAS
    ) -> list[dict[str, Any]]:
        """Return two parameter groups for an optimizer of the Adam family: weights, and gates at their own rate.

        Adam moves a parameter by about its learning rate in every step, so the rate of the gates follows from the
        number of steps: a search can move every gate far enough, whatever its generator. Gates get no weight decay.
        With SGD no learning rate suits the gates: pass the first group to SGD, and the second one to Adam.

        Args:
            lr: the learning rate of the weights.
            steps: the number of training steps, as passed to :class:`depl0.Search`.
            weight_decay: weight decay of the weights; None: the optimizer's.
            betas: betas of the gates; the weights use the optimizer's.

        Raises:
            InputError: ``steps`` is negative.

        Example:
            >>> import depl0
            >>> host = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 3))
            >>> gated = depl0.attach(host, torch.zeros(1, 1, 8, 8), budget=0.5)
            >>> optimizer = torch.optim.AdamW(gated.parameter_groups(lr=1e-3, steps=1000, weight_decay=0.01))
            >>> weights, gates = gated.parameter_groups(lr=0.1, steps=1000)  # or two, as in the paper
            >>> sgd, adam = torch.optim.SGD([weights], momentum=0.9), torch.optim.Adam([gates])
        """
        rate = gate_learning_rate(self.generator, steps, has_budget=self._threshold is not None, betas=betas)
        weights: dict[str, Any] = {"params": list(self.weight_parameters()), "lr": lr}
        if weight_decay is not None:
            weights["weight_decay"] = weight_decay
        return [weights, {"params": list(self.gate_parameters()), "lr": rate, "weight_decay": 0.0, "betas": betas}]
