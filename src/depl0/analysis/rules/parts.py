"""Rules for parts of the channels: chunk, split, tensor_split, slice and narrow.

The recorded graph contains the position of a cut as a literal number. There are three ways in which it can adapt when
channels are removed:

    ===========================================  ==================================================================
    code of forward                              pruned channels
    ===========================================  ==================================================================
    ``x.chunk(2, 1)``                            the same positions of both parts
    ``x.split([self.a, self.b], 1)``             any channels: the attributes count their parts, and are cut like the
                                                 axis of a parameter (:class:`_NamedNumbers`)
    ``x[:, : x.shape[1] // 4]``                  the same positions of equal blocks, so that parts keep their fractions
    ===========================================  ==================================================================

The last two are assumptions derived from the code, which a trial confirms or rejects.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from torch import Tensor, fx, nn

from depl0.analysis.labels import Channels, Value
from depl0.analysis.propagate import Propagation, tensor_inputs
from depl0.analysis.recording import Graph, arguments, operator_name, shape_of
from depl0.analysis.rules.moves import literal_indexing_rule
from depl0.analysis.rules.operators import IDENTITIES, PARTS, RESHAPES, UNIFORM, is_pointwise
from depl0.analysis.rules.rulebook import refuse_layer, rule


@dataclass(frozen=True)
class _Cut:
    """The ranges (start, end) of the channels that an operator selects."""

    parts: list[tuple[int, int]]
    """The results, in order."""
    counted: list[tuple[int, int]]
    """For each number in the code, the channels that it counts: ``x[:, -3:]`` counts the last three."""


@rule(*PARTS)
def _parts(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    source = tensor_inputs(node)[0]
    value, given = state.values[source], arguments(node)
    dim = int(given["dim"]) % len(shape_of(source)) if isinstance(given.get("dim"), int) else -1
    if not isinstance(value, Channels) or value.dim != dim:
        return literal_indexing_rule(state, graph, node)
    cut = _cut_of(node, len(value.labels))
    if cut is None or any(start >= end for start, end in cut.parts):
        return refuse_layer(state, graph, node, f"{operator_name(node)} picks channels by number")
    labels, is_one = value.labels, isinstance(node.meta["val"], Tensor)
    if not cut.counted:  # all channels
        return value if is_one else [value for _ in cut.parts]
    state.literal_size_nodes.append((graph, node))
    if not _follow_attributes(state, graph, node, labels, cut) and not _tie_blocks(state, labels, cut):
        return refuse_layer(state, graph, node, f"{operator_name(node)} picks channels by number")
    values = [state.output_of(labels[start:end], dim, graph.layer[node]) for start, end in cut.parts]
    return values[0] if is_one else values


@rule("chunk")
def _chunk(state: Propagation, graph: Graph, node: fx.Node) -> Value:
    """Couple the channels at the same position in every part, so that equal parts stay equal.

    Another method of the module, as for exported networks, may split by a number (``x.split((self.c, self.c), 1)``).
    This number is updated too, although no recorded pass reads it.
    """
    given, source = arguments(node), tensor_inputs(node)[0]
    value, dim = state.values[source], int(given["dim"]) % len(shape_of(source))
    if not isinstance(value, Channels) or value.dim != dim:
        return literal_indexing_rule(state, graph, node)
    count = len(node.meta["val"])
    if len(value.labels) % count or len(value.labels) == count:
        return refuse_layer(state, graph, node, "chunk makes parts of unequal size")
    rows = value.labels.reshape(count, -1)
    state.labels.join_rows(rows)
    numbers = _NamedNumbers(state, graph, node, only_splits=True)
    if (axis := numbers.take(len(rows[0]))) is not None:
        numbers.bind(axis, rows[0])
    return [Channels(dim, row) for row in rows]


def _cut_of(node: fx.Node, width: int) -> _Cut | None:
    """Return the cut of an operator; None if its numbers are unknown, or it leaves gaps."""
    name, given = operator_name(node), arguments(node)
    if name in {"slice", "narrow"}:
        return _cut_of_slice(name, given, width)
    sizes = [int(part.shape[given["dim"]]) for part in node.meta["val"]]
    ends = list(accumulate(sizes))
    parts = [(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    if len(parts) == 1:
        return _Cut(parts, [])
    if name == "tensor_split":
        return _Cut(parts, [(0, end) for end in ends[:-1]])
    if _has_one_size(node) and len(set(sizes)) > 1:
        return None  # the last part is smaller, and might lose all of its channels
    return _Cut(parts, parts)


def _cut_of_slice(name: str, given: dict[str, Any], width: int) -> _Cut | None:
    start = given["start"] or 0
    if not isinstance(start, int) or given.get("step", 1) != 1:
        return None
    if name == "narrow":
        length = given["length"]
        if not isinstance(length, int) or start < 0:
            return None
        part = (start, start + length)
        return _Cut([part], [*([(0, start)] if start else []), *([part] if length < width else [])])
    end = given["end"] if isinstance(given["end"], int) else width
    part = slice(start, end).indices(width)[:2]
    inside = [(number, place) for number, place in zip((start, end), part, strict=True) if 0 < place < width]
    return _Cut([part], [(place, width) if number < 0 else (0, place) for number, place in inside])


def _has_one_size(node: fx.Node) -> bool:
    """Return True for ``x.split(4)``, which has one size for all parts."""
    return operator_name(node) in {"split", "unsafe_split"} and isinstance(arguments(node)["split_size"], int)


def _follow_attributes(state: Propagation, graph: Graph, node: fx.Node, labels: Tensor, cut: _Cut) -> bool:
    """Bind the attributes that count channels; return True if all numbers adapt, with at most one as the remainder."""
    numbers = _NamedNumbers(state, graph, node)
    found = [(numbers.take(end - start), labels[start:end]) for start, end in cut.counted]
    for axis, counted in [(numbers.take(len(labels)), labels), *found]:
        if axis is not None:
            numbers.bind(axis, counted)
    if _has_one_size(node):
        return _tie_blocks(state, labels, cut)
    missing = sum(axis is None for axis, _ in found)
    may_lack_one = operator_name(node) in {"split", "split_with_sizes", "unsafe_split"} and len(found) > 1
    return missing <= may_lack_one


def _tie_blocks(state: Propagation, labels: Tensor, cut: _Cut) -> bool:
    """Couple the same positions of equal blocks, so that parts keep their fractions; return True if there are any."""
    size = math.gcd(len(labels), *(number for part in cut.counted for number in part))
    if size > 1:
        state.labels.join_rows(labels.reshape(-1, size))
    return size > 1


_NAMED = re.compile(r"\bself\.([A-Za-z_]\w*)")
_SPLITS = re.compile(r"\b(split|narrow|split_with_sizes)\(")


class _NamedNumbers:
    """The integers among a module's attributes that appear in the code of one operator, in order of appearance.

    If the line that uses a number contains an attribute of the same value, the attribute is bound to the channels that
    it counts, like an axis of a parameter, and is updated when they are cut.
    """

    def __init__(self, state: Propagation, graph: Graph, node: fx.Node, *, only_splits: bool = False) -> None:
        """With ``only_splits``, only lines that split a tensor are searched."""
        self._state, self._path = state, graph.layer[node]
        module = state.modules.get(self._path)
        self._attributes = {} if module is None else vars(module)
        lines = str(node.meta.get("stack_trace") or "")
        texts = [lines, *_code_of(module, _NAMED.findall(lines))]
        if only_splits:
            texts = ["\n".join(line for line in text.splitlines() if _SPLITS.search(line)) for text in texts]
        found = map(self._numbers_in, texts)
        self._left = next((numbers for numbers in found if numbers), [])

    def _numbers_in(self, text: str) -> list[tuple[str, int, int]]:
        """Return (attribute, position in it, value) of every number that a text mentions."""
        found = []
        for name in _NAMED.findall(text):
            value = self._attributes.get(name)
            members = value if isinstance(value, (list, tuple)) else [value]
            if all(type(member) is int for member in members):
                found += [(name, place, member) for place, member in enumerate(members)]
        return found

    def take(self, count: int) -> tuple[str, int] | None:
        """Return the next attribute that may count this number; one that has counted others is the last choice."""
        for entry in self._left:
            if entry[2] == count:
                again = [other for other in self._left if other == entry]
                self._left.remove(entry)
                if len(again) == 1:
                    self._left.append(entry)
                return self._axis(entry)
        return None

    def _axis(self, entry: tuple[str, int, int]) -> tuple[str, int]:
        return (f"{self._path}.{entry[0]}" if self._path else entry[0]), entry[1]

    def bind(self, axis: tuple[str, int], labels: Tensor) -> None:
        """Bind an attribute to the channels that it counts."""
        known = self._state.axes.setdefault(axis, labels)
        self._state.labels.join(known, labels)


def follow_sizes(state: Propagation, graph: Graph, node: fx.Node) -> bool:
    """Bind the attributes that size a reshape to the channels that they count; return True if any is new.

    This is an assumption derived from the code (``x.view(b, n, self.heads, self.head_size)``), made only after a trial
    has shown that the size does not adapt by itself; the next trial confirms or rejects it.
    """
    value = state.values.get(node)
    if operator_name(node) not in RESHAPES or not isinstance(value, Channels):
        return False
    before, known = state.labels.roots(value.labels).tolist(), len(state.axes)
    found = _follow_size(state, graph, node, value.dim, value.labels)
    return found and (len(state.axes) > known or before != state.labels.roots(value.labels).tolist())


def follow_created(state: Propagation, graph: Graph, node: fx.Node, from_end: int, labels: Tensor) -> bool:
    """Bind the attributes that size a tensor created in forward, which is constant along a dimension.

    Other tensors of size 1 along that dimension may have been added to it. Return False for any other operation.
    """
    stack, seen = [node], set[fx.Node]()
    while stack:
        node = stack.pop()
        shape = shape_of(node)
        if node in seen or len(shape) < -from_end or shape[from_end] == 1:
            continue
        seen.add(node)
        if operator_name(node) in UNIFORM:
            if not _follow_size(state, graph, node, len(shape) + from_end, labels):
                return False
        elif is_pointwise(node) or operator_name(node) in IDENTITIES:
            stack.extend(tensor_inputs(node))
        else:
            return False
    return True


def _follow_size(state: Propagation, graph: Graph, node: fx.Node, dim: int, labels: Tensor) -> bool:
    """Bind the attribute that determines one of an operator's sizes, if the code contains one."""
    given, numbers = arguments(node), _NamedNumbers(state, graph, node)
    lists = [given[key] for key in ("size", "shape", "sizes") if isinstance(given.get(key), (list, tuple))]
    for place, size in enumerate(lists[0][: dim + 1] if lists else ()):
        axis = numbers.take(size) if isinstance(size, int) and size > 0 else None
        if place == dim and axis is not None:
            numbers.bind(axis, labels)
            return True
    return False


def _code_of(module: object, called: Collection[str]) -> Iterator[str]:
    """Yield the source of methods that the line calls, of forward, then of the other methods."""
    methods = [getattr(module, "forward", None)]
    for cls in type(module).__mro__:
        if cls is nn.Module:
            break
        methods += [value for name, value in vars(cls).items() if inspect.isfunction(value) and name[:2] != "__"]
    named = [method for method in methods[1:] if method is not None and method.__name__ in called]
    for method in named + methods:
        try:
            yield "" if method is None else inspect.getsource(method)
        except (OSError, TypeError):  # defined at a prompt, or not a Python function
            yield ""
