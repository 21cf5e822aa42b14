"""The contract of replacement modules, and the list of their kinds.

Some modules compute a different function when channels are merely removed from their parameters: a layer norm divides
by the number of channels, and attention computes its scale from it. A *replacement* computes, with fewer channels, the
output of the original module with zeros in the positions of the removed channels.

Each file of this folder contains one kind: the recognition of a host's module, the labels of its channels in the
analysis, its description in files, and its installation. A new kind is a new file with a subclass of
:class:`Replacement`; the analysis, the surgery and the files iterate over :func:`kinds` and do not name any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from torch import Tensor, fx, nn

from depl0.analysis.propagate import Axis, Propagation
from depl0.analysis.recording import Graph, stack_of

ModuleNodes = tuple[str, list[fx.Node]]
"""Path of a module, and the nodes of one call of it."""


@dataclass(frozen=True)
class Replacement:
    """One module of a host that must be replaced when channels are cut.

    The class is the kind. An instance holds the ``spec`` of one module: a frozen dataclass of numbers and strings that
    describes the computation of the original module.
    """

    spec: Any

    kind: ClassVar[str]
    """Name of the kind in files."""
    spec_type: ClassVar[type]
    rank: ClassVar[int] = 0
    """Kinds of a lower rank are tried first."""
    description: ClassVar[str] = ""
    """What ``print(plan)`` says of the modules of this kind, before their number."""
    removes_layer: ClassVar[bool] = False
    """True if only an addition remains of the layer."""

    # -- analysis ------------------------------------------------------------------------------------------------------

    @classmethod
    def calls(cls, state: Propagation, graph: Graph) -> Iterable[ModuleNodes]:
        """Return the calls in a graph of modules that may be of this kind."""
        return ()

    @classmethod
    def enter(cls, state: Propagation, graph: Graph, path: str, nodes: list[fx.Node]) -> Iterable[fx.Node]:
        """Label the channels of one call; return the nodes that need no other rule, none if it is not of this kind.

        The result is stored in ``state.replaced``, and in ``state.module_calls`` if outputs must be zero for closed
        channels.
        """
        return ()

    @classmethod
    def second_pass(cls, state: Propagation) -> set[str]:
        """Return modules for a second pass of this kind, after the first one showed which channels they block."""
        return set()

    # -- files ---------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the replacement as plain data."""
        return {"kind": self.kind, **asdict(self.spec)}

    def channel_axes(self, path: str) -> dict[Axis, int]:
        """Return the axes that are channels of the module itself instead of a tensor, with their dense sizes."""
        return {}

    def dense_names(self, path: str, name: str) -> list[str] | None:
        """Return the dense tensors that a tensor was made from; None if it is a dense tensor itself."""
        return None

    # -- surgery -------------------------------------------------------------------------------------------------------

    def cut(self, model: nn.Module, path: str, positions: Mapping[Axis, Tensor]) -> None:
        """Replace the sliced module, if necessary."""


@cache
def kinds() -> tuple[type[Replacement], ...]:
    """Return all kinds of replacements, in the order in which they are tried."""
    package = __name__.rpartition(".")[0]
    modules = [import_module(f"{package}.{entry.name}") for entry in iter_modules(import_module(package).__path__)]
    found = {
        member
        for module in modules
        for member in vars(module).values()
        if isinstance(member, type) and issubclass(member, Replacement) and member is not Replacement
    }
    return tuple(sorted(found, key=lambda kind: (kind.rank, kind.kind)))


def replacement_from(data: Mapping[str, Any]) -> Replacement:
    """Read the result of :meth:`Replacement.to_dict`; raise ValueError if it is invalid."""
    kind = next((kind for kind in kinds() if kind.kind == data["kind"]), None)
    if kind is None:
        raise ValueError(f"no replacement is of the kind {str(data['kind'])[:50]!r}")
    given = {key: value for key, value in data.items() if key != "kind"}
    hints = get_type_hints(kind.spec_type)
    wrong = [key for key in {**hints, **given} if key not in hints or not _fits(given.get(key), hints[key])]
    if wrong:
        raise ValueError(f"{str(data)[:100]} describes no {kind.kind}: see {wrong[0]}")
    return kind(kind.spec_type(**given))


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    allowed = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return type(value) in {*allowed, *([int] if float in allowed else []), *([NoneType] if None in allowed else [])}


def replace_module(network: nn.Module, path: str, module: nn.Module) -> None:
    """Replace a module by another one, under all of its names."""
    replaced = network.get_submodule(path)
    module.train(replaced.training)
    for name, found in list(network.named_modules(remove_duplicate=False)):
        if found is replaced:
            parent, _, attribute = name.rpartition(".")
            setattr(network.get_submodule(parent), attribute, module)


def outermost_calls(graph: Graph, wanted: Callable[[str, fx.Node], bool]) -> list[ModuleNodes]:
    """Return the calls of wanted modules; if several contain a node, the outermost."""
    calls: dict[tuple[str, str], list[fx.Node]] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        for key, path in stack_of(node):
            if wanted(path, node):
                calls.setdefault((key, path), []).append(node)
                break
    return [(path, nodes) for (_, path), nodes in calls.items()]


def reads_and_gives(graph: Graph, nodes: list[fx.Node]) -> tuple[set[fx.Node], list[fx.Node]]:
    """Return the tensors that a call reads, except parameters and constants, and the nodes that are used outside it."""
    inside = set(nodes)
    given = {n for node in nodes for n in node.all_input_nodes if n not in inside and n not in graph.tensors}
    sources = {n for n in given if n.op != "placeholder" or n in graph.inputs}  # the others are constants
    return sources, [node for node in nodes if any(user not in inside for user in node.users)]
