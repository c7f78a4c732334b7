"""Importance weights and sequence priorities against hand-worked numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.ops import importance_weights


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_importance_weights_by_hand() -> None:
    # N P = .5, 2, 8: at beta 1 -> 2, .5, .125, over 2 ; at beta .5 -> sqrt
    probabilities = f64(0.05, 0.2, 0.8)
    weights = importance_weights(probabilities, size=10, beta=1.0)
    assert weights.dtype == torch.float32
    torch.testing.assert_close(weights, torch.tensor([1.0, 0.25, 0.0625]))
    torch.testing.assert_close(importance_weights(probabilities, 10, 0.5), torch.tensor([1.0, 0.5, 0.25]))
    torch.testing.assert_close(importance_weights(probabilities, 10, 0.0), torch.ones(3))


def test_every_draw_may_have_a_size_of_its_own() -> None:
    # N P = 1, 1, 2, .5
    probabilities, size = f64(0.1, 0.02, 0.2, 0.01), torch.tensor([10, 50, 10, 50])
    torch.testing.assert_close(importance_weights(probabilities, size, 1.0), torch.tensor([0.5, 0.5, 0.25, 1.0]))
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        importance_weights(f64(0.5, 0.5), torch.tensor([2, 0]), 0.4)


@settings(deadline=None, max_examples=60)
@given(
    p=st.lists(st.floats(1e-12, 1.0), min_size=1, max_size=20),
    size=st.integers(1, 10**7),
    beta=st.floats(0.0, 1.0),
)
def test_importance_weights_are_relative_to_the_rarest(p: list[float], size: int, beta: float) -> None:
    weights = importance_weights(f64(*p), size, beta)
    expected = [math.pow(min(p) / x, beta) for x in p]
    torch.testing.assert_close(weights, torch.tensor(expected), rtol=1e-5, atol=1e-12)
    assert float(weights.max()) == 1.0


def test_weights_undo_the_bias_of_prioritized_sampling() -> None:
    # With all the weight (beta 1), sum_i P_i w_i x_i is proportional to the uniform mean of x.
    probabilities, x = f64(0.1, 0.2, 0.3, 0.4), f64(4.0, -1.0, 2.5, 3.0)
    weights = importance_weights(probabilities, size=4, beta=1.0).double()
    mean = (probabilities * weights * x).sum() / (probabilities * weights).sum()
    torch.testing.assert_close(mean, x.mean(), rtol=1e-6, atol=0)


def test_importance_weights_refusals() -> None:
    with pytest.raises(ValueError, match=r"probabilities must be \[B\] \(rank 1\), got shape \(1, 2\)"):
        importance_weights(f64(0.5, 0.5)[None], 2, 0.4)
    with pytest.raises(TypeError, match=r"must be torch.float64, got torch.float32 of shape \(1,\)"):
        importance_weights(torch.tensor([0.5]), 2, 0.4)
    with pytest.raises(ValueError, match="positive"):
        importance_weights(f64(0.5, 0.0), 2, 0.4)
    with pytest.raises(ValueError, match="positive"):
        importance_weights(f64(0.5, math.nan), 2, 0.4)
    with pytest.raises(ValueError, match=r"at least one, got shape \(0,\)"):
        importance_weights(f64(), 2, 0.4)
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        importance_weights(f64(0.5), 0, 0.4)
    with pytest.raises(ValueError, match="beta must be in"):
        importance_weights(f64(0.5), 1, 1.5)
