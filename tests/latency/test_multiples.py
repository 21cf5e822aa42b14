"""Which multiple of channels pays: decided from times, measured once, recorded in a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import depl0
from depl0.errors import InputError, TrainingError
from depl0.latency import multiples
from depl0.latency.multiples import decide, multiples_that_pay
from tests.networks.tiny import Noisy, interrupt, run, tiny_recipe

pytestmark = pytest.mark.usefixtures("remembered_plans")

CPU = torch.device("cpu")
WIDTHS = sorted({w for places in multiples.MISSES.values() for at, off in places for w in (at - off, at, at + off)})


def times(block: int, rounds: int = 10) -> dict[int, list[float]]:
    """Seconds of kernels that work on so many channels at a time."""
    return {width: [float(-(-width // block) * block) ** 2] * rounds for width in WIDTHS}


@pytest.mark.parametrize("block", [1, 8, 16, 32, 64])
def test_the_block_of_the_kernels_pays_and_nothing_else(block: int) -> None:
    found = decide(times(block))
    assert found.paying == ((block,) if block > 1 else ()) and found.is_certain


def test_a_measurement_that_contradicts_itself_gives_what_nearly_all_devices_like() -> None:
    mixed = times(1)
    for width, seconds in times(16).items():
        mixed[width][::2] = seconds[::2]
    found = decide(mixed)
    assert found.paying == () and not found.is_certain  # for 16 yes and no; 8 pays in neither
    for width, seconds in times(8).items():
        mixed[width][::2] = seconds[::2]
    assert decide(mixed).paying == (8,) and not decide(mixed).is_certain


def test_it_is_measured_once_and_a_damaged_cache_is_measured_again(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    calls: list[torch.dtype] = []
    monkeypatch.setattr(multiples, "_times", lambda device, dtype: (calls.append(dtype), times(16))[1])
    first = multiples_that_pay(CPU, torch.float32)
    assert multiples_that_pay(CPU, torch.float32) == first and first.paying == (16,)
    multiples_that_pay(CPU, torch.bfloat16)
    assert calls == [torch.float32, torch.bfloat16]
    for file in (cache / "latency").iterdir():
        kept = json.loads(file.read_text())
        kept["value"]["paying"] = [7]
        file.write_text(json.dumps(kept))
    assert multiples_that_pay(CPU, torch.float32) == first and len(calls) == 3


def test_time_that_is_the_same_for_all_channels_pays_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def interleave(calls: dict[str, Callable[[], object]], *_: object, **__: object) -> dict[str, list[float]]:
        for call in calls.values():
            call()
        return {name: [1.0] * 4 for name in calls}

    monkeypatch.setattr(multiples, "interleave", interleave)
    state = torch.get_rng_state()
    assert multiples_that_pay(CPU, torch.float32).paying == ()
    assert torch.equal(torch.get_rng_state(), state)


def test_onnx_runtime_is_asked_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def interleave(calls: dict[str, Callable[[], object]], *_: object, **__: object) -> dict[str, list[float]]:
        [output] = calls["80"]()  # type: ignore[misc]
        called.append(output.shape)
        return {str(width): seconds for width, seconds in times(8).items()}

    monkeypatch.setattr(multiples, "_times", lambda device, dtype: times(16))
    monkeypatch.setattr(multiples, "interleave", interleave)
    for _ in range(2):  # the second time from the cache
        assert multiples_that_pay(CPU, torch.float32, "onnxruntime").paying == (8,)
        assert multiples_that_pay(CPU, torch.float32).paying == (16,)
    assert called == [(4, 80, 14, 14)]


@pytest.mark.parametrize(("then", "runtime"), [("int8", "onnxruntime"), ("nothing", "pytorch")])
def test_a_run_asks_what_will_run_the_network(
    then: str, runtime: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[object] = []
    monkeypatch.setattr("depl0.app.training.preflight.choose_multiple", lambda *a: (asked.append(a[3]), 2)[1])
    reporter = Noisy()
    run(tiny_recipe(gates__round_to="auto", deploy__then=then), tmp_path / "run", reporter)
    assert asked == [runtime]
    assert any(("ONNX Runtime" in note) == (then == "int8") for note in reporter.notes if "fastest" in note)


def stack(width: int) -> nn.Module:
    layers = [nn.Conv2d(3, width, 1), nn.ReLU(), nn.Conv2d(width, width, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * width, 2))


@pytest.mark.parametrize(("width", "budget", "wanted"), [(128, 0.5, 32), (64, 0.5, 1), (128, 0.06, 1)])
def test_attach_asks_the_device(monkeypatch: pytest.MonkeyPatch, width: int, budget: float, wanted: int) -> None:
    monkeypatch.setattr(multiples, "_times", lambda device, dtype: times(32))
    model, x = stack(width), torch.randn(1, 3, 4, 4)
    gated = depl0.attach(model, x, budget=budget, round_to="auto")
    assert gated.config.round_to == wanted


def test_a_run_decides_once_and_keeps_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[int] = []
    monkeypatch.setattr("depl0.app.training.preflight.choose_multiple", lambda *a: (asked.append(1), 2)[1])
    recipe, first = tiny_recipe(gates__round_to="auto"), Noisy(10, interrupt)
    with pytest.raises(TrainingError, match="interrupted"):
        run(recipe, tmp_path / "run", first)
    assert "channels are rounded to multiples of 2: fastest on this device" in first.notes
    summary = run(recipe, tmp_path / "run", Noisy(), resume=True)
    assert asked == [1] and summary["round_to"] == 2
    assert all(group["open"] % 2 == 0 for group in summary["groups"].values())


def test_anything_else_is_refused() -> None:
    with pytest.raises(InputError, match="round_to must be a whole number of at least 1"):
        depl0.GateConfig(round_to="automatic")  # type: ignore[arg-type]
