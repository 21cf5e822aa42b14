"""Data that a search or ``depl0.prune`` looks at: what does not fit is refused in words, at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import depl0
import depl0.search.calibration as calibration
from depl0.errors import InputError

pytestmark = pytest.mark.usefixtures("remembered_plans")

NAN, INF = float("nan"), float("inf")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))


def inputs(rows: int = 16) -> Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows))


WRONG: dict[str, tuple[Any, str]] = {
    "none": (None, "the calibration data hold no batches"),
    "nothing": ([], "the calibration data hold no batches"),
    "an empty batch": ([inputs(), inputs(0)], "batch 2 of the calibration data is an empty batch"),
    "other columns": (
        [inputs(), torch.randn(16, 3)],
        r"not run on batch 2 of the calibration data \(\(16, 3\)\).* at 0",
    ),
    "numbers": ([torch.tensor(1.0)], r"not run on batch 1 of the calibration data \(\(\)\)"),
    "other names": ([{"x": inputs()}], "unexpected keyword argument 'x'"),
    "whole numbers": ([torch.ones(16, 4).long()], "not run on batch 1 of the calibration data"),
    "half precision": ([inputs().half()], "not run on batch 1 of the calibration data"),
    "not a number": ([inputs(), inputs() * NAN], "batch 2 of the calibration data holds NaN"),
    "infinite": ([inputs() * INF], "(holds NaN|computes NaN or infinite values)"),
    "infinitely large": ([inputs().abs() + 1e38 * 10], "computes NaN or infinite values from the calibration data"),
    "no tensor": (["text"], "batch 1 of the calibration data must be a tensor, a tuple of arguments or a dict"),
}


@pytest.mark.parametrize("name", WRONG)
def test_data_that_do_not_fit_are_refused_in_words(name: str) -> None:
    data, words = WRONG[name]
    with pytest.raises(InputError, match=words):
        depl0.prune(network(), inputs(1), data=data, recover=None)


class FixedBatch(nn.Module):
    """Its code holds the size of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = network()

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layers(x.view(16, 4))
        return scores


def test_a_network_for_one_size_of_a_batch_is_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match=r"does not run on batch 1 .*: shape '\[16, 4\]' is invalid"):
        depl0.prune(FixedBatch(), inputs(), data=[inputs()], recover=None)


def test_a_network_that_is_not_of_numbers_is_refused() -> None:
    for value, words in ((NAN, r"2\.weight holds NaN\."), (INF, r"2\.weight holds infinite values\.")):
        model: Any = network()
        model[2].weight.data[0, 0] = value
        with pytest.raises(InputError, match=words):
            depl0.attach(model, inputs(1))
    with pytest.raises(InputError, match="example_inputs is an empty batch"):
        depl0.attach(network(), inputs(0))


class Stream(IterableDataset[Tensor]):
    """Can be read once."""

    def __init__(self, count: int) -> None:
        self._left = iter([inputs()] * count)

    def __iter__(self) -> Iterator[Tensor]:
        yield from self._left


class Plain:
    """Gives the same iterator each time."""

    def __init__(self, count: int) -> None:
        self._left = iter([inputs()] * count)

    def __iter__(self) -> Iterator[Tensor]:
        return self._left


@pytest.mark.parametrize("make", [Stream, Plain, lambda n: DataLoader(Stream(n), batch_size=None)])
def test_what_can_be_read_once_is_kept_and_what_is_empty_is_refused_at_the_start(make: Any) -> None:
    gated = depl0.attach(network(), inputs(1), budget=0.5)
    with pytest.raises(InputError, match="the calibration data hold no batches"):
        depl0.Search(gated, 2, calibrate=make(0), cut="never")
    search = depl0.Search(gated, 2, calibrate=make(3), cut="never", compensate=True)
    search.step(), search.step()
    assert depl0.info(search.finish()).macs_left <= 0.5


LOSS = nn.functional.cross_entropy


def test_data_sorted_by_class_are_drawn_from_all_over() -> None:
    classes = torch.arange(4000) // 400
    data: Any = TensorDataset(inputs(4000) + classes[:, None], classes)
    list_of_batches = [data[start : start + 8] for start in range(0, 4000, 8)]
    gated = depl0.attach(network(), inputs(1))
    for batches in (DataLoader(data, batch_size=8), list_of_batches):
        taken = calibration.Calibration.of(batches, nn.functional.cross_entropy, gated)
        assert taken is not None
        assert 1024 <= sum(map(len, taken.inputs())) < 1100
        rows = {tuple(row.tolist()) for batch in taken.inputs() for row in batch}
        found = torch.tensor([tuple(row.tolist()) in rows for row in data.tensors[0]])
        counts = torch.bincount(classes[found])
        assert int(counts.min()) > 70
    shuffled = DataLoader(data, batch_size=8, shuffle=True)
    assert calibration.independent_loader(shuffled).sampler is shuffled.sampler


@pytest.mark.parametrize("size", [1, 300])
def test_examples_are_counted_not_batches(size: int) -> None:
    def stream() -> Iterator[Tensor]:
        for _ in range(2000 // size + 40):
            yield inputs(size)

    taken = calibration.Calibration.of(stream(), None, depl0.attach(network(), inputs(1)))
    assert taken is not None and 1024 <= sum(map(len, taken.inputs())) < 1024 + size


class Halves(nn.Module):
    """Compares the left half of an image with the right one, or its brightness with a constant."""

    def __init__(self, *, sides: bool) -> None:
        super().__init__()
        self.sides = sides
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor) -> Tensor:
        left, right = images[..., :8].mean((1, 2, 3)), images[..., 8:].mean((1, 2, 3))
        scores = [left, right] if self.sides else [(left + right).abs(), torch.full_like(left, 0.5)]
        return self.scale * torch.stack(scores, 1)


def test_images_are_only_augmented_if_the_network_gives_them_the_same_answers() -> None:
    brightness = torch.randn(64, 1, 1, 1, generator=torch.Generator().manual_seed(0))
    images = brightness + torch.randn(64, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    assert calibration.is_invariant(Halves(sides=False), images)
    assert not calibration.is_invariant(Halves(sides=True), images)
