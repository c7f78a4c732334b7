"""Targets and noise of continuous control, by hand and against slow loops; the squashed Gaussian against hand-worked
numbers, an exact reference, and the integral that must be 1.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.ops import (
    bootstrap_target,
    clipped_double_q_target,
    sigma_ladder,
    smoothed_action,
    soft_q_target,
    squashed_gaussian,
    temperature_loss,
)

R, D = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0])
Q = torch.tensor([[10.0, 7.0], [4.0, 9.0]])  # two critics, two samples


def test_targets_by_hand() -> None:
    # 1 + .5 * min(10, 4) ; the second one terminated
    assert clipped_double_q_target(Q, R, D).tolist() == [3.0, 2.0]
    # 1 + .5 * (4 - .1 * -2)
    soft = soft_q_target(Q, torch.tensor([-2.0, 5.0]), torch.tensor(0.1), R, D)
    torch.testing.assert_close(soft, torch.tensor([3.1, 2.0]))
    assert bootstrap_target(Q[0], R, D).tolist() == [6.0, 2.0]
    assert bootstrap_target(torch.tensor([[0.0, 2.0], [1.0, 3.0]]), R, D).tolist() == [[1.0, 2.0], [2.0, 2.0]]


def test_targets_carry_no_gradient() -> None:
    q, log_prob, temperature = Q.clone().requires_grad_(), torch.zeros(2, requires_grad=True), torch.tensor(0.1)
    assert not clipped_double_q_target(q, R, D).requires_grad
    assert not soft_q_target(q, log_prob, temperature.requires_grad_(), R, D).requires_grad
    assert not bootstrap_target(q[0], R, D).requires_grad


@pytest.mark.parametrize("shape", [(2,), (2, 2, 1)])
def test_a_missing_or_extra_axis_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="q_t"):
        clipped_double_q_target(torch.zeros(shape), R, D)


def test_smoothing_by_hand() -> None:
    """Noise is bounded first, the action after."""
    action, noise = torch.tensor([[0.0, 0.9, -0.9]]), torch.tensor([[0.7, 0.3, -0.05]])
    torch.testing.assert_close(smoothed_action(action, noise, 0.5), torch.tensor([[0.5, 1.0, -0.95]]))
    with pytest.raises(ValueError, match="clip"):
        smoothed_action(action, noise, 0.0)


def test_the_ladder_by_hand() -> None:
    np.testing.assert_allclose(sigma_ladder(3, 0.8, 0.2), [0.8, 0.4, 0.2])
    np.testing.assert_allclose(sigma_ladder(1, 0.8, 0.2), [0.4])


@settings(deadline=None)
@given(total=st.integers(2, 300), largest=st.floats(0.01, 2), part=st.floats(0.001, 1))
def test_the_ladder_falls_in_equal_ratios(total: int, largest: float, part: float) -> None:
    ladder = sigma_ladder(total, largest, largest * part)
    assert len(ladder) == total
    np.testing.assert_allclose([ladder[0], ladder[-1]], [largest, largest * part])
    np.testing.assert_allclose(ladder[1:] / ladder[:-1], part ** (1 / (total - 1)))


@pytest.mark.parametrize(("total", "largest", "smallest"), [(0, 1.0, 0.1), (2, 0.1, 1.0), (2, 1.0, 0.0)])
def test_an_impossible_ladder_is_refused(total: int, largest: float, smallest: float) -> None:
    with pytest.raises(ValueError):
        sigma_ladder(total, largest, smallest)


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
