"""The search as an object that any training loop can drive.

It makes all decisions about the gates and none about the training: the loop, the data, the losses and the optimizers
are the user's. All decisions follow from log α at a few points of the search, identically on all ranks, and the state
between two checks is in ``state_dict``. Therefore a resumed search makes the same decisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, final

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from depl0._util.distributed import all_reduce_mean, broadcast, broadcast_buffers, world_size
from depl0._util.process import library_defaults, warn_caller
from depl0.errors import DivergedError, InputError
from depl0.gated import GatedModel
from depl0.gated.wrapping import check_wrappers
from depl0.host.network import require_unsharded
from depl0.search.calibration import Calibration, Loss
from depl0.search.config import CutPolicy, SearchChanges, SearchConfig
from depl0.search.freezing import Freezing, absorb_bn_and_sync, freeze_network
from depl0.search.importance import first_scores
from depl0.search.reconstruction import reconstruction_scores
from depl0.search.recovery.compensation import compensate
from depl0.search.state import (
    SearchState,
    closed_streak,
    closing_gates,
    cut_is_profitable,
    first_streak,
)
from depl0.surgery.extraction import Shrunk, carry_over, carry_over_copy, check_can_be_carried

CHECKS = 50
"""Number of gate checks per search; each synchronizes the device."""
_UNCUT = {"LBFGS", "Adafactor", "Lookahead"}
"""Optimizers whose state does not have the weights' shapes, or is stored elsewhere."""


