"""``target.round_to = "auto"``: the multiple of channels is decided once, and kept with the run's state.

It is asked of what will run the compact network: ONNX Runtime where the recipe ends in a deployed file, else PyTorch.
"""

from __future__ import annotations

import torch

from depl0._util.distributed import from_first, is_first
from depl0.app.training.session import Session
from depl0.gated import GatedModel
from depl0.gated.multiples import choose_multiple
from depl0.latency.multiples import Runtime


def choose_rounding(session: Session, gated: GatedModel) -> None:
    """Decide in the first process, or take what the run decided before, and tell the gates."""
    target, state = session.recipe.target, session.state
    if target.round_to != "auto":
        return
    if state.round_to is None:
        runtime: Runtime = "onnxruntime" if session.recipe.deploy.then == "int8" else "pytorch"
        multiple = choose_multiple(gated, target.budget, target.of, runtime) if is_first() else 0
        state.round_to = int(from_first(torch.tensor([multiple], device=gated.device)))
        in_words = f"in multiples of {state.round_to}" if state.round_to > 1 else "as they come"
        where = "in ONNX Runtime on this device" if runtime == "onnxruntime" else "on this device"
        session.reporter.note(f"channels are kept {in_words}: what pays {where}")
    gated.config = gated.config.changed(round_to=state.round_to)
