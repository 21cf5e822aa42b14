"""The layers of a network as events of its forward pass, and networks that run in lockstep from event to event.

An event is the call of a convolution or linear layer, or the addition of a layer's output to another tensor. Two
networks, or one network on several batches, advance together (:class:`Stepper`), so that a layer can be changed before
any later layer runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from depl0._util.process import thread_context
from depl0.host.calls import ADDITIONS, TRANSPOSED, Call, CallRecorder
from depl0.host.inputs import ExampleInputs
from depl0.host.network import evaluation_mode


@final
@dataclass(frozen=True)
class LayerCall:
    """The call of a convolution or linear layer, before it is made."""

    weight: str
    kind: str
    """The torch function: "conv2d", "linear", …"""
    arguments: Mapping[str, Any]
    """The arguments by their names, as far as they were passed."""
    input: Tensor

    @classmethod
    def of(cls, call: Call) -> LayerCall | None:
        """Return the layer's call, or None if a call is anything else."""
        if call.weight is None or call.name in TRANSPOSED:
            return None
        return cls(call.weight, call.name, call.arguments, call.arguments["input"])


@final
@dataclass(frozen=True)
class Sum:
    """The addition that is the only use of a layer's output, or of the output of its batch norm."""

    weight: str
    branch: Tensor
    other: Tensor
    """The other summand."""
    scale: Tensor | None
    """The factors of the batch norm for every channel; None without a batch norm."""


Event: TypeAlias = "LayerCall | Sum"


def layer_events(
    network: nn.Module, on_event: Callable[[Event], None], added: Iterable[str] = (), *, renew: bool = False
) -> CallRecorder:
    """Return a context that reports the layers of a network while it runs.

    Args:
        network: the network that will run.
        on_event: called with every layer's call, and with the sums of the layers in ``added``.
        added: the weights of layers whose output is only used in one sum (:func:`order_and_added`).
        renew: if True, compute a layer's output again before it is added, because the layer may have been changed.
    """
    branches = _Branches(on_event, frozenset(added), renew)
    return CallRecorder(network, before=branches.before, after=branches.after)


@dataclass
class _Branch:
    """A layer's current output, and the calls that compute it."""

    weight: str
    order: int
    calls: list[Call]
    tensor: Tensor

    def scale(self) -> Tensor | None:
        """Return the factors of the batch norm for every channel, in evaluation mode."""
        if len(self.calls) == 1:
            return None
        norm = self.calls[1].arguments
        gain = torch.rsqrt(norm["running_var"].double().cpu() + norm.get("eps", 1e-5))
        weight = norm.get("weight")
        return gain if weight is None else gain * weight.detach().double().cpu()

    def again(self) -> Tensor:
        """Repeat the calls, because the layer or its norm may have been changed."""
        first, *rest = self.calls
        tensor: Tensor = first.function(*first.args, **first.kwargs)
        for call in rest:
            tensor = call.function(tensor, *call.args[1:], **call.kwargs)
        return tensor


@final
class _Branches:
    """Follows the outputs of layers through a batch norm to their sum."""

    def __init__(self, on_event: Callable[[Event], None], added: frozenset[str], renew: bool) -> None:
        self._on_event, self._added, self._renew = on_event, added, renew
        self._branches: dict[int, _Branch] = {}
        self._count = 0

    def before(self, call: Call) -> None:
        layer = LayerCall.of(call)
        if layer is not None:
            self._on_event(layer)
        elif call.name in ADDITIONS and (branch := self._pop_added(call.args)) is not None:
            other = call.args[1] if call.args[0] is branch.tensor else call.args[0]
            self._on_event(Sum(branch.weight, branch.tensor, other, branch.scale()))
            if self._renew:
                branch.tensor.copy_(branch.again())

    def after(self, call: Call, result: Any) -> None:
        if call.weight in self._added:
            self._count += 1
            self._branches[id(result)] = _Branch(call.weight, self._count, [call], result)
        elif call.name == "batch_norm" and call.args and id(call.args[0]) in self._branches:
            branch = self._branches.pop(id(call.args[0]))
            self._branches[id(result)] = _Branch(branch.weight, branch.order, [*branch.calls, call], result)

    def _pop_added(self, args: tuple[Any, ...]) -> _Branch | None:
        found = [branch for arg in args[:2] if (branch := self._branches.pop(id(arg), None)) is not None]
        return max(found, key=lambda branch: branch.order, default=None)


