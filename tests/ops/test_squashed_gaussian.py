"""The squashed Gaussian against hand-worked numbers, an exact reference, and the integral that must be 1."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.ops import squashed_gaussian, temperature_loss


def test_a_sample_by_hand() -> None:
    """mean 0, std 1, noise 0: a = 0, the slope of tanh is 1, so the density is the Gaussian's, 1 / sqrt(2 pi)."""
    sample = squashed_gaussian(torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1, 1))
    assert sample.action.item() == 0.0
    assert sample.log_prob.item() == pytest.approx(-0.5 * math.log(2 * math.pi))


def test_dimensions_multiply() -> None:
    """u = 0.5 and u = -1 with std 2: log N = -n^2/2 - log 2 - log sqrt(2 pi), less log(1 - tanh^2)."""
    mean, noise = torch.tensor([[0.5, 1.0]]), torch.tensor([[0.0, -1.0]])
    sample = squashed_gaussian(mean, torch.full((1, 2), math.log(2.0)), noise)
    expected = sum(
        -0.5 * n * n - math.log(2.0) - 0.5 * math.log(2 * math.pi) - math.log(1 - math.tanh(u) ** 2)
        for u, n in ((0.5, 0.0), (-1.0, -1.0))
    )
    torch.testing.assert_close(sample.action, torch.tanh(torch.tensor([[0.5, -1.0]])))
    assert sample.log_prob.item() == pytest.approx(expected, rel=1e-6)


@settings(deadline=None, max_examples=60)
@given(mean=st.floats(-60, 60), log_std=st.floats(-5, 2), noise=st.floats(-4, 4))
def test_it_is_right_at_the_bounds_too(mean: float, log_std: float, noise: float) -> None:
    """Against the exact log(1 - tanh(u)^2) = log 4 - 2|u| - 2 log(1 + exp(-2|u|)), in double precision."""
    u = mean + math.exp(log_std) * noise
    exact = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)
    exact -= math.log(4.0) - 2 * abs(u) - 2 * math.log1p(math.exp(-2 * abs(u)))
    one = (torch.tensor([[value]]) for value in (mean, log_std, noise))
    sample = squashed_gaussian(*one)
    assert sample.log_prob.item() == pytest.approx(exact, rel=1e-5, abs=1e-4)
    assert abs(sample.action.item()) <= 1.0


def test_its_gradient_survives_saturation() -> None:
    """At u = 20 tanh is 1 in float32; the density still falls as the mean moves inwards: d/du of 2u."""
    mean = torch.tensor([[20.0]], requires_grad=True)
    squashed_gaussian(mean, torch.zeros(1, 1), torch.zeros(1, 1)).log_prob.sum().backward()
    assert mean.grad is not None and mean.grad.item() == pytest.approx(2.0)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (1.5, 0.5), (-3.0, 1.0), (0.3, 2.0)])
def test_the_density_integrates_to_one(mean: float, std: float) -> None:
    """Over the action, with the step from one sample's action to the next."""
    noise = torch.linspace(-9, 9, 20_001, dtype=torch.float64)[:, None]
    sample = squashed_gaussian(torch.full_like(noise, mean), torch.full_like(noise, math.log(std)), noise)
    action, density = sample.action[:, 0].numpy(), sample.log_prob.exp().numpy()
    kept = np.isfinite(density)
    assert float(np.trapezoid(density[kept], action[kept])) == pytest.approx(1.0, abs=1e-3)


def test_the_temperature_rises_while_entropy_is_missing() -> None:
    """Entropy 1 (log-prob -1) is above the target -2: mean(log_prob + target) = -3, the gradient +3 lowers it."""
    log_temperature = torch.zeros((), requires_grad=True)
    loss = temperature_loss(log_temperature, torch.tensor([-1.0, -1.0]), -2.0)
    loss.backward()
    assert log_temperature.grad is not None and log_temperature.grad.item() == 3.0
    lacking = temperature_loss(torch.ones(()), torch.tensor([5.0]), -2.0)
    assert lacking.item() == -3.0  # minimising it raises the temperature


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="log_std"):
        squashed_gaussian(torch.zeros(2, 3), torch.zeros(3), torch.zeros(2, 3))
    with pytest.raises(ValueError, match="log_prob"):
        temperature_loss(torch.zeros(()), torch.zeros(2, 1), 1.0)
