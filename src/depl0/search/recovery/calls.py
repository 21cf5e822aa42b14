"""See the layers of a network while it runs: what each reads, and whether its output is added to something else.

Nothing in the network is hooked or replaced: the calls of torch's functions are watched. Two networks, or one network
on several batches, can be run in lockstep (:class:`Stepper`), so that a layer can be changed before anything behind it
runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from depl0.host.network import ExampleInputs, evaluation_mode

LAYERS = {"conv1d", "conv2d", "conv3d", "linear"}
_ADDITIONS = {"add", "__add__", "__radd__", "__iadd__", "add_"}
_PARAMETERS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


@final
@dataclass(frozen=True)
class LayerCall:
    """One call of a convolution or linear layer, before it is made."""

    weight: str
    kind: str
    """torch's function: "conv2d", "linear", …"""
    given: Mapping[str, Any]
    """its arguments by name, as far as they were given"""

    @property
    def input(self) -> Tensor:
        """Return what the layer reads."""
        tensor: Tensor = self.given["input"]
        return tensor


@final
@dataclass(frozen=True)
class Sum:
    """The addition that a layer's output, behind its batch norm if it has one, goes into and nothing else."""

    weight: str
    branch: Tensor
    other: Tensor
    """what it is added to"""


Event: TypeAlias = "LayerCall | Sum"


@dataclass
class _Branch:
    """The present form of a layer's output, and the calls that make it."""

    weight: str
    order: int
    calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]
    tensor: Tensor

    def again(self) -> Tensor:
        """Make the calls again: the layer, or its norm, may have been changed."""
        (func, args, kwargs), *rest = self.calls
        tensor: Tensor = func(*args, **kwargs)
        for func, args, kwargs in rest:
            tensor = func(tensor, *args[1:], **kwargs)
        return tensor


@final
class Calls(TorchFunctionMode):
    """Tells ``on_event`` of every layer's call, and of the sums that the outputs of the layers in ``added`` go into.

    With ``renew`` a layer's output is computed again before it is added: the layer may have been changed meanwhile.
    """

    def __init__(
        self,
        network: nn.Module,
        on_event: Callable[[Event], None],
        added: Iterable[str] = (),
        *,
        renew: bool = False,
    ) -> None:
        super().__init__()
        self._renew = renew
        self._names = {id(parameter): name for name, parameter in network.named_parameters()}
        self._on_event = on_event
        self._added = frozenset(added)
        self._branches: dict[int, _Branch] = {}
        self._count = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call the function, and tell what it is."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        call = _layer_call(name, args, kwargs, self._names)
        if call is not None:
            self._on_event(call)
            result = func(*args, **kwargs)
            if call.weight in self._added:
                self._count += 1
                self._follow(_Branch(call.weight, self._count, [(func, args, kwargs)], result))
            return result
        branch = self._branches.get(id(args[0])) if args and isinstance(args[0], Tensor) else None
        if name == "batch_norm" and branch is not None:
            result = func(*args, **kwargs)
            self._branches.pop(id(branch.tensor))
            self._follow(_Branch(branch.weight, branch.order, [*branch.calls, (func, args, kwargs)], result))
            return result
        if name in _ADDITIONS and (branch := self._added_branch(args)) is not None:
            other = args[1] if args[0] is branch.tensor else args[0]
            self._on_event(Sum(branch.weight, branch.tensor, other))
            if self._renew:
                branch.tensor.copy_(branch.again())
        return func(*args, **kwargs)

    def _follow(self, branch: _Branch) -> None:
        self._branches[id(branch.tensor)] = branch

    def _added_branch(self, args: tuple[Any, ...]) -> _Branch | None:
        found = [
            self._branches.pop(id(arg)) for arg in args[:2] if isinstance(arg, Tensor) and id(arg) in self._branches
        ]
        return max(found, key=lambda branch: branch.order, default=None)


def _layer_call(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], names: Mapping[int, str]
) -> LayerCall | None:
    if name not in LAYERS:
        return None
    given = {**dict(zip(_PARAMETERS, args, strict=False)), **kwargs}
    weight = names.get(id(given.get("weight")))
    return None if weight is None else LayerCall(weight, name, given)


# -- which outputs are added ----------------------------------------------------------------------------------------


