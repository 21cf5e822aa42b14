"""The random gates that open and close channels."""

from depl0.gates.hard_concrete import (
    BETA,
    GAMMA,
    RULES,
    ZETA,
    closing_log_alpha,
    evaluation_gates,
    open_probability,
    sample,
    sample_gates,
)

__all__ = [
    "BETA",
    "GAMMA",
    "RULES",
    "ZETA",
    "closing_log_alpha",
    "evaluation_gates",
    "open_probability",
    "sample",
    "sample_gates",
]
