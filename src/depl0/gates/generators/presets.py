"""Scale and initialisation of generators: as published, as in the authors' code, or tuned to train well.

Taken literally, the published form feeds values up to ±10 into a tanh of the next group. It saturates, and about 30 %
of the gates of every group are closed at random by the initialisation and hardly move afterwards. The default preset

- feeds log α/c, which is in (−1, 1),
- takes the mean over the inputs instead of the sum, so that one step of Adam with rate r moves a gate's pre-activation
  by about 2·r whatever the number of inputs (r by the bias, at most r by the weights),
- starts from small weights and from biases that give every gate the same log α, and
- stops the gradient between groups: the noise of later, undecided groups would drown the small, steady gradient of the
  penalty.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, final

from depl0._util.registry import unknown
from depl0.errors import InputError

REACH = 0.98
"""The fraction of the bound within which an initial log α may be set; at the bound itself tanh has no inverse."""


@final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Preset:
    """Constants and initialisation of a generator.

    Attributes:
        name: the name in reports.
        bound: c in log α = c·tanh(…).
        feed: the output of a group to the next one: its ``"log_alpha"``, or ``"scaled"`` by 1/c into (−1, 1).
        mean_input: whether W·x is divided by its number of inputs.
        initial_weight: weights of output layers are sampled uniformly in ± this number (times 1/inputs, if
            ``mean_input``), and hidden layers start large enough to preserve the scale of their input. None: all
            weights are initialised as in ``torch.nn.Linear``, ``Conv1d`` and ``LSTMCell``.
        start: the initial log α of every gate. None: biases are sampled from N(bias_mean, bias_std²).
        bias_mean: mean of the initial biases if there is no ``start``.
        bias_std: standard deviation of the initial biases if there is no ``start``.
        carry_gradient: factor on the gradient from a group to the previous one, from 0 (stopped) to 1.
        first_inputs: size of the first group's input of ones. None: as many as it has gates.
    """

    name: str
    bound: float
    feed: Literal["log_alpha", "scaled"]
    mean_input: bool
    initial_weight: float | None
    start: float | None
    bias_mean: float = 3.0
    bias_std: float = 0.01
    carry_gradient: float = 1.0
    first_inputs: int | None = None

    def __post_init__(self) -> None:
        _check("bound", self.bound, "above 0", self.bound > 0)
        feed: str = self.feed
        if feed not in ("log_alpha", "scaled"):
            raise InputError(f"The 'feed' of a Preset must be 'log_alpha' or 'scaled', got {feed!r} instead.")
        if self.initial_weight is not None:
            _check("initial_weight", self.initial_weight, "None or at least 0", self.initial_weight >= 0)
        if self.start is not None:
            limit = REACH * self.bound
            allowed = f"None or between {-limit:.4g} and {limit:.4g} ({REACH} of the bound)"
            _check("start", self.start, allowed, abs(self.start) <= limit)
        _check("bias_mean", self.bias_mean, "a finite number", True)
        _check("bias_std", self.bias_std, "at least 0", self.bias_std >= 0)
        _check("carry_gradient", self.carry_gradient, "between 0 and 1", 0 <= self.carry_gradient <= 1)
        if self.first_inputs is not None:
            _check("first_inputs", self.first_inputs, "None or at least 1", self.first_inputs >= 1)

    def with_start(self, start: float) -> Preset:
        """Return the same preset with another initial log α.

        >>> PRESETS["default"].with_start(4.5).start
        4.5
        """
        if self.start is None:
            raise InputError(
                f"Preset {self.name!r} has no start: its biases are random with mean {self.bias_mean:g}.",
                hint="use preset='default', or set the first values with generator.start_from(log_alpha).",
            )
        return dataclasses.replace(self, start=start)


def _check(field: str, value: float, allowed: str, fine: bool) -> None:
    if not (math.isfinite(value) and fine):
        raise InputError(f"The {field!r} of a Preset must be {allowed}, got {value!r} instead.")


_PAPER = Preset(name="paper", bound=10.0, feed="log_alpha", mean_input=False, initial_weight=None, start=None)
_REFERENCE = dataclasses.replace(_PAPER, name="reference", bound=math.log(100))

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "default": Preset(
            name="default",
            # P(open) of a closed gate can fall to 0.005; with log 100 it stays above 0.047.
            bound=math.log(1000),
            feed="scaled",
            mean_input=True,
            initial_weight=0.01,
            start=3.0,
            carry_gradient=0.0,
        ),
        "paper": _PAPER,
        "reference": _REFERENCE,
        "reference-vgg16": dataclasses.replace(_REFERENCE, name="reference-vgg16", first_inputs=64),
    }
)
"""The presets by name: ``default`` trains well, ``paper`` is the published form, ``reference`` the authors' code, whose
VGG16 starts from 64 ones in both directions (``reference-vgg16``)."""


def find_preset(preset: str | Preset) -> Preset:
    """Return a preset by its name, or the given Preset itself."""
    if isinstance(preset, Preset):
        return preset
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS, "'default' trains best; 'paper' is the published form.")
    return PRESETS[preset]
