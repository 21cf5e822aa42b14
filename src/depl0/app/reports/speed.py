"""How much faster the compact network of a run is, in words."""

from __future__ import annotations

from depl0.app.reports.run import Run
from depl0.latency.measure import Speedup


def faster(run: Run, batch: int = 1) -> str | None:
    """Say how many times as fast the compact network is, as the run measured it; None where it was not timed."""
    key = "latency_ms" if batch == 1 else f"latency_ms_{batch}"
    dense, compact = run.get("dense", key), run.get("compact", key)
    if not dense or not compact:
        return None
    found = run.get("speedup", str(batch))
    if found is None:  # an older run
        return f"{dense / compact:.2f}× as fast"
    measured = Speedup(found["ratio"], found["low"], found["high"])
    return f"{measured.ratio:.2f}× as fast" if measured.is_measurable else "no measurable difference"
