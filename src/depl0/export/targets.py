"""Base class of file formats: how a file is written, and how a separate process without depl0 reads it."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from depl0._util.registry import Registry
from depl0._util.user_code import load_class
from depl0.analysis.recording import quiet
from depl0.equivalence.comparison import FILES
from depl0.errors import Depl0Error, ExportError, InputError
from depl0.export.program import capture
from depl0.host.inputs import ExampleInputs
from depl0.host.network import evaluation_mode, first_line

RANDOM_CASES = 3
OTHER_BATCHES = (1, 3)
"""batch sizes at which a file with a free batch size is verified"""


@dataclass(frozen=True)
class Request:
    """A network, example inputs for it, and the options of the file."""

    module: nn.Module
    example: tuple[Tensor, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)
    opset: int | None = None
    dynamic_batch: bool = False

    def record(self, *, has_opset: bool = False) -> ExportedProgram:
        """Record the network's graph; raise InputError if there is an opset and the format has none."""
        if self.opset is not None and not has_opset:
            raise InputError("opset is only for ONNX files.", hint="leave opset out.")
        return capture(self.module, ExampleInputs(self.example, {}), dynamic_batch=self.dynamic_batch)

    def cases(self) -> list[tuple[Tensor, ...]]:
        """Return random inputs, with several batch sizes if the batch size is free."""
        rng = torch.Generator().manual_seed(0)
        batches: list[int | None] = [None] * RANDOM_CASES
        if self.dynamic_batch:
            batches += OTHER_BATCHES
        return [
            tuple(
                torch.randn(e.shape if batch is None else (batch, *e.shape[1:]), generator=rng).to(e.dtype)
                for e in self.example
            )
            for batch in batches
        ]

    def answers(self, cases: list[tuple[Tensor, ...]]) -> list[list[Tensor]]:
        """Run the network itself in evaluation mode."""
        with evaluation_mode(self.module), torch.no_grad():
            outputs = [pytree.tree_leaves(self.module(*case)) for case in cases]
        tensors = [[leaf for leaf in leaves if isinstance(leaf, Tensor)] for leaves in outputs]
        if not all(bool(leaf.isfinite().all()) for leaves in tensors for leaf in leaves if leaf.is_floating_point()):
            raise ExportError(
                "the network's outputs are not finite, so the file could not be compared with it.",
                hint="its training has diverged: look for NaN in its parameters.",
            )
        return tensors


@contextmanager
def tool_errors(failure: str, hint: str) -> Iterator[None]:
    """Silence the tools of another package, and raise what fails in them as an ExportError."""
    try:
        with quiet():
            yield
    except (Depl0Error, OSError, MemoryError):
        raise
    except Exception as error:  # anything that the tools raise
        raise ExportError(
            f"{failure}: {type(error).__name__}: {first_line(error)}",
            hint=f"{hint}; the original error is chained to this one.",
        ) from error


class Target(abc.ABC):
    """One file format."""

    name: ClassVar[str]
    suffix: ClassVar[str]
    tolerance: ClassVar[float] = FILES
    packages: ClassVar[tuple[str, ...]] = ()
    """Packages that write or run the file, and that depl0 itself does not need"""
    extra: ClassVar[str] = "export"
    """The extra of depl0 that installs them"""
    reader: ClassVar[str]
    """Source of a program without depl0, which :func:`reader_program` makes: its arguments are the file, an .npz of
    inputs, the .npz that it writes, and the number of threads"""

    @abc.abstractmethod
    def encode(self, request: Request) -> bytes | Mapping[str, bytes]:
        """Return the file, or several files with the same stem by their suffixes, which include :attr:`suffix`."""

    def expected(self, request: Request) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the arrays for the separate process, and the expected results: by default inputs and outputs.

        Names are ``CASE.POSITION``.
        """
        cases = request.cases()
        answers = request.answers(cases)
        return numbered(cases), numbered(answers)


def numbered(rows: list[tuple[Tensor, ...]] | list[list[Tensor]]) -> dict[str, Tensor]:
    """Name tensors ``CASE.POSITION``."""
    return {f"{case}.{place}": tensor for case, row in enumerate(rows) for place, tensor in enumerate(row)}


Kind = TypeVar("Kind", bound=type[Target])
TARGETS: Registry[Target] = Registry(
    "format",
    plugins="depl0.exports",
    own=lambda spec: load_class(spec, "format", Target)(),  # type: ignore[type-abstract]
)
"""All registered formats by name. Other packages add formats through the entry point ``depl0.exports``."""


def register(kind: Kind) -> Kind:
    """Return a decorator that registers a format by name."""
    return TARGETS.register(kind.name, lambda it: it())(kind)


def names() -> tuple[str, ...]:
    """List the formats."""
    return TARGETS.names()


def target(name: str) -> Target:
    """Return a format by its name, or a user-defined one: ``path/to/file.py:Name``."""
    return TARGETS.find(name)


def reader_program(opens: str) -> str:
    """Return the source of a program without depl0 that runs a file on all cases.

    Args:
        opens: source that opens the file at the path ``file`` with a number of ``threads``, and defines
            ``network(*arrays)``, which returns the outputs as a list of arrays.
    """
    return _FIRST + opens + _LAST


# Hide modules of this environment that the program could import by mistake.
_FIRST = """import sys
sys.modules["depl0"] = None
file, given, answers = sys.argv[1:4]
threads = int(sys.argv[4])
"""

_LAST = """
def answer():
    import numpy
    inputs, found = numpy.load(given), {}
    for case in sorted({name.split(".")[0] for name in inputs}, key=int):
        names = sorted((name for name in inputs if name.split(".")[0] == case), key=lambda n: int(n.split(".")[1]))
        arrays = [inputs[name] for name in names]
        for place, output in enumerate(network(*arrays)):
            found[f"{case}.{place}"] = numpy.asarray(output)
    numpy.savez(answers, **found)
answer()
"""

# Define ``network`` for a torch module, so that the program can call it with arrays.
CALL_TORCH = """
import torch
from torch.utils import _pytree
torch.set_num_threads(threads)
def network(*arrays):
    with torch.no_grad():
        outputs = _pytree.tree_leaves(module(*map(torch.from_numpy, arrays)))
    return [output.numpy() for output in outputs if isinstance(output, torch.Tensor)]
"""
