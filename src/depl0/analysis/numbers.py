"""Numbers of channels that a module keeps as attributes: ``x.split(self.width, 1)``, ``x[:, :self.part]``.

The recorded graph holds such a number as a literal. Where the line that uses it names an attribute of the same value,
the attribute is bound to the channels that it counts, like an axis of a parameter, and follows them when they are cut.
Whether the network then still runs and agrees, the trial tells; if it does not, the channels are frozen.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from torch import Tensor, fx, nn

from depl0.analysis.propagate import Propagation
from depl0.analysis.recording import Graph

_NAMED = re.compile(r"\bself\.([A-Za-z_]\w*)")


class NamedNumbers:
    """The whole numbers among a module's attributes that the code of one operator names, in order of appearance."""

    def __init__(self, state: Propagation, graph: Graph, node: fx.Node) -> None:
        self._state, self._path = state, graph.layer[node]
        module = state.modules.get(self._path)
        self._attributes = {} if module is None else vars(module)
        lines = str(node.meta.get("stack_trace") or "")
        found = map(self._numbers_in, [lines, *_code_of(module)])
        self._left = next((numbers for numbers in found if numbers), [])

    def _numbers_in(self, text: str) -> list[tuple[str, int, int]]:
        """Return (attribute, place in it, value) of every number that a text names."""
        found = []
        for name in _NAMED.findall(text):
            value = self._attributes.get(name)
            members = value if isinstance(value, (list, tuple)) else [value]
            if all(type(member) is int for member in members):
                found += [(name, place, member) for place, member in enumerate(members)]
        return found

    def take(self, labels: Tensor) -> tuple[str, int] | None:
        """Return the next attribute that may count these channels; one that has counted others is the last resort."""
        for entry in self._left:
            if entry[2] == len(labels):
                again = [other for other in self._left if other == entry]
                self._left.remove(entry)
                if len(again) == 1:
                    self._left.append(entry)
                return self._axis(entry)
        return None

    def _axis(self, entry: tuple[str, int, int]) -> tuple[str, int]:
        return (f"{self._path}.{entry[0]}" if self._path else entry[0]), entry[1]

    def bind(self, axis: tuple[str, int], labels: Tensor) -> None:
        """Let an attribute follow the channels that it counts."""
        known = self._state.axes.setdefault(axis, labels)
        self._state.labels.join(known, labels)


def _code_of(module: object) -> Iterator[str]:
    """Give the source of forward, then that of the methods that it may call."""
    methods = [getattr(module, "forward", None)]
    for cls in type(module).__mro__:
        if cls is nn.Module:
            break
        methods += [value for name, value in vars(cls).items() if inspect.isfunction(value) and name[:2] != "__"]
    for method in methods:
        try:
            yield "" if method is None else inspect.getsource(method)
        except (OSError, TypeError):  # typed at a prompt, or no function of Python
            yield ""
