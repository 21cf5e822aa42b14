"""Make a plan and try it: cut random channels out of a copy, and see that the copy still runs and agrees.

The recorded graph holds sizes as numbers. It cannot tell ``x.view(n, -1)``, which follows a smaller network, from
``x.view(-1, 400)``, which does not. The trial can: where it fails, the channels at fault are frozen, with the reason,
and a new plan is made. So a user learns before training, not after, what cannot be cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from depl0._host import ExampleInputs, check_host, module_stack, path_of, private_copy, run_checked
from depl0.analysis.analyse import Analysis
from depl0.analysis.labels import Reason
from depl0.analysis.operators import LAYERS
from depl0.analysis.plan import Plan
from depl0.analysis.recording import Graph, operator_name, record, user_line
from depl0.analysis.selection import GroupChoice
from depl0.analysis.values import Channels
from depl0.errors import InputError, TraceError
from depl0.surgery.certificate import TOLERANCE, first_difference, gives_the_same_twice, max_error, random_cases
from depl0.surgery.extraction import cut
from depl0.surgery.slicing import kept_gates, kept_positions


@dataclass(frozen=True)
class _Failure:
    """Where a trial cut goes wrong: it cannot be run there, or gives other values there."""

    mode: str
    layer: str
    line: str = ""
    """the line of forward that raised, as a traceback prints it; "" where only values differ"""

    @property
    def reason(self) -> str:
        """Say what the channels at fault have done."""
        return "its size is fixed in the code of forward" if self.line else "its number of channels changes the values"


def plan(model: nn.Module, example_inputs: Any, *, groups: GroupChoice = "all") -> Plan:
    """Find the channels of a network that can be pruned; everything else is frozen, each with its reason.

    The model is not modified. ``print(plan)`` shows a table, layer by layer.
    """
    example = ExampleInputs.of(example_inputs)
    with torch.random.fork_rng(devices=[]):
        copy = private_copy(check_host(model))
        run_checked(copy.eval(), example)
        analysis = Analysis(copy, record(copy, example))
        trial, trial_example = _in_full_precision(copy, example)
        while True:
            result = analysis.plan(groups)
            failure = _try_out(result, trial, trial_example)
            if failure is None:
                return result
            _freeze_cause(analysis, failure)


def _in_full_precision(model: nn.Module, example: ExampleInputs) -> tuple[nn.Module, ExampleInputs]:
    """Return a float32 form of a half-precision network, whose rounding would hide what the trial looks for."""
    if not any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in model.parameters()):
        return model, example
    full = private_copy(model).float().eval()
    full_example = example.map_tensors(lambda t: t.float() if t.is_floating_point() else t)
    try:
        run_checked(full, full_example)
    except InputError:  # it insists on half precision somewhere inside
        return model, example
    return full, full_example


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
        except Exception as error:
            return _Failure("evaluation", path_of(compact, running), user_line(error))
        if not max_error(wanted, found, torch.float32) <= TOLERANCE[torch.float32]:
            if not gives_the_same_twice(gated, example):
                raise TraceError(
                    f"the evaluation pass of {type(model).__name__} gives other outputs each time, on the same input.",
                    hint="a pruned network can be compared only if randomness is for training: if self.training: ...",
                )
            layer = first_difference(gated, model, compact, example, kept_positions(result, kept), 1e-3)
            return _Failure("evaluation", layer)
        return _run_in_training(model, compact, example)


def _run_in_training(model: nn.Module, compact: nn.Module, example: ExampleInputs) -> _Failure | None:
    for case in (example, example.twice()):
        try:
            private_copy(model).train()(*case.args, **case.kwargs)
        except Exception:
            continue  # a batch of one, say; the dense network does not train on it either
        compact.train()
        running: list[nn.Module] = []
        try:
            with module_stack() as running:
                compact(*case.args, **case.kwargs)
        except Exception as error:
            return _Failure("training", path_of(compact, running), user_line(error))
        return None
    return None


def _freeze_cause(analysis: Analysis, failure: _Failure) -> None:
    """Freeze the channels at fault: those of an operator with a size in the code, as near to the failure as possible.

    All layers before the failure have run and agreed, so the fault is most likely between them and it.
    """
    graph = next(g for g in analysis.graphs if g.mode == failure.mode)
    at_failure = [node for node in graph.nodes if graph.layer[node] == failure.layer]
    on_line = [node for node in at_failure if failure.line and failure.line in (node.meta.get("stack_trace") or "")]
    at_failure = on_line or at_failure
    nearby = _back_to_layers(at_failure)
    sized = {node for owner, node in analysis.state.sized_by_code if owner is graph}
    last = max((graph.nodes.index(node) for node in at_failure), default=len(graph.nodes) - 1)
    before = graph.nodes[last::-1]
    for candidates in (
        [node for node in before if node in sized and node in nearby],
        [node for node in at_failure if failure.layer],
        [node for node in before if node in sized],
        at_failure,
    ):
        if any(_freeze_inputs(analysis, graph, node, failure.reason) for node in candidates):
            return
    raise TraceError(
        f"a trial cut of the network fails at {failure.layer or 'its forward'} and no operator there explains it.",
        hint="leave the groups around that layer out with groups=[...], and report the network.",
    )


def _back_to_layers(nodes: list[fx.Node]) -> set[fx.Node]:
    """Return the nodes and all that goes into them, back to the layers before."""
    found: set[fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(n for n in node.all_input_nodes if operator_name(n) not in LAYERS)
    return found


def _freeze_inputs(analysis: Analysis, graph: Graph, node: fx.Node, reason: str) -> bool:
    """Freeze the channels that go into a node, or else its own; tell whether there were any left to freeze."""
    labels = analysis.state.labels
    for nodes in (node.all_input_nodes, [node]):
        values = [value for n in nodes if isinstance(value := analysis.state.values.get(n), Channels)]
        free = [value for value in values if any(labels.reason(label) is None for label in value.labels.tolist())]
        for value in free:
            labels.freeze(value.labels, Reason(reason, graph.layer[node]))
        if free:
            return True
    return False
