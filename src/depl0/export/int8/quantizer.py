"""What all quantisers have in common: a network is encoded with some layers in int8, run, and checked as a file."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, TypeAlias

from torch import Tensor
from torch.utils import _pytree as pytree

from depl0.analysis.recording import quiet
from depl0.equivalence.comparison import INT8_FILES
from depl0.errors import Depl0Error, ExportError, InputError
from depl0.export.targets import Request, Target, numbered
from depl0.host.network import first_line

Run: TypeAlias = Callable[..., Any]
"""takes inputs as the network's forward does, and returns what it returns, on the CPU"""

IMAGES = 512
"""images that ranges of activations are measured on"""


class Quantizer(abc.ABC):
    """A network whose ranges have been measured, ready to be written in int8."""

    layers: tuple[str, ...]
    """layers that can be written in int8, in order of execution"""
    weight_bits: int = 8
    """bits of int8 weights that are used"""

    @abc.abstractmethod
    def encode(self, in_float: Collection[str] = ()) -> bytes:
        """Return the file, with all layers but these in int8."""

    @abc.abstractmethod
    def describe(self, data: bytes, metadata: Mapping[str, str]) -> bytes:
        """Write metadata into a file that was encoded."""

    @abc.abstractmethod
    def in_float(self) -> Run:
        """Return the network before quantisation, as a file of the same format runs it."""

    @abc.abstractmethod
    def open(self, data: bytes) -> Run:
        """Return a file that was encoded, as something to call."""


class Int8File(Target):
    """A file that is quantised already; another process must get from it what this one gets.

    Args:
        data: the file.
        run: what it gives here.
    """

    tolerance: ClassVar[float] = INT8_FILES

    def __init__(self, data: bytes, run: Run) -> None:
        self._data, self._run = data, run

    def encode(self, request: Request) -> bytes:
        """Return the file."""
        return self._data

    def expected(self, request: Request) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Expect what the file gives here."""
        cases = request.cases()
        answers = [[leaf for leaf in pytree.tree_leaves(self._run(*c)) if isinstance(leaf, Tensor)] for c in cases]
        return numbered(cases), numbered(answers)


def calibration_inputs(batches: Iterable[Any], images: int = IMAGES) -> list[tuple[Tensor, ...]]:
    """Return the first batches that hold so many images, each as the tensors that a network is called with.

    A batch is a tensor, or a tuple or list of the network's arguments; the last one is cut.
    """
    if isinstance(batches, Tensor):
        batches = [batches]
    if not isinstance(batches, Iterable) or isinstance(batches, (dict, str)):
        raise InputError(
            f"calibration must give batches of inputs, got {type(batches).__name__} instead.",
            hint="pass a list of tensors, each (batch, channels, height, width).",
        )
    found, left = [], images
    for batch in _inputs(batches):
        found.append(tuple(tensor[:left] for tensor in batch))
        left -= len(batch[0])
        if left <= 0:
            break
    if not found:
        raise InputError(
            "int8 needs images to measure the ranges of activations on, and there are none.",
            hint="pass some hundred training images, normalised as in training.",
        )
    return found


def _inputs(batches: Iterable[Any]) -> Iterator[tuple[Tensor, ...]]:
    for number, batch in enumerate(batches):
        tensors = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
        if not tensors or not all(isinstance(tensor, Tensor) and tensor.dim() > 0 for tensor in tensors):
            raise InputError(
                f"batch {number} of the calibration images must be a tensor or a tuple of tensors, got "
                f"{type(batch).__name__} instead.",
                hint="leave labels out: batches are what the network is called with.",
            )
        if not all(bool(tensor.isfinite().all()) for tensor in tensors):
            raise InputError(f"batch {number} of the calibration images holds values that are not finite.")
        if len(tensors[0]) > 0:
            yield tuple(tensor.detach().cpu() for tensor in tensors)


def of_size(inputs: tuple[Tensor, ...], size: int | None) -> Iterator[tuple[tuple[Tensor, ...], int]]:
    """Cut a batch to the size that a file takes; the last part is filled up, and how many rows count is said."""
    count = len(inputs[0])
    for start in range(0, count, size or count):
        part = tuple(tensor[start : start + (size or count)] for tensor in inputs)
        rows = len(part[0])
        if size is not None and rows < size:
            part = tuple(tensor[[*range(rows), *[rows - 1] * (size - rows)]] for tensor in part)
        yield part, rows


def unflatten(leaves: Iterable[Tensor], like: Any) -> Any:
    """Give a file's outputs the structure of the network's own."""
    every, structure = pytree.tree_flatten(like)
    tensors = iter(leaves)
    return pytree.tree_unflatten([next(tensors) if isinstance(leaf, Tensor) else leaf for leaf in every], structure)


@contextmanager
def explained(tool: str, hint: str) -> Iterator[None]:
    """Keep a quantiser's own words from the terminal, and say what failed in ours."""
    try:
        with quiet():
            yield
    except (Depl0Error, OSError, MemoryError):
        raise
    except Exception as error:  # whatever the tool and what it uses raise
        raise ExportError(
            f"{tool} cannot quantise the network: {type(error).__name__}: {first_line(error)}",
            hint=f"{hint}; the original error is chained to this one.",
        ) from error
