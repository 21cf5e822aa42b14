"""The three ways to make gates that recipes come in."""

from __future__ import annotations

import dataclasses
from typing import Any, final

from depl0.app.recipes.sections import GatesSection
from depl0.gates.generators import Direction


@final
@dataclasses.dataclass(frozen=True)
class Variant:
    """One of the three ways to make gates that every recipe comes in."""

    suffix: str
    words: str
    method: str
    generator: str
    direction: Direction

    def gates(self, **others: Any) -> GatesSection:
        """Give the section of the gates."""
        return GatesSection(method=self.method, generator=self.generator, direction=self.direction, **others)


FORWARD = Variant("", "Dep-L0 forward", "dep-l0", "fc", "forward")
BACKWARD = Variant("-backward", "Dep-L0 backward", "dep-l0", "fc", "backward")
L0_HC = Variant("-l0hc", "L0-HC", "l0-hc", "independent", "forward")
VARIANTS = (FORWARD, BACKWARD, L0_HC)
