"""A host network with gates on its channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from depl0._util.process import library_defaults
from depl0._util.tensors import out_of_half_precision
from depl0.analysis.plan import Plan
from depl0.config import GateConfig, check_round_to
from depl0.costs.count import Cost, cost
from depl0.costs.expected import ExpectedCost
from depl0.errors import GateError, InputError
from depl0.gated.checks import checked_log_alpha, checked_mask
from depl0.gated.per_image import ImageGates
from depl0.gated.reuse import LastLogAlpha
from depl0.gated.sampling import SampledGates
from depl0.gated.wrapping import current_wrapper, follow_training
from depl0.gates.generators import Generator
from depl0.gates.scaling import SiteScaling
from depl0.gates.threshold import COSTS, Threshold, counted
from depl0.host.calls import call_gated
from depl0.host.inputs import ExampleInputs
from depl0.host.network import require_unsharded, tied_names
from depl0.select.gates import check_budget, minimum_share, select_gates
from depl0.select.snapshot import Snapshot
from depl0.surgery.extraction import (
    Shrunk,
    carry_gradients,
    carry_hooks,
    certify_shrunk,
    remaining_gates,
    shrink,
    shrunk_between,
)

FIXED, REMOVED, KEPT = "fixed_gates", "removed_gates", "kept_gates"
"""Keys of the state dict, each present only if there is something to save."""

_MODULES = {"host", "generator", "expected", "_scaling", "_image_gates", "_threshold"}
"""Modules of a gated model; all others belong to its host."""


class HostState(NamedTuple):
    """A host and its plan at one point in time."""

    host: nn.Module
    plan: Plan


@final
class GatedModel(SampledGates):
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
        example: the inputs of the analysis, on the network's current device.
        host_plan: the plan of the current host; the axes of a smaller host keep the gate numbers of the original one.
        expected: the expected costs as functions of the open probabilities.
        has_wrapper: True once it was called by a DDP that follows its cuts (:mod:`depl0.gated.wrapping`).

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
        self.plan = self.host_plan = plan
        self.dense_cost = dense_cost or cost(host, example)
        self.example = example
        parameters = dict(host.named_parameters())
        device = next(iter(parameters.values())).device
        self.host = host
        self._ties = tied_names(host)
        self.generator = generator.to(device)
        self._scaling = SiteScaling(plan, parameters).to(device)
        shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        self.expected = ExpectedCost(plan, shapes, self.dense_cost.macs).to(device)
        self._image_gates = ImageGates(plan).to(device) if self.config.draw == "image" else None
        self._threshold: Threshold | None = None
        self._fixed: Tensor | None = None
        self._removed: Tensor | None = None
        self._last = LastLogAlpha()
        self.has_wrapper = False
        self.training = host.training
        if self.config.budget is not None:
            self._threshold = self._make_threshold(self.config.budget)

    def _make_threshold(self, budget: float) -> Threshold:
        check_budget(self.snapshot(), self.config)
        of = counted(self.config.of)
        threshold = Threshold(self.expected, self.expected.dense(of), budget, of).to(self.device)
        threshold.solve(self.generator().detach())
        return threshold

    @property
    def kept(self) -> Tensor:
        """Return a mask of the gates whose channels the host still has."""
        return remaining_gates(self.host_plan)

    # -- the network -----------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the host with gates: sampled in training mode, evaluation gates otherwise, or the fixed ones."""
        return self._call(self._gates(args, kwargs), args, kwargs)

    def call_with_gates(self, gates: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Call the host with these gates, which may carry a gradient."""
        return self._call(gates, args, kwargs)

    def _call(self, gates: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not torch.compiler.is_compiling() and (wrapper := current_wrapper()) is not None:
            self.has_wrapper = True
            follow_training(wrapper, self)
        if gates.dim() == 2 and self._image_gates is not None:
            return self._image_gates(self.host, gates, args, kwargs)
        parameters = {name: self.host.get_parameter(name) for name in self._scaling.names}
        try:
            scaled = self._scaling(parameters, gates)
        except RuntimeError:
            for parameter in parameters.values():  # they may have been sharded since
                require_unsharded(parameter)
            raise
        return call_gated(self.host, scaled, args, kwargs, self._ties)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the host that this class lacks: ``gated.num_features``, ``gated.get_classifier()``."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            host = self.__dict__.get("_modules", {}).get("host")
            if host is None or name.startswith("_") or not hasattr(host, name):
                raise
            return getattr(host, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; raise an error for a module or parameter that the host would never use."""
        if isinstance(value, (nn.Module, nn.Parameter)) and name not in _MODULES:
            raise InputError(
                f"{name} cannot be set on a gated network: the network inside it ({type(self.host).__name__}) would "
                "not use it.",
                hint="change the original network, then attach again.",
            )
        super().__setattr__(name, value)

    def _rebuild_scaling(self) -> None:
        parameters, device = dict(self.host.named_parameters()), self.device
        self._ties = tied_names(self.host)
        self._scaling = SiteScaling(self.host_plan, parameters, self._removed).to(device)
        if self._image_gates is not None:
            self._image_gates = ImageGates(self.host_plan).to(device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GatedModel:
        """Move and convert the host as requested; everything about gates and cost stays out of half precision."""
        keep_precision = out_of_half_precision(fn)
        for child in self.children():
            child._apply(fn if child is self.host else keep_precision)
        if self._fixed is not None:
            self._fixed = keep_precision(self._fixed)
        if self._removed is not None:
            self._removed = keep_precision(self._removed)
        self.example = self.example.map_tensors(lambda t: _moved_like(t, fn(t)))
        return self

    def __repr__(self) -> str:
        try:  # printing never fails, whatever the state of the gates
            return _in_lines(self)
        except GateError as error:
            return f"GatedModel({type(self.host).__name__}: {error.message})"

    # -- state -----------------------------------------------------------------------------------------------------

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._fixed is not None:
            destination[prefix + FIXED] = self._fixed
        if self._removed is not None:
            destination[prefix + REMOVED], destination[prefix + KEPT] = self._removed, self.kept

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
            self.fix_gates(saved[FIXED])

    def _restore_size(self, removed: Tensor | None, kept: Tensor | None) -> None:
        for mask in (removed, kept):
            if mask is not None:
                checked_mask(mask, self.plan)
        saved = torch.zeros_like(self.removed) if removed is None else removed.cpu()
        if bool((self.removed & ~saved).any()):
            raise GateError(
                "this network has lost channels that the saved state still has.",
                hint="load the state into a freshly attached network.",
            )
        if bool((saved & ~self.removed).any()):
            self.remove(saved)
        if kept is not None and not torch.equal(kept.cpu(), self.kept):
            self.cut(kept.cpu())

    # -- gates -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def snapshot(self) -> Snapshot:
        """Return a snapshot of the current network, to select gates from.

        Raises:
            GateError: log α is not finite: the search has diverged.
        """
        log_alpha = checked_log_alpha(self.log_alpha().detach(), self.plan)
        gates = self._evaluated(log_alpha) if self._fixed is None else self._fixed.clone()
        return Snapshot(
            self.plan,
            self.host,
            self.host_plan,
            self.example,
            self.expected,
            self.removed,
            log_alpha.cpu(),
            gates.cpu(),
            self.is_fixed,
        )

    # -- removed gates and the smaller host ----------------------------------------------------------------------------

    @library_defaults()
    def remove(self, gates: Tensor) -> None:
        """Close the gates of this mask permanently: they are 0 and cost nothing from now on.

        The host keeps their channels until :meth:`cut`.
        """
        self._removed = (self.removed | checked_mask(gates, self.plan).cpu()).to(self.device)
        if self._fixed is not None:
            self._fixed = self._without_removed(self._fixed)
        if self._threshold is not None:
            self._threshold.close(self._removed)
        self._rebuild_scaling()

    @library_defaults()
    def cut(self, kept: Tensor | None = None) -> Shrunk:
        """Replace the host by a smaller one, without the channels of removed gates. The former host is not modified.

        Outputs are compared before anything is replaced. Accumulated gradients are cut too, and handles of hooks stay
        valid. Optimizers and averages hold the former host's parameters: the caller updates them with the returned
        object. A group without any open gate keeps one channel, at 0; ``kept`` selects this channel if the same cut was
        made before (:attr:`kept`).
        """
        network = self.snapshot()
        kept = network.kept(~network.removed) if kept is None else kept
        shrunk = shrink(self.host_plan, self.host, kept)
        left = self.expected.rounded(kept.float())
        certify_shrunk((self.host_plan, self.host), shrunk, network.gates, self.example, self.dense_cost, left)
        carry_gradients(shrunk)
        carry_hooks(self.host, shrunk.host)
        self.host, self.host_plan = shrunk.host, shrunk.plan
        self._rebuild_scaling()
        return shrunk

    def host_state(self) -> HostState:
        """Return the current host and plan, for :meth:`cut_since`."""
        return HostState(self.host, self.host_plan)

    def cut_since(self, before: HostState) -> Shrunk | None:
        """Return the mapping from a former host's tensors to the current ones; None if it is still the host.

        Loading a state dict may cut the host. Code that holds its parameters calls this method afterwards.
        """
        if before.host is self.host:
            return None
        return shrunk_between(before.plan, before.host, self.host_plan, self.host)

    def match_size(self, other: GatedModel) -> None:
        """Cut this network, a copy of another, to the current size of the other one."""
        if not torch.equal(self.kept, other.kept):
            self.remove(other.removed)
            self.cut(other.kept)

    # -- cost ------------------------------------------------------------------------------------------------------

    @library_defaults()
    def kept_cost(self) -> Cost:
        """Return the parameters and MACs of the pruned model that the evaluation gates give."""
        network = self.snapshot()
        return network.cost(network.gates > 0)

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
        config, network = self.config, self.snapshot()
        remove_blocks = config.remove_blocks if remove_blocks is None else remove_blocks
        if round_to is None and network.is_fixed:
            gates = network.gates
        else:
            if round_to is not None:
                check_round_to(round_to)
                config = config.changed(round_to=round_to)
            gates = select_gates(network, config.changed(remove_blocks=remove_blocks)).gates
        if config.budget is not None and network.is_fixed and config.of != "latency":  # latency is measured
            share = network.share(gates > 0, config.of)
            if share > config.budget + 1e-9:
                raise GateError(
                    f"the fixed gates leave {share:.4f} of the {config.of}, more than the budget of {config.budget:g}.",
                    hint="call search.freeze() to choose gates within the budget, or attach with another one.",
                )
        return network.extract(gates, remove_blocks)


def _moved_like(tensor: Tensor, moved: Tensor) -> Tensor:
    """Move an example input to the host's device and dtype, with its values (which ``moved`` may have lost)."""
    return tensor if moved.is_meta else tensor.to(moved.device, moved.dtype)


def _in_lines(gated: GatedModel) -> str:
    dense, config, network = gated.dense_cost, gated.config, gated.snapshot()
    kept = network.cost(network.gates > 0)
    minimum = {of: minimum_share(network, config.changed(of=of)) for of in ("macs", "params")}
    lines = [
        f"GatedModel({type(gated.host).__name__}: {gated.plan.num_gates:,} gates in {len(gated.plan.groups)} groups, "
        f"{config.generator} {config.direction}, preset {gated.generator.preset.name})",
        f"  dense   {dense}",
        f"  kept    {kept.macs / dense.macs:.1%} of the MACs, {kept.params / dense.params:.1%} of the parameters",
        f"  minimum {minimum['macs']:.1%} of the MACs, {minimum['params']:.1%} of the parameters",
    ]
    if config.budget is not None:
        lines.append(f"  budget  {config.budget:.1%} of the {COSTS[config.of]}")
    state = "fixed" if network.is_fixed else f"{config.evaluation} rule"
    removed = int(network.removed.sum())
    permanent = f", {removed:,} of them for good" if removed else ""
    lines.append(f"  gates   {int((network.gates == 0).sum()):,} closed ({state}){permanent}")
    return "\n".join(lines)
