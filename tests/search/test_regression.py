"""Moments that are added up batch by batch, and what is fitted from them."""

from __future__ import annotations

import pytest
import torch

from depl0.search.recovery.regression import Moments, damping, fit_depthwise, fit_patches, ridge


@pytest.mark.parametrize("centred", [True, False])
def test_moments_of_rows_far_from_zero_keep_their_precision(centred: bool) -> None:
    """In float32, E[P²] of rows at 1000 ± 1 has an error of the size of their variance."""
    rng = torch.Generator().manual_seed(0)
    hidden = torch.randn(8192, 6, generator=rng, dtype=torch.float64)
    mixing = torch.randn(6, 24, generator=rng, dtype=torch.float64) / 6**0.5
    rows = (hidden @ mixing + 0.05 * torch.randn(8192, 24, generator=rng, dtype=torch.float64) + 1000).float()
    wanted = (rows.double() @ torch.randn(24, 3, generator=rng, dtype=torch.float64)).float()
    moments = Moments(centred)
    for part, target in zip(rows.split(512), wanted.split(512), strict=True):
        moments.add(part, target)
    gram = moments.gram
    precise = rows.double() - (rows.double().mean(0) if centred else 0)
    torch.testing.assert_close(gram, precise.T @ precise / len(precise), rtol=1e-9, atol=1e-6)
    assert float(torch.linalg.eigvalsh(gram)[0]) > 0
    fitted = ridge(gram, moments.cross, torch.zeros(3, 24, dtype=torch.float64), damping(gram, moments.rows))
    error = moments.error(fitted, moments.wanted_mean - fitted @ moments.mean)
    assert float((error / moments.energy).max()) < 0.02


def test_filters_of_scaled_and_shifted_channels_are_fitted_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("depl0.search.recovery.regression.DAMPING", 1e-12)
    rng = torch.Generator().manual_seed(0)
    was, weight = (torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((400, 3, 9), (3, 1, 3, 3)))
    scale, shift = torch.tensor([[2.0], [0.5], [4.0]]).double(), torch.tensor([[1.0], [-2.0], [3.0]]).double()
    is_open = torch.tensor([True, True, False])
    parts = [(part * scale + shift, part) for part in was.split(150)]
    fit = fit_depthwise(weight, parts, is_open, has_constant=True)
    wanted = torch.where(is_open.view(3, 1, 1, 1), weight / scale.view(3, 1, 1, 1), weight)
    torch.testing.assert_close(fit.weight, wanted)
    constant = -(shift / scale)[:, 0] * weight.sum((1, 2, 3)) * is_open
    torch.testing.assert_close(fit.constant, constant)
    assert fit.before > 0.1 and fit.after < 1e-9


def test_a_layer_with_fewer_rows_than_columns_is_not_fitted_to_their_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A classifier reads one row from each image; its error counts on other images."""
    rng = torch.Generator().manual_seed(0)
    weight, common = torch.randn(5, 60, generator=rng).double(), torch.randn(8, 60, generator=rng).double()
    scales, is_open = torch.logspace(0, -1, 60).double(), torch.arange(60) % 2 == 0
    rows, others = (
        torch.randn(n, 60, generator=rng) * scales + torch.randn(n, 8, generator=rng).double() @ common / 8**0.5
        for n in (40, 4000)
    )

    def error_on_others() -> float:
        moments = Moments()
        moments.add(rows, rows @ weight.T)
        fit = fit_patches(weight, moments, is_open, torch.ones(5, dtype=torch.bool))
        return float((others @ (weight - fit.weight).T - fit.constant).square().mean())

    found, closed = error_on_others(), float((others @ (weight * ~is_open).T).square().mean())
    monkeypatch.setattr("depl0.search.recovery.regression.FEW_ROWS", 0.0)
    assert found < 0.5 * error_on_others() and found < 0.5 * closed


def test_many_tokens_are_not_damped_as_few_rows() -> None:
    rows, damped = torch.randn(400, 60, generator=torch.Generator().manual_seed(0)), []
    for count, weights in ((400, torch.ones(400)), (400, None), (40, torch.ones(40))):
        seen = Moments()
        seen.add(rows[:count], rows[:count, :5], weights)
        damped.append(damping(seen.gram, seen.rows, weighted=seen.weighted) / float(seen.gram.diagonal().mean()))
    assert damped[0] == pytest.approx(1e-3) and damped[1] > 0.05 and damped[2] > 0.5
