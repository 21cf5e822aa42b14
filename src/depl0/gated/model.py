"""A host network with gates on its channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, final, get_args

import torch
from torch import Tensor, nn

from depl0._util.process import library_defaults
from depl0._util.registry import unknown
from depl0._util.tensors import out_of_half_precision
from depl0.analysis.plan import Plan
from depl0.config import GateConfig, PenaltyKind, PenaltyScale, check_round_to
from depl0.costs.count import Cost, cost
from depl0.costs.expected import KINDS, PENALTIES, ExpectedCost
from depl0.errors import GateError, InputError
from depl0.gated.checks import check_saved_gates, checked_log_alpha
from depl0.gated.display import describe, with_signature_of
from depl0.gated.engine import Engine
from depl0.gated.per_image import ImageGates, batch_size
from depl0.gated.wrapping import current_wrapper, follow_training
from depl0.gates import hard_concrete
from depl0.gates.generators import Generator
from depl0.gates.rates import BETAS, gate_learning_rate
from depl0.gates.scaling import SiteScaling
from depl0.gates.threshold import Threshold, counted
from depl0.host.functional import call_gated
from depl0.host.inputs import ExampleInputs
from depl0.host.network import Gated, check_whole, tied_names
from depl0.select.gates import check_budget, select_gates
from depl0.select.latency import extract_selected

FIXED, REMOVED, KEPT = "fixed_gates", "removed_gates", "kept_gates"
"""Keys of the state dict, each present only if there is something to save."""


@final
class GatedModel(Gated):
    """A host whose channels are multiplied by gates; call it like the host. :func:`depl0.attach` creates it.

    In training mode every call samples all gates, once for the batch (or for each image, ``draw``); in evaluation
    mode the deterministic evaluation gates are used. The host is called with its gated parameters in place of its
    own (:func:`torch.func.functional_call`), so nothing in it is replaced, renamed or hooked. A call changes
    nothing about the gates, so it may be repeated: accumulated gradients, activation checkpointing and several
    forward passes in one step are all fine.

    ``state_dict`` holds everything, including fixed and removed gates. Loading it into a freshly attached network also
    restores the host's size; create optimizers after loading.

    Attributes:
        host: the user's network; a smaller one once a search has removed channels.
        plan: the gates, their groups, and the channels that cannot be pruned.
        config: the gate configuration. It never changes.
        generator: the network that computes the log α of the gates.
        dense_cost: parameters and MACs of the original model.

    Example:
        >>> import depl0
        >>> host = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 3))
        >>> gated = depl0.attach(host, torch.zeros(1, 1, 8, 8))
        >>> gated(torch.zeros(1, 1, 8, 8)).shape, gated.plan.num_gates
        (torch.Size([1, 2, 4, 4]), 8)
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
        self._host_plan = plan  # of the current host, which may have been shrunk
        self.dense_cost = dense_cost or cost(host, example)
        self._example = example
        parameters = dict(host.named_parameters())
        device = next(iter(parameters.values())).device
        self.host = host
        self._ties = tied_names(host)
        self.generator = generator.to(device)
        self._scaling = SiteScaling(plan, parameters).to(device)
        shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        self._expected = ExpectedCost(plan, shapes, self.dense_cost.macs).to(device)
        self._image_gates = ImageGates(plan).to(device) if self.config.draw == "image" else None
        self._threshold: Threshold | None = None
        self._fixed: Tensor | None = None
        self._removed: Tensor | None = None
        self._has_wrapper = False  # True once a DDP that can follow a cut has called it
        self.training = host.training
        if self.config.budget is not None:
            self._threshold = self._make_threshold(self.config.budget)
        self.forward = with_signature_of(host, self.forward)  # type: ignore[method-assign]

    def _make_threshold(self, budget: float) -> Threshold:
        check_budget(self.engine.snapshot(), self.config)
        of = counted(self.config.of)
        threshold = Threshold(self._expected, self._expected.dense(of), budget, of).to(self._scaling.index.device)
        threshold.solve(self._scores().detach())
        return threshold

    @property
    def engine(self) -> Engine:
        """Return the handle on everything that is not public (:mod:`depl0.gated.engine`)."""
        return Engine(self)

    # -- the network -----------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the host with gates: sampled in training mode, evaluation gates otherwise, or the fixed ones."""
        return self._call(self._gates(args, kwargs), args, kwargs)

    def _call(self, gates: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not torch.compiler.is_compiling() and (wrapper := current_wrapper()) is not None:
            self._has_wrapper = True
            follow_training(wrapper, self)
        if gates.dim() == 2 and self._image_gates is not None:
            return self._image_gates(self.host, gates, args, kwargs)
        parameters = {name: self.host.get_parameter(name) for name in self._scaling.names}
        try:
            scaled = self._scaling(parameters, gates)
        except RuntimeError:
            for parameter in parameters.values():  # they may have been sharded since
                check_whole(parameter)
            raise
        return call_gated(self.host, scaled, args, kwargs, self._ties, self.plan.checkpointing)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the host that this class lacks: ``gated.num_features``, ``gated.get_classifier()``."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            host = self.__dict__.get("_modules", {}).get("host")
            if host is None or name.startswith("_") or not hasattr(host, name):
                raise
            return getattr(host, name)

    def _gates(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        if self._fixed is not None:
            return self._fixed
        if not self.training:
            return hard_concrete.evaluation_gates(self.log_alpha(), self.config.evaluation)
        if self.generator.conditioning == "gates":  # group by group; the noise of all gates is sampled at once
            uniform = torch.rand(self.plan.num_gates, device=self._scaling.index.device)
            return hard_concrete.sample(self._located(self._scores(uniform)), uniform)
        return self._sample(self.log_alpha(), args, kwargs)

    def _sample(self, log_alpha: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Sample gates for a call with these arguments: a vector, or with ``draw="image"`` a row for each image."""
        if self._image_gates is None:
            return hard_concrete.sample_gates(log_alpha)
        return self._without_removed(hard_concrete.sample_gates(log_alpha.expand(batch_size(args, kwargs), -1)))

    def _scores(self, uniform: Tensor | None = None) -> Tensor:
        """Return the generator's output; if conditioned on gates, on samples from this noise or on evaluation gates."""
        if self.generator.conditioning == "log_alpha":
            scores: Tensor = self.generator()
            return scores
        return self.generator.on_gates(lambda group, scores: self._gates_of_group(group, scores, uniform))

    def _gates_of_group(self, group: int, scores: Tensor, uniform: Tensor | None) -> Tensor:
        threshold = self._threshold
        log_alpha = scores if threshold is None else threshold.sharpness * (scores - threshold.shift)
        place = self.plan.groups[group].gates
        if uniform is None:
            gates = hard_concrete.evaluation_gates(log_alpha, self.config.evaluation)
        else:
            gates = hard_concrete.sample(log_alpha, uniform[place])
        return gates if self._removed is None else gates.masked_fill(self._removed[place], 0.0)

    def _located(self, scores: Tensor) -> Tensor:
        """Return log α for the generator's scores: with a budget relative to the threshold, else the scores."""
        log_alpha: Tensor = scores if self._threshold is None else self._threshold(scores)
        return log_alpha

    def _without_removed(self, values: Tensor) -> Tensor:
        return values if self._removed is None else values.masked_fill(self._removed, 0.0)

    def _rebuild_scaling(self) -> None:
        parameters, device = dict(self.host.named_parameters()), self._scaling.index.device
        self._ties = tied_names(self.host)
        self._scaling = SiteScaling(self._host_plan, parameters, self._removed).to(device)
        if self._image_gates is not None:
            self._image_gates = ImageGates(self._host_plan).to(device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GatedModel:
        """Move and convert the host as requested; everything about gates and cost stays out of half precision."""
        keep_precision = out_of_half_precision(fn)
        for child in self.children():
            child._apply(fn if child is self.host else keep_precision)
        if self._fixed is not None:
            self._fixed = keep_precision(self._fixed)
        if self._removed is not None:
            self._removed = keep_precision(self._removed)
        self._example = self._example.map_tensors(lambda t: _moved_like(t, fn(t)))
        return self

    def __repr__(self) -> str:
        return describe(self)

    # -- state -----------------------------------------------------------------------------------------------------

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._fixed is not None:
            destination[prefix + FIXED] = self._fixed
        if self._removed is not None:
            destination[prefix + REMOVED], destination[prefix + KEPT] = self._removed, self.engine.kept

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
        """Restore the saved size of the host before its values are loaded."""
        saved: dict[str, Any] = {key: state_dict.get(prefix + key) for key in (FIXED, REMOVED, KEPT)}
        rest = {key: value for key, value in state_dict.items() if key.removeprefix(prefix) not in saved}
        super()._load_from_state_dict(rest, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        self._restore_size(saved[REMOVED], saved[KEPT])
        self._fixed = None
        if saved[FIXED] is not None:
            self.engine.fix_gates(saved[FIXED])

    def _restore_size(self, removed: Tensor | None, kept: Tensor | None) -> None:
        engine = self.engine
        check_saved_gates(self.plan, engine.removed, removed, kept)
        if removed is None or kept is None:
            return
        if bool((removed.cpu() & ~engine.removed).any()):
            engine.close(removed.cpu())
        if not torch.equal(kept.cpu(), engine.kept):
            engine.shrink(kept.cpu())

    # -- gates -----------------------------------------------------------------------------------------------------

    def log_alpha(self) -> Tensor:
        """Return the location of every gate's distribution: flat, in plan order, differentiable.

        If groups are conditioned on gates, the previous groups' evaluation gates are used.
        """
        return self._located(self._scores())

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
        return self._without_removed(hard_concrete.evaluation_gates(self._checked_log_alpha(), self.config.evaluation))

    def _checked_log_alpha(self) -> Tensor:
        return checked_log_alpha(self.log_alpha().detach(), self.plan)

    # -- cost ------------------------------------------------------------------------------------------------------

    def penalty(self, kind: PenaltyKind = "params", *, scale: PenaltyScale = "share") -> Tensor:
        """Return the expected cost, differentiable: multiply it by λ and add it to the loss.

        If groups are conditioned on gates, the expectation in training mode is that of one sample of the gates.

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
        return self._penalty(kind, scale, None)

    def _penalty(self, kind: PenaltyKind, scale: PenaltyScale, log_alpha: Tensor | None) -> Tensor:
        if kind not in KINDS and kind not in PENALTIES:
            raise unknown("kind", kind, (*KINDS, *PENALTIES))
        if scale not in get_args(PenaltyScale):
            raise InputError(f"scale must be 'share' or 'count', got {scale!r} instead.")
        if log_alpha is None and self.training and self._fixed is None and self.generator.conditioning == "gates":
            log_alpha = self._located(self._scores(torch.rand(self.plan.num_gates, device=self._scaling.index.device)))
        if log_alpha is not None:
            open_probability = self._without_removed(hard_concrete.open_probability(log_alpha))
        else:
            open_probability = self.open_probability()
        expected: Tensor = self._expected(open_probability, kind)
        return expected if scale == "count" else expected / self._expected.dense(kind)

    @library_defaults()
    def kept_cost(self) -> Cost:
        """Return the parameters and MACs of the pruned model that the evaluation gates give."""
        network = self.engine.snapshot()
        return network.cost(network.gates > 0)

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
        number
        of steps: a search can move every gate far enough, whatever its generator. Gates get no weight decay. With SGD
        no learning rate suits the gates: pass the first group to SGD, and the second one to Adam.

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

    # -- the compact network ---------------------------------------------------------------------------------------

    @library_defaults()
    def extract(self, *, remove_blocks: bool | None = None, round_to: int | None = None) -> nn.Module:
        """Return a plain network of the host's class, without the closed channels, that computes the same outputs.

        The outputs of both are compared in float64, on the example and on random inputs, before anything is returned.
        With a budget, the pruned model is within it.

        Args:
            remove_blocks: if True, layers around a group whose gates are all closed are replaced by the constant that
                they compute; otherwise the group keeps one channel. None: as in the configuration.
            round_to: each group keeps a multiple of this many channels, or all. None: as in the configuration.

        Raises:
            GateError: the gates frozen by a search exceed the budget, or log α is not finite.
            CertificateError: the outputs differ.

        Example:
            >>> import depl0
            >>> host = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 3))
            >>> compact = depl0.attach(host, torch.zeros(1, 1, 8, 8), budget=0.5).extract()
            >>> compact[0]
            Conv2d(1, 4, kernel_size=(3, 3), stride=(1, 1))
        """
        config, network = self.config, self.engine.snapshot()
        if round_to is not None:
            check_round_to(round_to)
        elif network.is_fixed:
            round_to = 1
        config = config.changed(
            round_to=config.round_to if round_to is None else round_to,
            remove_blocks=config.remove_blocks if remove_blocks is None else remove_blocks,
        )
        gates = select_gates(network, config).gates
        if config.budget is not None and network.is_fixed and config.of != "latency":  # latency is measured
            share = network.share(gates > 0, config.of)
            if share > config.budget + 1e-9:
                raise GateError(
                    f"the fixed gates leave {share:.4f} of the {config.of}, more than the budget of {config.budget:g}.",
                    hint="call search.freeze() to choose gates within the budget, or attach with another one.",
                )
        return extract_selected(network, gates, config.remove_blocks)


def _moved_like(tensor: Tensor, moved: Tensor) -> Tensor:
    """Move an example input to the host's device and dtype, with its values (which ``moved`` may have lost)."""
    return tensor if moved.is_meta else tensor.to(moved.device, moved.dtype)
