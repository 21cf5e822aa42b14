"""The contract of replacement modules, and the list of their kinds.

Some modules of a host compute something else when channels are merely sliced off their parameters: a layer norm
divides by the number of channels, attention takes its scale from it. A *replacement* computes, with fewer channels,
what the dense module computes with zeros in the places of the removed ones.

One file of this folder holds one kind: how a host's module is recognised, how its channels are labelled in the
analysis, what describes it in files, how it is put in place, and the code that an exported folder needs. A new kind is
a new file with a subclass of :class:`Replacement`; the analysis, the surgery, the files and the exported folders
iterate over :func:`kinds` and name none of them.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
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
"""path of a module, and the nodes of one call of it"""


@dataclass(frozen=True)
class Replacement(ABC):
    """One module of a host that needs another in its place when channels are cut.

    The class is the kind; an instance holds the ``spec`` of one module: a frozen dataclass of plain numbers and texts
    that says what the dense module computes.
    """

    spec: Any

    kind: ClassVar[str]
    """the name of the kind in files"""
    spec_type: ClassVar[type]
    rank: ClassVar[int] = 0
    """kinds of a lower rank are asked first"""
    removes_layer: ClassVar[bool] = False
    """whether nothing is left of the layer but what it adds"""
    exported: ClassVar[tuple[Callable[..., Any], ...]]
    """classes and functions whose sources exported folders get; each needs only torch and those before it"""
    rebuild: ClassVar[Callable[[nn.Module, str, dict[str, Any]], None]]
    """the last of them: puts a replacement in the place of a dense module, from what :meth:`arguments` gave"""

    # -- analysis ------------------------------------------------------------------------------------------------------

    @classmethod
    def calls(cls, state: Propagation, graph: Graph) -> Iterable[ModuleNodes]:
        """Return the calls in a graph of modules that may be of this kind."""
        return ()

    @classmethod
    def enter(cls, state: Propagation, graph: Graph, path: str, nodes: list[fx.Node]) -> Iterable[fx.Node]:
        """Label the channels of one call; return the nodes that need no other rule, none if it is not of this kind.

        What is found goes into ``state.replaced``, and into ``state.module_calls`` where the result is to be zero for
        closed channels.
        """
        return ()

    @classmethod
    def second_pass(cls, state: Propagation) -> set[str]:
        """Return modules that this kind wants to take in a second pass, now that it is seen what they hold back."""
        return set()

    @property
    def in_float32(self) -> bool:
        """Whether the module computes in float32 by itself, so that float64 would show its rounding."""
        return False

    @classmethod
    def describe(cls, paths: Sequence[str]) -> str | None:
        """Return the line of ``print(plan)`` about the modules of this kind."""
        return None

    # -- files ---------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"kind": self.kind, **asdict(self.spec)}

    def channel_axes(self, path: str) -> dict[Axis, int]:
        """Return the axes that are channels of the module itself and not of a tensor, with their dense sizes."""
        return {}

    def dense_names(self, path: str, name: str) -> list[str] | None:
        """Return the dense tensors that a tensor of the replacement was made of, None if it is one of them itself."""
        return None

    # -- surgery -------------------------------------------------------------------------------------------------------

    def before_slicing(  # noqa: B027 - most kinds have nothing to note
        self, model: nn.Module, path: str, positions: Mapping[Axis, Tensor]
    ) -> None:
        """Note what the module is about to lose, in place."""

    def cut(  # noqa: B027 - a kind may have done all before
        self, model: nn.Module, path: str, positions: Mapping[Axis, Tensor]
    ) -> None:
        """Put the replacement in the place of the sliced module, where it is needed."""

    def exact(self, model: nn.Module, path: str, positions: Mapping[Axis, Tensor]) -> dict[str, Tensor]:
        """Return tensors that the replacement is going to have, in float64: as they are before they are rounded."""
        return {}

    # -- exported folders ----------------------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def arguments(cls, module: nn.Module) -> dict[str, Any] | None:
        """Return plain data from which ``rebuild`` makes this module of a compact network, None if it is another."""


@cache
def kinds() -> tuple[type[Replacement], ...]:
    """Return all kinds of replacements, in the order in which they are asked."""
    package = __name__.rpartition(".")[0]
    modules = [import_module(f"{package}.{entry.name}") for entry in iter_modules(import_module(package).__path__)]
    found = {
        member
        for module in modules
        for member in vars(module).values()
        if isinstance(member, type) and issubclass(member, Replacement) and not inspect.isabstract(member)
    }
    return tuple(sorted(found, key=lambda kind: (kind.rank, kind.kind)))


def replacement_from(data: Mapping[str, Any]) -> Replacement:
    """Read what :meth:`Replacement.to_dict` gave; a ValueError says what is wrong."""
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


def exact_tensors(
    model: nn.Module, positions: Mapping[Axis, Tensor], replacements: Mapping[str, Replacement]
) -> dict[str, Tensor]:
    """Return tensors that a cut network gets, before they are rounded to its own precision.

    Rounding is no difference between two networks, but would look like one where they are compared in float64.
    """
    found = [replacement.exact(model, path, positions) for path, replacement in replacements.items()]
    return {name: tensor for tensors in found for name, tensor in tensors.items()}


def replace_module(network: nn.Module, path: str, module: nn.Module) -> None:
    """Put another module in the place of one, under all of its names."""
    replaced = network.get_submodule(path)
    module.train(replaced.training)
    for name, found in list(network.named_modules(remove_duplicate=False)):
        if found is replaced:
            parent, _, attribute = name.rpartition(".")
            setattr(network.get_submodule(parent), attribute, module)


def outermost_calls(graph: Graph, wanted: Callable[[str, fx.Node], bool]) -> list[ModuleNodes]:
    """Return the calls of wanted modules; of several around a node the outermost."""
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
    """Return the tensors that a call reads, parameters and constants apart, and the nodes that others read."""
    inside = set(nodes)
    given = {n for node in nodes for n in node.all_input_nodes if n not in inside and n not in graph.tensors}
    sources = {n for n in given if n.op != "placeholder" or n in graph.inputs}  # the others are constants
    return sources, [node for node in nodes if any(user not in inside for user in node.users)]
