"""Run a copy of the host on all accepted inputs and in all modes, and record every distinct path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from depl0.analysis.paths import PathRecorder
from depl0.analysis.recording import Graph, record
from depl0.analysis.trial import NOT_DETERMINISTIC, Failure
from depl0.costs.count import Cost, counted_run
from depl0.equivalence.cases import Accepted, Case, Offers
from depl0.equivalence.comparison import NETWORKS, NOT_INDEPENDENT, max_error, stands_for
from depl0.errors import Depl0Error, InputError, TraceError
from depl0.host.copies import private_copy, untouched
from depl0.host.functional import watch_checkpoints
from depl0.host.inputs import ExampleInputs, output_tensors
from depl0.host.network import run_checked


@dataclass(frozen=True)
class Traces:
    """The recorded passes of a network, and their inputs."""

    graphs: tuple[Graph, ...]
    cases: tuple[Case, ...]
    """Inputs that the network accepts, the example first."""
    refused: tuple[str, ...]
    index_limits: tuple[int | None, ...]
    modes: Mapping[str, str]
    """Case -> the graph with its path."""
    checkpointing: bool
    """True if it uses activation checkpointing in training mode."""
    same_in_training: bool
    """True if a training pass does the same as an evaluation pass, except for dropout."""
    cost: Cost | None
    """Cost of the network, if it was counted."""

    def mode_of(self, failure: Failure) -> str:
        """Return the mode of the graph to search for the cause of a failure."""
        wanted = "training" if failure.training else self.modes[failure.case]
        return wanted if any(graph.mode == wanted for graph in self.graphs) else "evaluation"


def trace_cases(host: nn.Module, copy: nn.Module, example: ExampleInputs) -> Traces:
    """Record the evaluation pass, and the training pass and passes on other inputs if their paths are different."""
    runs = _Runs(host, copy, example)
    found, recorded = runs.found, runs.tried
    refused = [*found.refused]
    first = found.cases[0].inputs
    has_run = runs.cost is not None and first.batch() == 1  # otherwise the last pass was on one image
    graphs = [_record(host, recorded, first, "evaluation", has_run)]

    def record_if_possible(inputs: ExampleInputs, mode: str, what: str) -> None:
        try:
            graphs.append(_record(host, recorded, inputs, mode))
        except TraceError as error:
            refused.append(f"recording {what} ({error.message})")

    with watch_checkpoints() as checkpoints:
        alike = runs.trains_alike()
        if not alike:
            record_if_possible(example.alone().twice(), "training", "the training pass")
    modes: dict[str, str] = {}
    paths = [runs.recorders[id(case.inputs)].path for case in found.cases]
    known = [(paths[0], "evaluation")]
    for case, path in zip(found.cases, paths, strict=True):
        mode = next((mode for steps, mode in known if steps == path), None)
        if mode is None:
            mode = f"evaluation, {case.what}"
            known.append((path, mode))
            record_if_possible(case.inputs, mode, "another path")
        modes[case.what] = mode
    same = alike and all(name != "batch_norm" for path in paths for name, *_ in path)
    return Traces(
        tuple(graphs), found.cases, tuple(refused), runs.index_limits, modes, bool(checkpoints), same, runs.cost
    )


class _Runs:
    """The passes of a copy of the host: its accepted inputs, its outputs, and its path on each of them."""

    def __init__(self, host: nn.Module, copy: nn.Module, example: ExampleInputs) -> None:
        self.tried, self.recorders = private_copy(copy), dict[int, PathRecorder]()
        self._host = host
        self._must_run = must_run = 1 + len(example.others)
        self.cost: Cost | None = None
        with untouched(host), torch.no_grad():
            offers = Offers(self._run, example)
            limits = self.recorders[id(offers.cases[0].inputs)].limits
            self.index_limits = tuple(limits.get(number) for number in range(len(offers.example.tensors())))
            offers.vary(self.index_limits)
            self.found = offers.accepted()
            _check_outputs(host, self.found)
            self.cost = _cost_if_still_itself(self.tried, self.found)
            if self.cost is None:
                changes = "other batches and sizes (the network sets itself to the input that it is given)"
                self.found = Accepted(self.found.cases[:must_run], self.found.outputs[:must_run], (changes,))
                self.index_limits, self.tried = (), private_copy(copy)
        self._check_copy(copy)

    def _run(self, case: ExampleInputs) -> Any:
        recorder = self.recorders[id(case)] = PathRecorder()
        run = partial(recorder.run, self.tried)
        return run_checked(self.tried, case, run) if len(self.recorders) <= self._must_run else case.call(run)

    def _check_copy(self, copy: nn.Module) -> None:
        """Raise an error for a network that is random, or whose copy computes other outputs."""
        last, output = self.found.cases[-1].inputs, self.found.outputs[-1]
        if stands_for(self._host, last, output):
            return
        if not stands_for(copy, last, output):
            raise TraceError(
                f"the evaluation pass of {type(copy).__name__} gives other outputs each time, on the same input.",
                hint=NOT_DETERMINISTIC,
            )
        raise InputError("a copy of the network gives other outputs than the network itself.", hint=NOT_INDEPENDENT)

    def trains_alike(self) -> bool:
        """Return True if a training pass takes the path of an evaluation pass, except for norms and dropout."""
        batches = [case.inputs for case in self.found.cases if case.inputs.batch() > 1]
        if not batches or self.cost is None:
            return False
        inputs = min(batches, key=ExampleInputs.numbers)
        training = PathRecorder()
        try:
            with untouched(self._host), torch.enable_grad():
                inputs.call(partial(training.run, self.tried.train()))
        except Depl0Error:
            raise
        except Exception:  # the recorder will report the problem
            return False
        return training.path == self.recorders[id(inputs)].path


def _cost_if_still_itself(tried: nn.Module, found: Accepted) -> Cost | None:
    """Count the cost of a network, if its outputs on the example did not change after runs on other inputs."""
    try:
        cost, again = counted_run(tried, found.cases[0].inputs)
    except Depl0Error:
        raise
    except Exception:
        return None
    return cost if max_error([found.outputs[0]], [again]) <= NETWORKS.float32 else None


def _check_outputs(host: nn.Module, found: Accepted) -> None:
    """Raise an error for a network without comparable outputs."""
    for case, output in zip(found.cases, found.outputs, strict=True):
        if not output_tensors(output):
            raise InputError(
                f"{type(host).__name__} returns no tensor on {case.what} ({type(output).__name__}), so a pruned "
                "network could not be compared with it.",
                hint="return tensors, or lists, dicts and objects that hold them, from forward.",
            )


def evaluation_copy(host: nn.Module) -> nn.Module:
    """Return a copy of the host in evaluation mode; raise an error if its parameters differ between both modes.

    A gate multiplies a parameter. If an adapter is added to the parameter in evaluation mode and removed for training,
    as in LoRA layers, the gate would not multiply the parameter without the adapter.
    """
    copy = private_copy(host)
    kinds = {type(module) for module in copy.modules()}
    if all(kind.train is nn.Module.train and kind.eval is nn.Module.eval for kind in kinds):
        return copy.eval()
    before = {name: parameter.detach().clone() for name, parameter in copy.train().named_parameters()}
    after = dict(copy.eval().named_parameters())
    same = {name for name in before.keys() & after.keys() if torch.equal(before[name], after[name])}
    changed = next((name for name in {**before, **after} if name not in same), None)
    if changed is not None:
        raise InputError(
            f"train() and eval() of {type(copy).__name__} change {changed}, so a gate on it would not last.",
            hint="merge adapters for good before you prune (merge_and_unload in peft), or keep them apart always.",
        )
    return copy


def _record(host: nn.Module, copy: nn.Module, example: ExampleInputs, mode: str, has_run: bool = False) -> Graph:
    """Record a pass, after a real one, so that caches outside the network contain real tensors."""
    copy.train(mode == "training")
    try:
        with untouched(host), torch.no_grad():
            if not has_run:
                example.call(copy)
    except Depl0Error:
        raise
    except Exception:  # the recorder will report the problem
        pass
    return record(copy, example, mode)
