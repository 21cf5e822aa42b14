"""A fixed input that can be serialised, and a network's outputs on it, to verify the network after loading."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from depl0._util.random import isolated_random
from depl0.equivalence.comparison import relative_error
from depl0.host.copies import isolated_deepcopy
from depl0.host.inputs import ExampleInputs, output_tensors

_MOST_NUMBERS = 2**25
_MOST_INTEGERS = 4096
_VALUES = 32
_INTEGERS = {str(dtype).removeprefix("torch."): dtype for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool)}


def describe(example: ExampleInputs) -> dict[str, Any] | None:
    """Return the form of an example as plain lists and dicts, with two rows; None if it cannot be serialised."""
    rows = [tensor.shape[0] for tensor in example.tensors() if tensor.dim() > 0]
    if len(set(rows)) == 1 and rows[0] > 2:
        example = example.map_tensors(lambda t: t[:2] if t.dim() > 0 else t)
    try:
        args, kwargs = [_written(arg) for arg in example.args], {k: _written(v) for k, v in example.kwargs.items()}
    except TypeError:
        return None
    return {"args": args, "kwargs": kwargs}


def _written(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _written_tensor(value)
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return {type(value).__name__: [_written(item) for item in value]}
    if type(value) is dict and all(isinstance(key, str) for key in value):
        return {"dict": {key: _written(item) for key, item in value.items()}}
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return {"value": value}
    raise TypeError(type(value).__name__)


def _written_tensor(tensor: Tensor) -> Any:
    if tensor.is_floating_point() and tensor.numel() <= _MOST_NUMBERS:
        return {"numbers": list(tensor.shape)}
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _INTEGERS or tensor.numel() > _MOST_INTEGERS:
        raise TypeError(name)
    return {"integers": list(tensor.shape), "dtype": name, "values": [int(v) for v in tensor.flatten().tolist()]}


def check_description(probe: Any) -> Any:
    """Raise ValueError if ``probe`` is not a valid description of inputs."""
    if probe is not None:
        _rebuilt(probe, torch.device("meta"), torch.float32)
    return probe


def _rebuilt(probe: Any, device: torch.device, dtype: torch.dtype) -> ExampleInputs:
    """Return the inputs of a description: the same numbers on every machine."""
    if not isinstance(probe, dict) or set(probe) != {"args", "kwargs"}:
        raise ValueError("the description of inputs has no arguments")
    args = tuple(_read(arg, device, dtype) for arg in probe["args"])
    return ExampleInputs(args, {str(key): _read(value, device, dtype) for key, value in probe["kwargs"].items()})


def _read(written: Any, device: torch.device, dtype: torch.dtype) -> Any:
    if "numbers" in written:
        shape = _shape(written["numbers"], _MOST_NUMBERS)
        count = math.prod(shape)
        steps = torch.arange(count, device=device, dtype=torch.float64)
        return (1.5 * torch.sin(steps * 12.9898)).reshape(shape).to(dtype)
    if "integers" in written:
        shape = _shape(written["integers"], _MOST_INTEGERS)
        values = torch.tensor([int(v) for v in written["values"]], dtype=_INTEGERS[written["dtype"]])
        return values.reshape(shape).to(device)
    if "dict" in written:
        return {str(key): _read(item, device, dtype) for key, item in written["dict"].items()}
    for kind in (list, tuple):
        if kind.__name__ in written:
            return kind(_read(item, device, dtype) for item in written[kind.__name__])
    return written["value"]


def _shape(sizes: Any, most: int) -> tuple[int, ...]:
    if any(isinstance(size, bool) or not isinstance(size, int) or size < 0 for size in sizes):
        raise ValueError("sizes must be integers")
    if math.prod(sizes) > most or len(sizes) > 8:
        raise ValueError("a tensor too large to try")
    return tuple(sizes)


def outputs_on(model: nn.Module, probe: Any) -> list[dict[str, Any]]:
    """Run a copy of a network, in evaluation mode, on the inputs of a description, and sample its outputs."""
    tensors = [*model.parameters(), *model.buffers()]
    floats = [tensor for tensor in tensors if tensor.is_floating_point()]
    device, dtype = (floats[0].device, floats[0].dtype) if floats else (torch.device("cpu"), torch.float32)
    inputs = _rebuilt(probe, device, dtype)
    with torch.no_grad(), isolated_random():
        outputs = inputs.call(isolated_deepcopy(model).eval())
    return [_sample(tensor) for tensor in output_tensors(outputs)]


def _sample(tensor: Tensor) -> dict[str, Any]:
    flat = tensor.detach().flatten().to("cpu")
    flat = flat.real.double() if flat.is_complex() else flat.double()
    places = torch.linspace(0, max(len(flat) - 1, 0), min(_VALUES, len(flat))).long()
    values = [float(f"{value:.6g}") if math.isfinite(value) else None for value in flat[places].tolist()]
    return {"shape": list(tensor.shape), "values": values}


def probe_error(wanted: list[dict[str, Any]], found: list[dict[str, Any]]) -> float:
    """Return the difference of two samples of outputs, relative to the spread of the first."""
    if len(wanted) != len(found) or any(list(a["shape"]) != b["shape"] for a, b in zip(wanted, found, strict=True)):
        return math.inf
    return max((_error(_numbers(a), _numbers(b)) for a, b in zip(wanted, found, strict=True)), default=0.0)


def _numbers(sample: dict[str, Any]) -> Tensor:
    return torch.tensor([math.nan if value is None else value for value in sample["values"]], dtype=torch.float64)


def _error(wanted: Tensor, found: Tensor) -> float:
    finite = wanted[wanted.isfinite()]
    if len(finite) == 0:
        return relative_error(wanted, found)
    spread, largest = float(finite.max() - finite.min()), float(finite.abs().max())
    return relative_error(wanted, found, max(spread, 0.01 * largest, 1e-12))
