"""Run a copy of the host on all accepted inputs and in all modes, and record every distinct path.

Two passes take the same path if they call the same torch functions in the same order on each other's results. The path
of a training pass is compared with that of an evaluation pass, and the paths on other inputs with that on the example.
Only passes with different paths must be recorded by ``torch.export``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.weak import WeakTensorKeyDictionary

from depl0.analysis.cause import Failure
from depl0.analysis.recording import Graph, record
from depl0.costs.count import Cost, counted_run
from depl0.equivalence.cases import Accepted, Case, CaseCollector
from depl0.equivalence.comparison import NETWORKS, NOT_INDEPENDENT, max_error, stands_for
from depl0.errors import Depl0Error, InputError, TraceError
from depl0.host.copies import forbid_access_to, isolated_deepcopy
from depl0.host.inputs import ExampleInputs, output_tensors
from depl0.host.network import run_checked

NOT_DETERMINISTIC = "a pruned network can be compared only if randomness is for training: if self.training: ..."


@dataclass(frozen=True)
class Traces:
    """The recorded passes of a network, and their inputs."""

    graphs: tuple[Graph, ...]
    cases: tuple[Case, ...]
    """Inputs that the network accepts, the example first."""
    refused: tuple[str, ...]
    index_limits: tuple[int | None, ...]
    shared_inputs: frozenset[int]
    modes: Mapping[str, str]
    """Case -> the graph with its path."""
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
        graphs=tuple(graphs),
        cases=found.cases,
        refused=tuple(refused),
        index_limits=runs.index_limits,
        shared_inputs=found.shared,
        modes=modes,
        same_in_training=same,
        cost=runs.cost,
    )


class _Runs:
    """The passes of a copy of the host: its accepted inputs, its outputs, and its path on each of them."""

    def __init__(self, host: nn.Module, copy: nn.Module, example: ExampleInputs) -> None:
        self.tried, self.recorders = isolated_deepcopy(copy), dict[int, PathRecorder]()
        self._host = host
        self._must_run = must_run = 1 + len(example.others)
        self.cost: Cost | None = None
        with forbid_access_to(host), torch.no_grad():
            collector = CaseCollector(self._run, example)
            limits = self.recorders[id(collector.cases[0].inputs)].limits
            self.index_limits = tuple(limits.get(number) for number in range(len(collector.example.tensors())))
            collector.vary(self.index_limits)
            self.found = collector.accepted()
            _check_outputs(host, self.found)
            self.cost = _cost_if_still_itself(self.tried, self.found)
            if self.cost is None:
                changes = "other batches and sizes (the network sets itself to the input that it is given)"
                self.found = Accepted(self.found.cases[:must_run], self.found.outputs[:must_run], (changes,))
                self.index_limits, self.tried = (), isolated_deepcopy(copy)
        self._check_copy(copy)

    def _run(self, case: ExampleInputs) -> Any:
        recorder = self.recorders[id(case)] = PathRecorder()
        run = partial(recorder.run, self.tried)
        return run_checked(self.tried, case, run) if len(self.recorders) <= self._must_run else case.call(run)

    def _check_copy(self, copy: nn.Module) -> None:
        """Raise an error for a network that is random, or whose copy computes other outputs."""
        case, output = self.found.smallest
        if stands_for(self._host, case.inputs, output):
            return
        if not stands_for(copy, case.inputs, output):
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
            with forbid_access_to(self._host), torch.enable_grad():
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
    copy = isolated_deepcopy(host)
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
        with forbid_access_to(host), torch.no_grad():
            if not has_run:
                example.call(copy)
    except Depl0Error:
        raise
    except Exception:  # the recorder will report the problem
        pass
    return record(copy, example, mode)


class PathRecorder(TorchFunctionMode):
    """Records the path of the passes that run in this thread while the context is active."""

    def __init__(self) -> None:
        super().__init__()
        self.path: list[tuple[Any, ...]] = []
        """Called torch functions in order, each with the origins of its arguments (earlier results or parameters).

        Sizes, indices and batch counters are omitted, and so are the flags that switch norms and dropout between modes.
        """
        self.limits: dict[int, int] = {}
        """Number of an input -> the size of the smallest table that it indexes."""
        self._origins: MutableMapping[Tensor, tuple[int, int]] = WeakTensorKeyDictionary()
        self._inputs: dict[int, int] = {}
        self._alive: list[Tensor] = []

    def run(self, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Call a network and return its outputs."""
        for number, tensor in enumerate(ExampleInputs(args, kwargs).tensors()):
            if not tensor.is_floating_point() and not tensor.is_complex():
                self._add_input(tensor, number)
        with self:
            outputs = model(*args, **kwargs)
        # Some networks return more tensors in training mode without calling any other function.
        self.path.append(("", *map(self._argument, output_tensors(outputs))))
        return outputs

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in _READS:
            if isinstance(result, Tensor):  # for example x.T
                self._step(name, args[:1], result)
        elif name not in _IGNORED:
            named = {key: value for key, value in (kwargs or {}).items() if key != "training"}
            self._step(name, (args, named), result)
            if self._inputs:
                self._follow_indices(name, args, kwargs or {}, result)
        return result

    def _step(self, name: str, given: Any, result: Any) -> None:
        leaves = pytree.tree_leaves(given)
        if any(isinstance(leaf, Tensor) for leaf in leaves) and all(map(_is_counter, leaves)):
            return
        has_mode = name in _HAVE_A_MODE
        self.path.append((name, *(self._argument(x) for x in leaves if not (has_mode and type(x) is bool))))
        for place, tensor in enumerate(pytree.tree_leaves(result)):
            if isinstance(tensor, Tensor):
                self._origins[tensor] = len(self.path), place

    def _argument(self, leaf: Any) -> Any:
        """Return a key for an argument of a call: its origin, its value, or its type if it may be a size."""
        if isinstance(leaf, Tensor):
            return leaf.dim(), self._origins.get(leaf) or (id(leaf) if isinstance(leaf, nn.Parameter) else None)
        return leaf if isinstance(leaf, (float, str, bool)) or leaf is None else type(leaf).__name__

    # -- indices -------------------------------------------------------------------------------------------------------

    def _add_input(self, tensor: Tensor, number: int) -> None:
        self._alive.append(tensor)  # otherwise another tensor could get the same address later
        self._inputs[tensor.untyped_storage().data_ptr()] = number

    def _input(self, value: Any) -> int | None:
        is_index = isinstance(value, Tensor) and not value.is_floating_point() and not value.is_complex()
        return self._inputs.get(value.untyped_storage().data_ptr()) if is_index else None

    def _follow_indices(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        stays_index = name in _SAME_VALUES and getattr(result, "dtype", None) in (torch.int64, torch.int32)
        if stays_index and args and (number := self._input(args[0])) is not None:
            self._add_input(result, number)
        for index, limit in _indices(name, args, kwargs):
            if (number := self._input(index)) is not None:
                self.limits[number] = min(limit, self.limits.get(number, limit))


_READS = {"__get__", "size", "numel", "nelement", "__len__"}
_IGNORED = {"dim", "__repr__", "__hash__", "stride", "is_floating_point", "_set_grad_enabled", "_assert"}
_HAVE_A_MODE = {
    "batch_norm", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "rrelu",
    "lstm", "gru", "rnn_tanh", "rnn_relu",
}  # fmt: skip
_SAME_VALUES = {"long", "int", "to", "type", "clone", "contiguous", "reshape", "flatten"}


def _indices(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[Any, int]]:
    """Yield the index tensors of a lookup, each with the size of the table."""
    if name in ("embedding", "embedding_bag"):
        index, table, *_ = (*args, *(kwargs[key] for key in ("input", "weight") if key in kwargs))
        tables = [table, index] if name == "embedding_bag" else [table]  # torch has both orders
        yield from ((i, t.shape[0]) for i, t in zip([index, table], tables, strict=False) if t.dim() == 2)
    elif name == "one_hot":
        classes = kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
        yield from [(args[0], classes)] if args and classes > 0 else []
    elif name == "index_select" and len(args) == 3:
        yield args[2], args[0].shape[args[1]]
    elif name == "__getitem__":
        given = args[1] if isinstance(args[1], tuple) else (args[1],)
        if all(isinstance(entry, (Tensor, slice, int)) for entry in given):  # one dimension each
            yield from ((index, args[0].shape[dim]) for dim, index in enumerate(given) if isinstance(index, Tensor))


def _is_counter(leaf: Any) -> bool:
    """Return True for a number or a tensor of one integer, such as a counter of batches."""
    return leaf.dim() == 0 and not leaf.is_floating_point() if isinstance(leaf, Tensor) else isinstance(leaf, int)
