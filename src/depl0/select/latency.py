"""Selection of gates whose pruned model meets a latency budget when it is timed.

MACs do not determine latency. Therefore the pruned model of a fraction of the MACs is extracted and timed beside the
original one, in the runtime of its deployment. The fraction is bisected until the measured time is just within the
budget.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from depl0.config import GateConfig, Runtime
from depl0.errors import InputError
from depl0.host.inputs import ExampleInputs
from depl0.latency import Skipped, interleave, onnx_runtime, ratio, time_networks
from depl0.select.gates import Selection, minimum_share, select_gates
from depl0.select.snapshot import Snapshot

TRIES = 6
CLOSE = 0.03
"""Relative tolerance: a measured time that is at most this far below the budget is accepted."""


def select_within_latency(
    network: Snapshot, config: GateConfig, scores: Tensor | None = None
) -> tuple[Selection, dict[str, Any]]:
    """Select gates whose pruned model takes at most ``config.budget`` of the host's time, as measured.

    The second value is a record of the search: the fraction of the time that was ``measured``, and all ``attempts``,
    each with the fraction of the ``macs`` that it was given.
    """
    budget = config.budget
    assert budget is not None and config.of == "latency"
    by_macs = config.changed(of="macs")
    minimum = minimum_share(network, by_macs)
    share, too_fast, too_slow = max(budget, minimum), 0.0, float("inf")
    attempts: list[dict[str, float]] = []
    found: list[Selection] = []
    for _ in range(TRIES):
        selection = select_gates(network, by_macs.changed(budget=share), scores)
        compact = network.extract(selection.gates, config.remove_blocks)
        measured = measured_share(compact, network.host, network.example, config.runtime)
        attempts.append({"macs": share, "measured": measured})
        found.append(selection)
        if measured > budget:
            too_slow = min(too_slow, share)
        else:
            too_fast = max(too_fast, share)
        if budget * (1 - CLOSE) <= measured <= budget or (measured <= budget and share >= 1):
            break
        aimed = share * budget * (1 - CLOSE / 2) / measured
        if not too_fast < aimed < too_slow:  # noise, or a step in the times: bisect the interval
            aimed = (too_fast + min(too_slow, 1.0)) / 2
        if max(aimed, minimum) == share:
            break
        share = min(max(aimed, minimum), 1.0)
    times = [attempt["measured"] for attempt in attempts]
    measured = max((time for time in times if time <= budget), default=min(times))
    return found[times.index(measured)], {"measured": measured, "attempts": attempts}


def measured_share(compact: nn.Module, dense: nn.Module, example: ExampleInputs, runtime: Runtime = "pytorch") -> float:
    """Return the pruned model's time as a fraction of the original one's, timed side by side."""
    networks = {"dense": dense, "compact": compact}
    if runtime == "pytorch":
        times = time_networks(networks, example, repeats=30, seconds=15.0)
    else:
        try:
            calls = {name: onnx_runtime(network, example) for name, network in networks.items()}
        except Skipped as error:
            raise InputError(
                f"latency cannot be measured in ONNX Runtime: {error}",
                hint="use runtime='pytorch', or a budget of MACs.",
            ) from error
        times = interleave(calls, example.tensors()[0].device, repeats=30, seconds=15.0)
    return ratio(times["compact"], times["dense"])
