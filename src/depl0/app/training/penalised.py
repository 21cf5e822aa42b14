"""The network of a search with a penalty: one call gives outputs and penalty."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor, nn

from depl0.config import PenaltyKind, PenaltyScale
from depl0.gated import GatedModel


@final
class Penalised(nn.Module):
    """Calls a gated network and its penalty together.

    Asked one after the other, each would run the generator for itself, forward and backward. Inside one module both are
    also seen by whatever the engine puts around a network: gradient synchronisation and compilation.
    """

    def __init__(self, gated: GatedModel, kind: PenaltyKind, scale: PenaltyScale) -> None:
        super().__init__()
        self.gated = gated
        self.kind, self.scale = kind, scale

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, Tensor]:
        """Return the host's outputs and the expected cost."""
        return self.gated.with_penalty(self.kind, *args, scale=self.scale, **kwargs)
