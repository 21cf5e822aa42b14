"""The search as an object that any training loop can drive.

It decides everything about the gates and nothing about the training: the loop, the data, the losses and the optimizers
are the user's. Everything is decided from log α at a few points of the search, alike in all processes, and what is
remembered from one look to the next is in ``state_dict``. So a resumed search does the same.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, final, get_args

import torch
from torch import Tensor, nn

from depl0._util.distributed import from_first, mean_of_all, world_size
from depl0._util.registry import unknown
from depl0.errors import DivergedError, InputError
from depl0.gated import GatedModel
from depl0.gates import hard_concrete
from depl0.gates.generators import BoundedGenerator
from depl0.search.calibration import Calibration, Loss
from depl0.search.closing import closing_gates, is_worth_it, looks_at_start, looks_below
from depl0.search.convergence import Stay, gate_positions, may_begin
from depl0.search.freezing import Freezing, freeze_network, settle
from depl0.search.recovery.compensation import compensate
from depl0.search.recovery.statistics import renew_statistics
from depl0.search.scores.coupling import check_can_depend, start_dependent
from depl0.search.scores.importance import first_scores
from depl0.search.scores.reconstruction import reconstruction_scores
from depl0.surgery.record import state_shapes
from depl0.surgery.shrink import Shrunk, carry_over, carry_over_copy

CutPolicy: TypeAlias = Literal["auto", "progressive", "once", "never"]
FirstScores: TypeAlias = Literal["taylor", "reconstruction", "none"]

LOOKS = 50
"""looks at the gates in a whole search; each waits for the device"""


@final
@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """How a search goes. Wrong values are refused when it is made.

    Attributes:
        warmup: the share of the search, at its start, during which all gates stay open.
        ramp: the share of it, after the warm-up, over which the target is lowered from all of the cost to the budget.
        cut: when closed channels are cut out of the network: ``"progressive"`` (whenever it frees a tenth of the
            remaining MACs), ``"once"`` (when the open gates have stayed the same, or at the end), ``"never"`` (by
            ``finish`` alone), or ``"auto"``: progressive in one process, never in several, because those that wrap the
            network (DDP) have to wrap it anew after each cut.
        first_scores: what the first scores come from, where there is data in ``calibrate``: ``"taylor"`` (first-order
            change of the loss, or of the outputs where there are no labels, for the cost), ``"reconstruction"`` (the
            error that is left when the layers behind a channel make up for its loss), or ``"none"``: all start alike.
        dependency: how much the scores of a group start to depend on which gates of the group before it are closed, as
            a share of the spread of all scores; learned from there (:mod:`.scores.coupling`). Above 0 it needs
            a budget, data in ``calibrate``, and a network attached with ``conditioning="gates"``.
        compensate: whether the layers behind the channels that freezing closes are fitted anew in closed form, from the
            data of ``calibrate``; batch-norm statistics are then not renewed. With ``ramp=0`` the layers behind all
            channels that the first scores close are fitted before the first step.
        renew_statistics: whether batch-norm statistics are measured anew for the frozen gates, from the data of
            ``calibrate``, and kept where the loss on other batches falls.
        converged_change: the share of the gates that may open or close while the search counts as settled.
        converged_steps: the steps that it must have been settled for; None: a tenth of the search.
    """

    warmup: float = 0.0
    ramp: float = 0.6
    cut: CutPolicy = "auto"
    first_scores: FirstScores = "taylor"
    dependency: float = 0.0
    compensate: bool = False
    renew_statistics: bool = True
    converged_change: float = 0.01
    converged_steps: float | None = None

    def __post_init__(self) -> None:
        for name in ("warmup", "ramp", "dependency", "converged_change"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InputError(f"{name} must be between 0 and 1, got {value!r} instead.")
        if self.warmup == 1 or self.warmup + self.ramp > 1 + 1e-9:
            raise InputError(
                f"warmup and ramp must together be at most 1, got {self.warmup:g} and {self.ramp:g} instead.",
                hint="both are shares of the search, one after the other.",
            )
        if self.first_scores not in get_args(FirstScores):
            raise unknown(
                "first_scores", self.first_scores, get_args(FirstScores), "'none' lets all gates start alike."
            )
        if self.cut not in get_args(CutPolicy):
            raise unknown("cut", self.cut, get_args(CutPolicy), "'progressive' shrinks the network while it trains.")


@dataclass(frozen=True)
class Convergence:
    """The search has settled on a structure."""

    step: int
    since: int
    """the step since which the open gates have stayed"""


@dataclass(frozen=True)
class Cut:
    """Channels were cut out of the network."""

    step: int
    macs_share: float
    """of the dense MACs, that are left to train"""
    gates_gone: int


class SearchListener:
    """Is told what a search does. All methods may be left out."""

    def converged(self, convergence: Convergence) -> None:
        """The open gates have stayed the same for long enough."""

    def freezing(self) -> AbstractContextManager[object]:
        """Surround the freezing of the gates."""
        return nullcontext()

    def frozen(self, freezing: Freezing) -> None:
        """The gates are frozen; still inside :meth:`freezing`."""

    def shrunk(self, shrunk: Shrunk) -> None:
        """The host was replaced by a smaller one; optimizers and averages of the search have been taken along."""

    def cut(self, cut: Cut) -> None:
        """The network has become smaller."""


@dataclass
class _State:
    """What a search remembers from step to step."""

    done: int = 0
    released: bool = False
    frozen: bool = False
    looks_below: Tensor | None = None
    stay: Stay | None = None
    convergence: Convergence | None = None
    first_open: Tensor | None = None
    """without a budget: the gates that were open when they were let go"""


@final
class Search:
    """Brings a gated network to its budget inside a training loop of your own.

    ::

        gated = depl0.attach(model, example, budget=0.5)
        optimizer = torch.optim.AdamW(gated.parameter_groups(lr=1e-3, steps=2000))
        search = depl0.Search(gated, steps=2000, optimizers=[optimizer], calibrate=loader, loss=criterion)
        for x, y in loader:
            search.step()  # first thing in every training step
            criterion(gated(x), y).backward()
            optimizer.step(), optimizer.zero_grad()
        compact = search.finish()

    Without a budget the gates are closed by a penalty that is part of the user's loss, and the search does the rest.

    Args:
        gated: the network with gates.
        steps: how many training steps the search has (calls of :meth:`step`, one for each step of the optimizers).
        optimizers: the optimizers that train the host's weights; their state is cut along with the network,
            with momentum and the like. Learning-rate schedulers hold on to them and need nothing.
        averages: modules that hold a copy of the gated network or of its host (``torch.optim.swa_utils.AveragedModel``,
            timm's ``ModelEma``); they are cut alike.
        calibrate: batches to look at (see :mod:`depl0.search.calibration`): a data loader or a list. Used for the
            first scores of the gates and for batch-norm statistics after freezing; some batches are enough. Without
            them all gates start alike, and statistics stay what they are.
        loss: the loss of the task, ``loss(outputs, targets)``, where batches are pairs (inputs, targets). None: batches
            are inputs alone, and channels are judged by how much the outputs change.
        config: how; without it, the defaults of :class:`SearchConfig`.
        listener: is told what happens.
        state: what ``state_dict`` gave, to continue a search. The gated network is restored by its own.
        changes: fields of the configuration to set.
    """

    def __init__(
        self,
        gated: GatedModel,
        steps: int,
        *,
        optimizers: Sequence[Any] = (),
        averages: Sequence[nn.Module] = (),
        calibrate: Calibration | Iterable[Any] | None = None,
        loss: Loss | None = None,
        config: SearchConfig | None = None,
        listener: SearchListener | None = None,
        state: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> None:
        if not isinstance(gated, GatedModel):
            raise InputError(
                f"a search needs a gated network, got {type(gated).__name__} instead.",
                hint="pass what depl0.attach(model, example) returned, not what is wrapped around it.",
            )
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise InputError(f"steps must be a whole number of at least 0, got {steps!r} instead.")
        self.gated, self.steps = gated, steps
        self.config = _changed(config or SearchConfig(), changes)
        if self.config.dependency > 0:
            check_can_depend(gated)
        self._optimizers, self._averages = list(optimizers), list(averages)
        self._calibration = Calibration.of(calibrate, loss)
        self._listener = listener or SearchListener()
        self._state = _State()
        self._host = gated.engine.host_state()
        _check_alike(gated)
        if state is None:
            self._hold_open()
        else:
            self.load_state_dict(state)
        if gated.engine.threshold is not None:
            gated.engine.threshold.expect_steps(round((1 - self.config.warmup) * steps))

    # -- what the loop calls -----------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Make the network ready for the next training step; tell whether it has become smaller.

        Call it once for every step of the optimizers, before the forward pass (with accumulated gradients: before the
        first one). Where something is wrapped around the network (DDP), wrap it anew when this returns True.
        """
        state = self._state
        rebuilt = state.done < self.steps and self._look()
        if not state.frozen and state.done >= self.config.warmup * self.steps - 1e-9:
            self._release()
            self._follow()
        state.done += 1
        return rebuilt

    def freeze(self) -> Freezing:
        """Freeze the gates within the budget and renew batch-norm statistics; the network stays gated."""
        self._release()
        with self._listener.freezing():
            freezing = freeze_network(
                self.gated,
                calibration=self._calibration,
                compensated=self.config.compensate,
                renewed=self.config.renew_statistics,
            )
            self._state.frozen = True
            self._listener.frozen(freezing)
        return freezing

    def finish(self, average: nn.Module | None = None) -> nn.Module:
        """Freeze the gates, unless that is done, and return the compact network: plain, and proven equal.

        ``average``, one of ``averages``, gives its weights in the place of the present ones. ``depl0.info`` tells what
        was cut, what it costs, and how far the two networks are apart.
        """
        if not self._state.frozen:
            self.freeze()
        return self.gated.extract() if average is None else self._averaged(average).extract()

    def _averaged(self, average: nn.Module) -> GatedModel:
        """Return a copy of the network, frozen alike, with averaged weights and statistics that fit them."""
        own, shapes = copy.deepcopy(self.gated), state_shapes(self.gated.host)
        for module in average.modules():
            if type(module) is type(own.host) and state_shapes(module) == shapes:
                own.host.load_state_dict(module.state_dict())
                if self._calibration is not None and self.config.renew_statistics:
                    renew_statistics(own, self._calibration)
                return own
        raise _no_copy(average)

    def cut(self, closing: Tensor) -> bool:
        """Cut gates out of the network for good; tell whether there were any left to cut."""
        engine = self.gated.engine
        if not bool((closing & ~engine.removed).any()):
            return False
        engine.close(closing)
        shrunk = engine.shrink()
        self._carry(shrunk)
        self._listener.shrunk(shrunk)
        share = engine.cost_without(engine.removed).macs / self.gated.dense_cost.macs
        self._listener.cut(Cut(self._state.done, share, int(engine.removed.sum())))
        return True

    @property
    def done(self) -> int:
        """Return the steps that have begun."""
        return self._state.done

    @property
    def is_frozen(self) -> bool:
        """Return whether the gates are frozen."""
        return self._state.frozen

    @property
    def is_released(self) -> bool:
        """Return whether the gates move: the warm-up is over."""
        return self._state.released

    @property
    def convergence(self) -> Convergence | None:
        """Return when the search converged, if it has."""
        return self._state.convergence

    # -- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to continue the search, beside ``gated.state_dict()``: numbers and tensors."""
        state = self._state
        return {
            "done": state.done,
            "released": state.released,
            "frozen": state.frozen,
            "looks_below": state.looks_below,
            "stay": None if state.stay is None else dataclasses.asdict(state.stay),
            "convergence": None if state.convergence is None else dataclasses.asdict(state.convergence),
            "first_open": state.first_open,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state_dict`` was called. The gated network's own state is loaded first."""
        shrunk = self.gated.engine.shrunk_since(self._host)
        if shrunk is not None:
            self._carry(shrunk)
        self._state = _State(
            int(state["done"]),
            bool(state["released"]),
            bool(state["frozen"]),
            state["looks_below"],
            None if state["stay"] is None else Stay(**state["stay"]),
            None if state["convergence"] is None else Convergence(**state["convergence"]),
            state.get("first_open"),
        )
        self._hold_open()

    def _hold_open(self) -> None:
        """Keep all gates open until the first step, or until the warm-up is over."""
        if not self._state.released and not self.gated.engine.is_fixed:
            self.gated.engine.fix_gates((~self.gated.engine.removed).float())

    # -- before every step -------------------------------------------------------------------------------------------

    def _release(self) -> None:
        """Let the gates go, with scores from what the network has learned by then. Only once in a search."""
        if self._state.released:
            return
        gated, calibration = self.gated, self._calibration
        gated.engine.free_gates()
        if gated.config.budget is not None and calibration is not None and self.config.first_scores != "none":
            if self.config.first_scores == "reconstruction":
                own = reconstruction_scores(gated, calibration.inputs(), gated.config.of)
            else:
                batches = calibration.pairs(calibration.scores)
                own = first_scores(gated, batches, calibration.loss, gated.config.of)
            scores = mean_of_all(own)
            if not bool(scores.isfinite().all()):
                raise DivergedError(
                    f"the first scores of the gates are not finite at step {self._state.done}.",
                    hint="the network gives NaN or infinite losses on the batches of calibrate.",
                )
            if self.config.dependency > 0:
                start_dependent(gated, calibration.pairs(calibration.scores), calibration.loss, self.config.dependency)
            self._start_from(scores, calibration)
        if (
            gated.config.budget is None
        ):  # with a budget all gates are open at this point, because the target is the whole cost
            with torch.no_grad():
                log_alpha = from_first(gated.log_alpha()).cpu()
            self._state.looks_below = looks_at_start(log_alpha, gated.config.evaluation)
            self._state.first_open = self._open_gates(log_alpha)
        self._state.released = True

    def _start_from(self, scores: Tensor, calibration: Calibration) -> None:
        """Start from these scores; where the target is the budget at once, fit the network to the gates they close."""
        gated, threshold = self.gated, self.gated.engine.threshold
        assert threshold is not None, "only a budget has scores"
        at_once = self.config.ramp == 0 and threshold.of != "latency"
        if at_once:
            threshold.advance(0.0, ramp=0.0)
        gated.engine.start_from(scores)
        if not at_once or not self.config.compensate:
            return
        closed = (gated.evaluation_gates().cpu() == 0) & ~gated.engine.removed
        inputs = calibration.inputs()
        compensate(gated, closed, inputs)
        settle(gated, inputs)

    def _follow(self) -> None:
        """Set target and sharpness for the share of the search that has passed, and move the threshold there."""
        threshold, warmup = self.gated.engine.threshold, self.config.warmup
        if threshold is not None:
            left = 1 - warmup
            passed = min(self._state.done / max(self.steps, 1), 1.0)
            threshold.advance((passed - warmup) / left, self.config.ramp / left)
            self.gated.engine.follow_budget()

    # -- from time to time -------------------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Note whether the search has converged, and make the network smaller where that pays."""
        state, every = self._state, max(1, round(self.steps / LOOKS))
        if state.done % every or not state.released or state.frozen:
            return False
        with torch.no_grad():
            log_alpha = from_first(self.gated.log_alpha()).cpu()
        if not bool(log_alpha.isfinite().all()):  # those who watch over numbers say so, with the step and the cause
            return False
        policy = self._policy
        if state.convergence is None and self._has_converged(log_alpha) and policy == "once":
            self.freeze()
            return self.cut(self.gated.evaluation_gates().cpu() == 0)
        if policy == "progressive" and not self._is_timed:
            state.looks_below = looks_below(log_alpha, state.looks_below, self.gated.config.evaluation)
            closing = closing_gates(self.gated, log_alpha, state.looks_below)
            if is_worth_it(self.gated, closing):
                return self.cut(closing)
        return False

    @property
    def _policy(self) -> CutPolicy:
        if self.config.cut != "auto":
            return self.config.cut
        return "progressive" if world_size() == 1 else "never"

    @property
    def _is_timed(self) -> bool:
        """Whether gates must stay until the freezing: timing chooses among all gates of the network."""
        return self.gated.config.budget is not None and self.gated.config.of == "latency"

    def _has_converged(self, log_alpha: Tensor) -> bool:
        config, state = self.config, self._state
        open_gates = self._open_gates(log_alpha)
        reached_at = config.warmup + config.ramp if self.gated.config.budget is not None else None
        change = config.converged_change
        if not may_begin(open_gates, state.done / self.steps, reached_at, state.first_open, change):
            return False
        positions, closed_below = (None, 0.0) if self.gated.config.budget is not None else self._positions(log_alpha)
        stay = state.stay or Stay(open_gates, state.done, positions)
        state.stay = stay.after(open_gates, state.done, change, positions)
        if not state.stay.lasts(state.done, config.converged_steps or 0.1 * self.steps):
            return False
        if positions is not None and not state.stay.goes_on(positions, closed_below, state.done, self.steps, change):
            state.stay = state.stay.judged_at(positions, state.done)
            return False
        state.convergence = Convergence(state.done, int(state.stay.since))
        self._listener.converged(state.convergence)
        return True

    def _open_gates(self, log_alpha: Tensor) -> Tensor:
        is_open = hard_concrete.evaluation_gates(log_alpha, self.gated.config.evaluation) > 0
        return is_open & ~self.gated.engine.removed

    def _positions(self, log_alpha: Tensor) -> tuple[Tensor, float]:
        """Return where gates are, and below which place they are closed; where there is a penalty, they all move."""
        generator = self.gated.generator
        bound = generator.preset.bound if isinstance(generator, BoundedGenerator) else None
        limit = torch.tensor(hard_concrete.closing_log_alpha(self.gated.config.evaluation))
        return gate_positions(log_alpha, bound), float(gate_positions(limit, bound))

    def _carry(self, shrunk: Shrunk) -> None:
        """Take along what holds the former host's parameters."""
        for optimizer in self._optimizers:
            carry_over(optimizer, shrunk)
        for average in self._averages:
            self._carry_average(average, shrunk)
        self._host = self.gated.engine.host_state()

    def _carry_average(self, average: nn.Module, shrunk: Shrunk) -> None:
        copies = [m for m in average.modules() if isinstance(m, GatedModel) and m is not self.gated]
        for copied in copies:
            copied.engine.match_size(self.gated)
        if not copies and not carry_over_copy(average, self._host.host, shrunk):
            raise _no_copy(average)


def _check_alike(gated: GatedModel) -> None:
    """Raise InputError where processes round to different multiples: each has asked its own device."""
    own = torch.tensor(gated.config.multiple, device=gated.engine.device)
    differs = (own != from_first(own)).float()
    if bool(mean_of_all(differs) > 0):
        raise InputError(
            f"round_to must be the same in all processes, got {gated.config.multiple} here.",
            hint="call depl0.attach after torch.distributed.init_process_group, or give round_to as a number.",
        )


def _no_copy(average: nn.Module) -> InputError:
    return InputError(
        f"averages holds a {type(average).__name__} with no copy of the network in it.",
        hint="pass a module around a copy of the gated network or of its host.",
    )


def _changed(config: SearchConfig, changes: Mapping[str, Any]) -> SearchConfig:
    names = [field.name for field in dataclasses.fields(config)]
    for name in changes:
        if name not in names:
            raise unknown("search setting", name, names, "help(depl0.SearchConfig) lists them.")
    return dataclasses.replace(config, **changes)
