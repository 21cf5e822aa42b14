"""DistributedDataParallel around a gated model: it is updated in place when the trained parameters change.

DDP keeps the parameters it was constructed with, and expects a gradient for each of them in every step. A search
replaces the host when it cuts, and while gates are fixed (warm-up, after freezing) the generator gets no gradients.
Therefore, whenever a gated model runs inside the forward pass of a DDP that was built for other parameters, that DDP is
initialised again: the same object, with the same options, for the parameters that will get gradients now. All ranks do
this in the same step, because all of them follow the same search.
"""

from __future__ import annotations

import gc
import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from depl0.errors import InputError

if TYPE_CHECKING:
    from depl0.gated.model import GatedModel

_IGNORED = "_ddp_params_and_buffers_to_ignore"
"""Attribute that DDP reads from the wrapped module: names of parameters to ignore."""
_NOT_OPTIONS = ("self", "module", "device_mesh")  # of a mesh, only the process group is passed
_KEPT = ("training", "require_backward_grad_sync", "require_forward_param_sync", "_join_config")
_OLD_NAMES = {"broadcast_buffers": "forward_sync_buffers"}
"""Deprecated options and their replacements."""


def current_wrapper() -> DistributedDataParallel | None:
    """Return the DDP whose forward pass is running, if it can be rebuilt."""
    wrapper = DistributedDataParallel._active_ddp_module
    if wrapper is None or wrapper.mixed_precision is not None or wrapper._delay_all_reduce_params:
        return None  # those put permanent hooks on modules and parameters
    return wrapper


def check_wrappers(gated: GatedModel, changes: bool) -> None:
    """Raise an error if a DDP around a gated model cannot follow it.

    ``changes`` is True if the trained parameters will change for sure while the network trains.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    for wrapper in gc.get_objects():
        if not issubclass(type(wrapper), DistributedDataParallel):
            continue
        inside = list(wrapper.modules())
        if not any(module is gated for module in inside):
            continue
        others = [module for module in inside if type(module) is type(gated)]
        if len(others) > 1:
            raise InputError(
                f"one DistributedDataParallel holds {len(others)} gated networks, whose searches would change it at "
                "different times.",
                hint="wrap each gated network in a DistributedDataParallel of its own.",
            )
        if changes and any("_orig_mod" in module._modules for module in inside):
            raise InputError(
                "a DistributedDataParallel around a compiled gated network cannot follow its cuts and its warm-up.",
                hint="compile the wrapper instead, torch.compile(DistributedDataParallel(gated)); or cut='never' "
                "without a warm-up.",
            )


def follow_training(wrapper: DistributedDataParallel, gated: GatedModel) -> None:
    """Rebuild a DDP in place, unless it reduces exactly the gated model's parameters that get gradients."""
    if not torch.is_grad_enabled():
        return
    trained = (gated.host, gated.is_fixed)
    if "_depl0_built_for" not in wrapper.__dict__:  # done once, because this runs in every step
        wrapper.__dict__["_depl0_built_for"] = _built_for(wrapper, gated)
    if wrapper.__dict__["_depl0_built_for"] == trained:
        return
    unused = {id(p) for p in gated.generator.parameters()} if gated.is_fixed else set()
    _build_anew(wrapper, {name for name, p in wrapper.module.named_parameters() if id(p) in unused})
    wrapper.__dict__["_depl0_built_for"] = trained


def _built_for(wrapper: DistributedDataParallel, gated: GatedModel) -> tuple[nn.Module | None, bool]:
    """Return the host for which a newly constructed DDP was built, and whether gates were fixed."""
    reduced = {id(p) for p in wrapper._module_parameters}
    has_host = all(id(p) in reduced for p in gated.host.parameters())
    has_gates = wrapper.find_unused_parameters or any(id(p) in reduced for p in gated.generator.parameters())
    is_fixed = gated.is_fixed if wrapper.find_unused_parameters else not has_gates
    return gated.host if has_host else None, is_fixed


def _build_anew(wrapper: DistributedDataParallel, unused: set[str]) -> None:
    module, before = wrapper.module, dict(wrapper.__dict__)
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    options: dict[str, Any] = {
        name: getattr(wrapper, name)
        for name in known
        if name not in _NOT_OPTIONS and hasattr(wrapper, name) and _OLD_NAMES.get(name) not in known
    }
    if "init_sync" in known:  # all ranks made the same cut, and parameters in use may not be written to
        options["init_sync"] = False
    options["bucket_cap_mb"] = None if wrapper.bucket_bytes_cap_default else wrapper.bucket_bytes_cap / 2**20
    own = getattr(module, _IGNORED, None)
    setattr(module, _IGNORED, unused | set(own or ()))
    try:
        DistributedDataParallel.__init__(wrapper, module, **options)
    finally:
        delattr(module, _IGNORED) if own is None else setattr(module, _IGNORED, own)
    for hook, state in before.pop("_comm_hooks"):
        wrapper.register_comm_hook(state, hook)
    for name, value in before.items():
        if name in _KEPT or name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")):
            wrapper.__dict__[name] = value
