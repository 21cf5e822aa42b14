"""Make a plan and try it: cut random channels out of a copy, and see that the copy still runs and agrees.

The recorded graph holds sizes as numbers. It cannot tell ``x.view(n, -1)``, which follows a smaller network, from
``x.view(-1, 400)``, which does not. The trial can: where it fails, the channels at fault are frozen, with the reason,
and a new plan is made. So a user learns before training, not after, what cannot be cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from depl0.analysis.analyse import Analysis
from depl0.analysis.labels import Reason
from depl0.analysis.plan import Plan
from depl0.analysis.selection import GroupChoice
from depl0.analysis.trace import (
    ExampleInputs,
    Graph,
    check_host,
    module_stack,
    path_of,
    private_copy,
    record,
    run_checked,
)
from depl0.analysis.values import Channels
from depl0.errors import TraceError
from depl0.surgery.certificate import TOLERANCE, first_difference, max_error, random_cases
from depl0.surgery.extract import cut
from depl0.surgery.slicing import kept_gates, kept_positions


@dataclass(frozen=True)
class _Failure:
    layer: str
    mode: str


def plan(model: nn.Module, example_inputs: Any, *, groups: GroupChoice = "all") -> Plan:
    """Find the channels of a network that can be pruned; everything else is frozen, each with its reason.

    The model is not modified. ``print(plan)`` shows a table, layer by layer.
    """
    example = ExampleInputs.of(example_inputs)
    with torch.random.fork_rng(devices=[]):
        copy = private_copy(check_host(model))
        wanted = run_checked(copy.eval(), example)
        del wanted
        graphs = record(copy, example)
        analysis = Analysis(copy, graphs)
        while True:
            result = analysis.plan(groups)
            failure = _try_out(result, copy, example)
            if failure is None:
                return result
            _freeze_cause(analysis, failure)


def _try_out(result: Plan, model: nn.Module, example: ExampleInputs) -> _Failure | None:
    """Close about half of all gates at random, cut, and compare; in training mode it is enough that it runs."""
    rng = torch.Generator().manual_seed(0)
    gates = torch.rand(result.num_gates, generator=rng)
    gates = torch.where(gates < 0.5, 0.0, gates)
    kept = kept_gates(result, gates > 0, gates)
    model.eval()
    compact, scaled = cut(result, model, gates, kept)

    def gated(case: ExampleInputs) -> Any:
        return torch.func.functional_call(model, scaled, case.args, case.kwargs)

    cases = random_cases(example, 1)
    running: list[nn.Module] = []
    with torch.no_grad():
        wanted = [gated(case) for case in cases]
        try:
            with module_stack() as running:
                found = [compact(*case.args, **case.kwargs) for case in cases]
        except Exception:
            return _Failure(path_of(compact, running), "evaluation")
        if not max_error(wanted, found, torch.float32) <= TOLERANCE[torch.float32]:
            layer = first_difference(gated, model, compact, example, kept_positions(result, kept), 1e-3)
            return _Failure(layer, "evaluation")
        return _run_in_training(model, compact, example)


def _run_in_training(model: nn.Module, compact: nn.Module, example: ExampleInputs) -> _Failure | None:
    for case in (example, example.twice()):
        try:
            private_copy(model).train()(*case.args, **case.kwargs)
        except Exception:
            continue  # a batch of one, say; the dense network does not train on it either
        compact.train()
        try:
            with module_stack() as running:
                compact(*case.args, **case.kwargs)
        except Exception:
            return _Failure(path_of(compact, running), "training")
        return None
    return None


def _freeze_cause(analysis: Analysis, failure: _Failure) -> None:
    """Freeze the channels that go through the last size-dependent operator before the point of failure."""
    state = analysis.state
    graph = next(g for g in analysis.graphs if g.mode == failure.mode)
    last = max((i for i, n in enumerate(graph.nodes) if graph.layer[n] == failure.layer), default=len(graph.nodes))
    suspects = {node for owner, node in state.sized_by_code if owner is graph}
    for node in reversed(graph.nodes[: last + 1]):
        if node in suspects and _freeze_inputs(analysis, graph, node):
            return
    for node in reversed(graph.nodes[: last + 1]):  # no size to blame: whatever reaches the failing layer
        if graph.layer[node] == failure.layer and _freeze_inputs(analysis, graph, node):
            return
    raise TraceError(
        f"a trial cut of the network fails at {failure.layer or 'its forward'} and no operator there explains it.",
        hint="leave the groups around that layer out with groups=[...], and report the network.",
    )


def _freeze_inputs(analysis: Analysis, graph: Graph, node: fx.Node) -> bool:
    """Freeze the channels that go into a node; tell whether there were any left to freeze."""
    labels = analysis.state.labels
    found = False
    for source in [*node.all_input_nodes, node]:
        value = analysis.state.values.get(source)
        if isinstance(value, Channels) and _any_free(analysis, value.labels):
            labels.freeze(value.labels, Reason("its size is fixed in the code of forward", graph.layer[node]))
            found = True
    return found


def _any_free(analysis: Analysis, labels: Tensor) -> bool:
    return any(analysis.state.labels.reason(label) is None for label in labels.tolist())