@final
class Search:
    """Drive a gated model to its budget inside your own training loop.

    ::

        gated = depl0.attach(model, example, budget=0.5)
        optimizer = torch.optim.AdamW(gated.parameter_groups(lr=1e-3, steps=2000))
        search = depl0.Search(gated, steps=2000, optimizers=[optimizer], calibrate=loader, loss=criterion)
        for x, y in loader:
            search.step()  # first thing in every training step
            criterion(gated(x), y).backward()
            optimizer.step(), optimizer.zero_grad()
        compact = search.finish()

    Without a budget, the gates are closed by a penalty that is part of your loss; the search does everything else.

    Args:
        gated: the gated model.
        steps: training steps of the search (calls of :meth:`step`, one for each step of the optimizers).
        optimizers: the optimizers that train the host's weights; their state is cut along with the network.
            Learning-rate schedulers need no changes. Required unless no channel is cut before ``finish``.
        averages: modules that hold a copy of the gated model or of its host (``torch.optim.swa_utils.AveragedModel``,
            timm's ``ModelEma``); they are cut in the same way.
        calibrate: batches of calibration data (see :mod:`depl0.search.calibration`): a data loader or a list. Used for
            the initial scores of the gates and for batch-norm statistics after freezing; some batches are enough.
            Without calibration data all gates start with equal scores, and statistics are not re-estimated.
        loss: the loss of the task, ``loss(outputs, targets)``, if batches are pairs (inputs, targets). None: batches
            may be inputs alone, targets are not used, and channels are scored by the change of the outputs.
        config: the configuration; by default ``SearchConfig()``.
        state: the result of ``state_dict``, to continue a search. Load the gated model's own state first.
        changes: fields of :class:`SearchConfig` to set.

    Raises:
        InputError: an argument is invalid, the optimizers do not hold the network's weights, or ``state`` belongs to
            another search.

    Example:
        >>> import depl0
        >>> gated = depl0.attach(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(1, 4))
        >>> optimizer = torch.optim.AdamW(gated.parameter_groups(lr=1e-3, steps=10))
        >>> search = depl0.Search(gated, steps=10, optimizers=[optimizer])
        >>> search.step(), search.done
        (False, 1)
    """

    @library_defaults()
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
        state: Mapping[str, Any] | None = None,
        **changes: Unpack[SearchChanges],
    ) -> None:
        if not isinstance(gated, GatedModel):
            raise InputError(
                f"a search needs a gated network, got {type(gated).__name__} instead.",
                hint="pass what depl0.attach(model, example) returned, not what is wrapped around it.",
            )
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise InputError(f"steps must be an integer of at least 0, got {steps!r} instead.")
        self.gated, self.steps = gated, steps
        self.config = (config or SearchConfig()).changed(**changes)
        self._optimizers, self._averages = list(optimizers), list(averages)
        self._calibration = Calibration.of(calibrate, loss, gated)
        self._state = SearchState()
        self._has_begun = False
        self._host = gated.host_state()
        if state is None:
            self._hold_open()
            self._check_optimizers()
        else:
            self.load_state_dict(state)
        if gated.threshold is not None:
            gated.threshold.expect_steps(round((1 - self.config.warmup) * steps))

    # -- methods called by the loop ----------------------------------------------------------------------------------

    @library_defaults()
    def step(self) -> bool:
        """Advance one step; return True if the network shrank.

        Call it once for every step of the optimizers, before the forward pass (with accumulated gradients: before the
        first one). DDP around the network adapts automatically; rebuild other wrappers when it returns True.
        """
        state = self._state
        if not self._has_begun:
            check_wrappers(self.gated, self.config.cut == "progressive" or self.config.warmup > 0)
            self._has_begun = True
        for parameter in islice(self.gated.weight_parameters(), 1):
            require_unsharded(parameter)
        shrank = state.done < self.steps and self._check_gates()
        if not state.frozen and state.done >= self.config.warmup * self.steps - 1e-9:
            self._release()
            self._lower_target()
        state.done += 1
        return shrank

    @library_defaults()
    def freeze(self) -> Freezing:
        """Freeze the gates within the budget and re-estimate batch-norm statistics; the network stays gated."""
        self._release()
        freezing = freeze_network(
            self.gated,
            calibration=self._calibration,
            compensated=self.config.compensate,
            renewed=self.config.renew_statistics,
        )
        self._state.frozen = True
        return freezing

    @library_defaults()
    def finish(self) -> nn.Module:
        """Freeze the gates, if they are not frozen yet, and return the pruned model: a plain, verified network.

        Before the last step it warns: all remaining channels are closed at once, without any training afterwards. To
        use averaged weights, load them into ``gated.host`` before.

        Raises:
            CertificateError: the pruned model would compute other outputs; nothing is returned.
            GateError: the search has diverged.
        """
        if not self._state.frozen:
            if self.done < self.steps:
                warn_caller(
                    f"finish() was called after {self.done:,} of {self.steps:,} steps: channels that the search would "
                    "have closed step by step are closed at once. Call step() in every training step, or pass the "
                    "number of steps that you train for."
                )
            self.freeze()
        broadcast_buffers(self.gated)  # ranks have seen different data since the gates were frozen
        return self.gated.extract()

    @library_defaults()
    def cut(self, closing: Tensor) -> bool:
        """Cut gates out of the network permanently; return False if no gates could be cut."""
        gated = self.gated
        if not bool((closing & ~gated.removed).any()):
            return False
        self._check_optimizers()  # before anything is changed: an optimizer may hold more than when the search began
        gated.remove(closing)
        self._carry(gated.cut())
        return True

    @property
    def done(self) -> int:
        """Number of steps that have begun."""
        return self._state.done

    @property
    def is_frozen(self) -> bool:
        """True if the gates are frozen."""
        return self._state.frozen

    @property
    def is_released(self) -> bool:
        """True if the gates can move, after the warm-up."""
        return self._state.released

    # -- state -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the search, as numbers and tensors; ``gated.state_dict()`` is needed as well."""
        return {**vars(self._state), "search": self._identity()}

    @library_defaults()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of ``state_dict``. Load the gated model's own state first.

        Raises:
            InputError: the state belongs to a search with other steps, another budget or another network.
        """
        absent = vars(self._state).keys() - state.keys() if isinstance(state, Mapping) else {"search"}
        if absent or "search" not in state:
            raise InputError(
                f"the saved state of a search has no {min(absent, default='search')!r}: it is not the result of "
                "search.state_dict().",
                hint="save search.state_dict() beside gated.state_dict(), and pass it here.",
            )
        for name, own in self._identity().items():
            saved = state["search"].get(name)
            if saved != own:
                raise InputError(
                    f"the saved search has {name} {saved!r}, this one has {own!r}.",
                    hint="continue a search with the same steps, budget and network.",
                )
        shrunk = self.gated.cut_since(self._host)
        if shrunk is not None:
            self._carry(shrunk)
        self._check_optimizers()
        self._state = SearchState(**{name: state[name] for name in vars(self._state)})
        self._hold_open()

    def _identity(self) -> dict[str, Any]:
        """Return the settings that must be the same when a search is continued."""
        config, sizes = self.gated.config, [group.size for group in self.gated.plan.groups]
        return {"steps": self.steps, "budget": config.budget, "of": config.of, "groups": sizes}

    def _hold_open(self) -> None:
        """Keep all gates open until the first step, or until the end of the warm-up."""
        if not self._state.released and not self.gated.is_fixed:
            self.gated.fix_gates((~self.gated.removed).float())

    # -- before every step -------------------------------------------------------------------------------------------

    def _release(self) -> None:
        """Release the gates, with scores from the current weights. Called only once in a search."""
        if self._state.released:
            return
        gated, calibration = self.gated, self._calibration
        gated.free_gates()
        if gated.config.budget is not None and calibration is not None and self.config.first_scores != "none":
            if self.config.first_scores == "reconstruction":
                own = reconstruction_scores(gated, calibration.inputs(), gated.config.of)
            else:
                batches = calibration.pairs(calibration.scores)
                own = first_scores(gated, batches, calibration.loss, gated.config.of)
            scores = all_reduce_mean(own)
            if not bool(scores.isfinite().all()):
                raise DivergedError(
                    f"the first scores of the gates are not finite at step {self._state.done}.",
                    hint="the network gives NaN or infinite losses on the batches of calibrate.",
                )
            self._start_from(scores, calibration)
        if gated.config.budget is None:  # with a budget, all gates are open now: the target is the full cost
            self._state.closed_streak = first_streak(self._log_alpha(), gated.config.evaluation)
        self._state.released = True

    def _start_from(self, scores: Tensor, calibration: Calibration) -> None:
        """Start from these scores; without a ramp, adjust the network to the gates that they close."""
        gated, threshold = self.gated, self.gated.threshold
        assert threshold is not None, "only a budget has scores"
        one_shot = self.config.ramp == 0 and gated.config.of != "latency"
        if one_shot:
            threshold.advance(0.0, ramp=0.0)
        gated.start_from(scores)
        if one_shot and self.config.compensate:
            gates = (gated.evaluation_gates().cpu() > 0) & ~gated.removed
            inputs = calibration.inputs()
            compensate(gated, gates, inputs)
            absorb_bn_and_sync(gated, inputs)

    def _lower_target(self) -> None:
        """Set target and sharpness for the completed fraction of the search, and move the threshold accordingly."""
        threshold, warmup = self.gated.threshold, self.config.warmup
        if threshold is not None:
            left = 1 - warmup
            passed = min(self._state.done / max(self.steps, 1), 1.0)
            threshold.advance((passed - warmup) / left, self.config.ramp / left)
            self.gated.follow_budget()

    # -- at regular checks -------------------------------------------------------------------------------------------

    def _check_gates(self) -> bool:
        """Shrink the network if that is profitable."""
        state, every = self._state, max(1, round(self.steps / CHECKS))
        follows = self._policy == "progressive" and self._is_followed
        if state.done % every or not state.released or state.frozen or not follows:
            return False
        log_alpha = self._log_alpha()
        if not bool(log_alpha.isfinite().all()):  # reported elsewhere, with the step and the cause
            return False
        state.closed_streak = closed_streak(log_alpha, state.closed_streak, self.gated.config.evaluation)
        network = self.gated.snapshot()
        closing = closing_gates(network, self.gated.config, log_alpha, state.closed_streak)
        return cut_is_profitable(network, closing) and self.cut(closing)

    @property
    def _policy(self) -> CutPolicy:
        """The policy for cutting channels; none are cut under a latency budget, because timing selects at the end."""
        policy = "progressive" if self.config.cut == "auto" else self.config.cut
        is_timed = self.gated.config.budget is not None and self.gated.config.of == "latency"
        return "never" if is_timed and policy == "progressive" else policy

    @property
    def _is_followed(self) -> bool:
        """True if the synchronization of gradients adapts to the parameters of a smaller host."""
        return self.config.cut != "auto" or world_size() == 1 or self.gated.has_wrapper

    @torch.no_grad()
    def _log_alpha(self) -> Tensor:
        return broadcast(self.gated.log_alpha()).cpu()

    # -- objects with the host's parameters --------------------------------------------------------------------------

    def _check_optimizers(self) -> None:
        """Raise an error for weights that no known optimizer holds, because after a cut they would not be trained."""
        if self._policy == "never" or self.steps == 0:
            return
        held = {id(p) for optimizer in self._optimizers for group in optimizer.param_groups for p in group["params"]}
        weights = [(name, p) for name, p in self.gated.host.named_parameters() if p.requires_grad]
        missing = [name for name, weight in weights if id(weight) not in held]
        if missing:
            raise InputError(
                f"optimizers= does not hold {len(missing)} of the network's {len(weights)} weights, such as "
                f"{missing[0]!r}: they would not be trained after a cut.",
                hint="pass every optimizer, made after a saved state was loaded; requires_grad_(False) excludes a "
                "weight from training; cut='never' cuts only in finish().",
            )
        for optimizer in self._optimizers:
            if uncut := _UNCUT & {kind.__name__ for kind in type(optimizer).__mro__}:
                raise InputError(
                    f"what {uncut.pop()} remembers cannot be cut along with the network.",
                    hint="choose another optimizer; or cut='never', which cuts only in finish().",
                )
            check_can_be_carried(optimizer, [weight for _, weight in weights])
        hooked = [name for name, p in weights if p._backward_hooks or p._post_accumulate_grad_hooks]
        if hooked:
            raise InputError(
                f"the weight {hooked[0]!r} has hooks, which a cut would lose.",
                hint="remove them; or cut='never', which cuts only in finish().",
            )

    def _carry(self, shrunk: Shrunk) -> None:
        """Update optimizers and averages to the smaller host."""
        for optimizer in self._optimizers:
            carry_over(optimizer, shrunk)
        for average in self._averages:
            copies = [m for m in average.modules() if isinstance(m, GatedModel) and m is not self.gated]
            for copied in copies:
                copied.match_size(self.gated)
            if not copies and not carry_over_copy(average, self._host.host, shrunk):
                raise InputError(
                    f"averages holds a {type(average).__name__} with no copy of the network in it.",
                    hint="pass a module around a copy of the gated network or of its host.",
                )
        self._host = self.gated.host_state()