# -- which outputs are added ----------------------------------------------------------------------------------------


@torch.no_grad()
def order_and_added(network: nn.Module, inputs: ExampleInputs) -> tuple[list[str], dict[str, bool]]:
    """Return the weights of all layers in the order of their calls, and those whose outputs are only used in a sum.

    For the latter, the value is True if a batch norm comes between the layer and the sum.
    """
    uses = _Uses()
    with evaluation_mode(network), CallRecorder(network, after=uses.note):
        inputs.run(network)
    return uses.order, uses.added


@final
class _Uses:
    """Finds the layers whose output, with or without a norm, is used once: in an addition to a tensor of its shape."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self._from: dict[int, str] = {}
        self._norms: set[int] = set()
        self._normed: set[str] = set()
        self._alive: list[Any] = []  # keeps ids unique
        self._sums: dict[str, int] = {}
        self._other_uses: set[str] = set()

    @property
    def added(self) -> dict[str, bool]:
        """The weights of those layers, and whether a norm precedes the sum."""
        return {
            name: name in self._normed
            for name, count in self._sums.items()
            if count == 1 and name not in self._other_uses and self.order.count(name) == 1
        }

    def note(self, call: Call, result: Any) -> None:
        tensors = [leaf for leaf in pytree.tree_leaves((call.args, call.kwargs)) if isinstance(leaf, Tensor)]
        sources = list(dict.fromkeys(self._from[id(tensor)] for tensor in tensors if id(tensor) in self._from))
        layer = LayerCall.of(call)
        if layer is not None:
            self.order.append(layer.weight)
            self._trace(layer.weight, result)
        if not sources or not isinstance(result, (Tensor, tuple, list)) or isinstance(result, torch.Size):
            return
        first, is_norm = id(tensors[0]), isinstance(result, Tensor) and call.name == "batch_norm"
        if is_norm and first in self._from and first not in self._norms:
            self._trace(sources[0], result)
            self._norms.add(id(result))
            self._normed.add(sources[0])
        elif _is_plain_sum(call):
            latest = max(sources, key=self.order.index)
            self._sums[latest] = self._sums.get(latest, 0) + 1
            self._other_uses.update(source for source in sources if source != latest)
        else:
            self._other_uses.update(sources)

    def _trace(self, weight: str, result: Any) -> None:
        self._from[id(result)] = weight
        self._alive.append(result)


def _is_plain_sum(call: Call) -> bool:
    if call.name not in ADDITIONS or call.kwargs or len(call.args) != 2:
        return False
    a, b = call.args
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and a is not b


# -- lockstep -------------------------------------------------------------------------------------------------------


class _Stopped(BaseException):
    """Unwinds a network that does not run to its end."""


@final
class Stepper:
    """Runs a network on one batch and pauses at every event until :meth:`advance` is called.

    The network runs in its own thread, because a ``forward`` cannot be suspended otherwise; only one thread runs at a
    time. Always call :meth:`close`.
    """

    def __init__(
        self, network: nn.Module, inputs: ExampleInputs, added: Iterable[str] = (), *, renew: bool = False
    ) -> None:
        self._network, self._inputs = network, inputs
        self._in_callers_context = thread_context()
        self._events = layer_events(network, self._pause, added, renew=renew)
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
        """Stop the run at its current event."""
        self._stop = True
        if self._thread is not None:
            self._go.release()
            self._thread.join()

    def _run(self) -> None:
        try:
            with torch.no_grad(), self._in_callers_context(), self._events:
                self._inputs.run(self._network)
        except _Stopped:
            return
        except Exception as error:  # raised in the waiting thread
            self._error = error
        self._event = None
        self._stands.release()

    def _pause(self, event: Event) -> None:
        self._event = event
        self._stands.release()
        self._go.acquire()
        if self._stop:
            raise _Stopped
