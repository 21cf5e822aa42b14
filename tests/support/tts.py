"""Figures of a benchmark, as if they had been measured."""

from __future__ import annotations


def figures(member: str, seconds: float, converged: float | None, seed: int = 0) -> dict[str, object]:
    return {
        "member": member, "seed": seed, "accuracy": 90.0, "macs_left": 0.5, "params_left": 0.5, "seconds": seconds,
        "cpu_seconds": seconds, "attempts": [], "epochs": 10, "epochs_before_convergence": converged,
        "epochs_to_settle": 5.0 + seed,
        "seconds_per_epoch_before_convergence": 3.25, "epoch_seconds": [], "compactions": [{}, {}],
    }  # fmt: skip