@final
class _Uses(TorchFunctionMode):
    """Finds the layers whose output, behind a norm or not, is used once: by an addition to a tensor of its shape."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self._names = {id(parameter): name for name, parameter in network.named_parameters()}
        self._from: dict[int, str] = {}
        self._norms: set[int] = set()
        self._normed: set[str] = set()
        self._alive: list[Tensor] = []  # whatever is known by its id must not be replaced by something else
        self.order: list[str] = []
        self._sums: dict[str, int] = {}
        self._other_uses: set[str] = set()

    @property
    def added(self) -> dict[str, bool]:
        """Return the weights of those layers, and whether a norm comes before the sum."""
        return {
            name: name in self._normed
            for name, count in self._sums.items()
            if count == 1 and name not in self._other_uses and self.order.count(name) == 1
        }

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        result, name = func(*args, **kwargs), getattr(func, "__name__", "")
        call = _layer_call(name, args, kwargs, self._names)
        tensors = [leaf for leaf in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        sources = list(dict.fromkeys(self._from[id(tensor)] for tensor in tensors if id(tensor) in self._from))
        if call is not None:
            self.order.append(call.weight)
            self._note(call.weight, result)
        if not sources or not isinstance(result, (Tensor, tuple, list)) or isinstance(result, torch.Size):
            return result
        if (
            name == "batch_norm"
            and isinstance(result, Tensor)
            and id(tensors[0]) in self._from
            and id(tensors[0]) not in self._norms
        ):
            self._note(sources[0], result)
            self._norms.add(id(result))
            self._normed.add(sources[0])
        elif _is_plain_sum(name, args, kwargs):
            latest = max(sources, key=self.order.index)
            self._sums[latest] = self._sums.get(latest, 0) + 1
            self._other_uses.update(source for source in sources if source != latest)
        else:
            self._other_uses.update(sources)
        return result

    def _note(self, weight: str, result: Tensor) -> None:
        self._from[id(result)] = weight
        self._alive.append(result)


def _is_plain_sum(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    both = name in _ADDITIONS and len(args) == 2 and all(isinstance(arg, Tensor) for arg in args)
    return both and not kwargs and args[0].shape == args[1].shape and args[0] is not args[1]


@torch.no_grad()
def order_and_added(network: nn.Module, inputs: ExampleInputs) -> tuple[list[str], dict[str, bool]]:
    """Return the weights of all layers in the order of their calls, and those whose outputs only go into a sum.

    For the latter, also whether a batch norm comes between the layer and the sum.
    """
    with evaluation_mode(network), _Uses(network) as uses:
        network(*inputs.args, **inputs.kwargs)
    return uses.order, uses.added


# -- lockstep -------------------------------------------------------------------------------------------------------


class _Stopped(BaseException):
    """Unwinds a network that is not to run to its end."""


@final
class Stepper:
    """Runs a network on one batch and stops at every event, until it is told to go on.

    The network runs in a thread of its own, because a ``forward`` cannot be left in the middle otherwise; only one
    thread runs at a time. Call :meth:`close` in any case.
    """

    def __init__(
        self, network: nn.Module, inputs: ExampleInputs, added: Iterable[str] = (), *, renew: bool = False
    ) -> None:
        self._network, self._inputs, self._added, self._renew = network, inputs, frozenset(added), renew
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._event: Event | None = None
        self._error: Exception | None = None
        self._stop = False
        self._thread: threading.Thread | None = None

    def advance(self) -> Event | None:
        """Run to the next event; None at the end."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._go.release()
        self._stands.acquire()
        if self._error is not None:
            raise self._error
        return self._event

    def close(self) -> None:
        """Give up the run where it stands."""
        self._stop = True
        if self._thread is not None:
            self._go.release()
            self._thread.join()

    def _run(self) -> None:
        try:
            with torch.no_grad(), Calls(self._network, self._pause, self._added, renew=self._renew):
                self._network(*self._inputs.args, **self._inputs.kwargs)
        except _Stopped:
            return
        except Exception as error:  # raised where it is waited for
            self._error = error
        self._event = None
        self._stands.release()

    def _pause(self, event: Event) -> None:
        self._event = event
        self._stands.release()
        self._go.acquire()
        if self._stop:
            raise _Stopped
