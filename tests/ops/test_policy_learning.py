"""Policy losses and masks against hand-worked numbers and the papers' formulas."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from shoal import ops
from shoal.ops import clipped_surrogate_loss, explained_variance, masked_mean, policy_gradient_loss, relevance_mask


def log_row(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities], dtype=torch.float64).log()  # [1, B]


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)  # [1, B]


def test_policy_gradient_by_hand() -> None:
    log_prob, advantage = row(-1.0, -2.0).requires_grad_(), row(3.0, -4.0).requires_grad_()
    loss = policy_gradient_loss(log_prob, advantage)
    torch.testing.assert_close(loss.detach(), row(3.0, -8.0))
    loss.sum().backward()
    torch.testing.assert_close(log_prob.grad, row(-3.0, 4.0))
    assert advantage.grad is None


def test_clipped_surrogate_by_hand() -> None:
    # pi .6, target .4, mu .4: r = 1.5, which pays off up to 1.2 only: -min(3, 2.4)
    # the same, and a bad action: -min(-3, -2.4); the pull back is never clipped
    # pi .2, target .4, mu .4: r = .5 of a good action: -min(1, 1.6)
    # mu / target = .8 / .2 = 4, clipped to 2: r = 2 * .4 / .8 = 1: -min(2, 2)
    log_prob = log_row(0.6, 0.6, 0.2, 0.4).requires_grad_()
    target, behaviour = log_row(0.4, 0.4, 0.4, 0.2).requires_grad_(), log_row(0.4, 0.4, 0.4, 0.8).requires_grad_()
    advantage = row(2.0, -2.0, 2.0, 2.0).requires_grad_()
    loss = clipped_surrogate_loss(log_prob, target, behaviour, advantage, epsilon=0.2)
    torch.testing.assert_close(loss.detach(), row(-2.4, 3.0, -1.0, -2.0))
    loss.sum().backward()
    # -r A where not clipped
    torch.testing.assert_close(log_prob.grad, row(0.0, 3.0, -1.0, -2.0))
    assert target.grad is None and behaviour.grad is None and advantage.grad is None


@given(seed=st.integers(0, 2**31), epsilon=st.floats(0.05, 0.9), worker_clip=st.floats(1.0, 5.0))
def test_clipped_surrogate_equals_the_papers_formula(seed: int, epsilon: float, worker_clip: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    pi, target, mu = 0.01 + torch.rand(3, 4, 2, dtype=torch.float64, generator=generator)
    advantage = torch.randn(4, 2, dtype=torch.float64, generator=generator)
    r = (mu / target).clamp(max=worker_clip) * pi / mu
    expected = -torch.minimum(r * advantage, r.clamp(1 - epsilon, 1 + epsilon) * advantage)
    loss = clipped_surrogate_loss(pi.log(), target.log(), mu.log(), advantage, epsilon=epsilon, worker_clip=worker_clip)
    torch.testing.assert_close(loss, expected)


def test_clipped_surrogate_of_an_absurd_ratio_is_finite() -> None:
    log_prob = row(0.0, 0.0, -1e4).float().requires_grad_()
    far = row(-1e4, -1e4, 0.0).float()
    loss = clipped_surrogate_loss(log_prob, far, far, row(0.0, -1.0, 1.0).float(), epsilon=0.2)
    loss.sum().backward()
    assert log_prob.grad is not None
    assert bool(torch.isfinite(loss).all()) and bool(torch.isfinite(log_prob.grad).all())
    assert float(loss[0, 0].detach()) == 0.0


def test_relevance_is_below_the_threshold() -> None:
    mask = relevance_mask(torch.tensor([[0.0, 0.1, 0.3], [0.2, math.nan, math.inf]], requires_grad=True), 0.2)
    assert mask.tolist() == [[True, True, False], [False, False, False]]


def test_masked_mean_by_hand() -> None:
    x, mask = torch.tensor([[1.0, 2.0], [6.0, math.nan]], requires_grad=True), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    for kind in (mask, mask.bool()):
        x.grad = None
        mean = masked_mean(x, kind)
        mean.backward()
        assert mean.shape == () and float(mean.detach()) == 3.5
        torch.testing.assert_close(x.grad, torch.tensor([[0.5, 0.0], [0.5, 0.0]]))
    assert float(masked_mean(x.detach(), torch.zeros_like(mask))) == 0.0


def test_refusals() -> None:
    x, y = torch.zeros(3, 2), torch.zeros(3, 1)
    with pytest.raises(ValueError, match=r"advantage must be \[T, B\] with B = 2, got shape \(3, 1\)"):
        policy_gradient_loss(x, y)
    with pytest.raises(ValueError, match=r"behaviour_log_prob must be \[T, B\] with B = 2"):
        clipped_surrogate_loss(x, x, y, x, epsilon=0.2)
    with pytest.raises(ValueError, match=r"epsilon must be in \(0, 1\), got 0"):
        clipped_surrogate_loss(x, x, x, x, epsilon=0.0)
    with pytest.raises(ValueError, match=r"worker_clip must be at least 1, got 0\.5"):
        clipped_surrogate_loss(x, x, x, x, epsilon=0.2, worker_clip=0.5)
    with pytest.raises(ValueError, match="threshold must be positive, got 0"):
        relevance_mask(x, 0.0)
    with pytest.raises(ValueError, match=r"mask must be of x's shape \(3, 2\), got shape \(3, 1\)"):
        masked_mean(x, y)
    with pytest.raises(TypeError, match=r"mask must be floating point, got torch.int64"):
        masked_mean(x, x.long())


def test_normalized_by_hand() -> None:
    """Mean of 1, 3, 5 is 3; the mean square of -2, 0, 2 is 8/3."""
    x, mask = torch.tensor([[1.0, 3.0], [5.0, 100.0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    unit = (8 / 3) ** 0.5
    assert ops.normalized(x, mask).flatten().tolist() == pytest.approx([-2 / unit, 0.0, 2 / unit, 0.0], abs=1e-5)
    assert not ops.normalized(torch.ones(2, 2), torch.ones(2, 2)).any()
    assert ops.normalized(x, mask, least=4.0).flatten().tolist() == pytest.approx([-0.5, 0.0, 0.5, 0.0], abs=1e-5)
    assert torch.equal(ops.normalized(x, mask, least=1.0), ops.normalized(x, mask)), "a larger deviation stays"
    parts = ops.normalized(x, mask, lambda sums: sums, least=4.0)
    assert parts.flatten().tolist() == pytest.approx([-0.5, 0.0, 0.5, 0.0], abs=1e-5)


def test_explained_variance_by_hand() -> None:
    targets, mask = row(1.0, 3.0, 5.0, 1e9), row(1.0, 1.0, 1.0, 0.0)
    assert float(explained_variance(targets, row(1.0, 3.0, 5.0, 0.0) + 7.0, mask)) == 1.0, "a constant off"
    assert float(explained_variance(targets, row(2.0, 2.0, 2.0, 0.0), mask)) == 0.0, "a constant"
    assert float(explained_variance(targets, row(0.0, 0.0, 3.0, 0.0), mask)) == pytest.approx(0.75)
    assert float(explained_variance(targets, -100 * targets, mask)) == -1.0, "at least -1"
    assert float(explained_variance(targets, targets, 0 * mask)) == 1.0, "nothing to explain"
