"""Targets and noise of continuous control, by hand and against slow loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.ops import bootstrap_target, clipped_double_q_target, sigma_ladder, smoothed_action, soft_q_target

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
