"""Value targets and losses against hand-worked numbers and slow references."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.ops import (
    batched_index,
    double_q_target,
    double_quantile_target,
    huber,
    q_learning_target,
    quantile_huber_loss,
    quantile_midpoints,
    td_error,
)

R = torch.tensor([1.0, 2.0])
D = torch.tensor([0.5, 0.0])  # the second one terminated
Q_T = torch.tensor([[10.0, 30.0, 20.0], [7.0, 8.0, 9.0]])


def test_batched_index_takes_one_action_per_sample() -> None:
    torch.testing.assert_close(batched_index(Q_T, torch.tensor([2, 0])), torch.tensor([20.0, 7.0]))
    dist = torch.arange(12.0).reshape(2, 3, 2)
    torch.testing.assert_close(
        batched_index(dist, torch.tensor([1, 2], dtype=torch.int32)), torch.tensor([[2.0, 3.0], [10.0, 11.0]])
    )


def test_q_learning_target_by_hand() -> None:
    # 1 + .5 * 30 ; 2 + 0 * 9
    torch.testing.assert_close(q_learning_target(Q_T, R, D), torch.tensor([16.0, 2.0]))


def test_double_q_target_values_the_selectors_choice() -> None:
    selector = torch.tensor([[0.0, 1.0, 2.0], [5.0, 0.0, 0.0]])
    # The selector prefers action 2, worth 20 and not the maximum 30: 1 + .5 * 20
    torch.testing.assert_close(double_q_target(selector, Q_T, R, D), torch.tensor([11.0, 2.0]))
    torch.testing.assert_close(double_q_target(Q_T, Q_T, R, D), q_learning_target(Q_T, R, D))


def test_td_error_is_target_minus_value() -> None:
    error = td_error(Q_T, torch.tensor([1, 0]), torch.tensor([16.0, 9.0]))
    torch.testing.assert_close(error, torch.tensor([-14.0, 2.0]))


def test_gradient_goes_to_the_prediction_only() -> None:
    q_tm1, q_t, selector = (torch.randn(2, 3, requires_grad=True) for _ in range(3))
    target = double_q_target(selector, q_t, R, D)
    assert not target.requires_grad
    assert not q_learning_target(q_t, R, D).requires_grad
    attached = torch.tensor([1.0, 2.0], requires_grad=True)
    td_error(q_tm1, torch.tensor([1, 0]), attached).sum().backward()
    assert attached.grad is None
    torch.testing.assert_close(q_tm1.grad, torch.tensor([[0.0, -1.0, 0.0], [-1.0, 0.0, 0.0]]))


def test_huber_by_hand() -> None:
    x = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0])
    torch.testing.assert_close(huber(x), torch.tensor([2.5, 0.5, 0.125, 0.0, 0.125, 0.5, 2.5]))
    # delta 2: 2 * (3 - 1) = 4 outside, x^2 / 2 inside
    torch.testing.assert_close(huber(x, 2.0), torch.tensor([4.0, 0.5, 0.125, 0.0, 0.125, 0.5, 4.0]))


@settings(deadline=None, max_examples=50)
@given(x=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8), delta=st.floats(0.01, 100))
def test_huber_equals_torchs_and_clips_its_gradient(x: list[float], delta: float) -> None:
    error = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    loss = huber(error, delta)
    expected = torch.nn.functional.huber_loss(error.detach(), torch.zeros_like(error), reduction="none", delta=delta)
    torch.testing.assert_close(loss.detach(), expected)
    loss.sum().backward()
    torch.testing.assert_close(error.grad, error.detach().clamp(-delta, delta))


def test_quantile_midpoints() -> None:
    torch.testing.assert_close(quantile_midpoints(4), torch.tensor([0.125, 0.375, 0.625, 0.875]))
    torch.testing.assert_close(quantile_midpoints(1), torch.tensor([0.5]))


def slow_quantile_huber_loss(dist: Tensor, tau: Tensor, target: Tensor, kappa: float) -> Tensor:
    """The formula with plain numbers: for each prediction i, the mean over all target atoms j; then the sum."""
    batch, n = dist.shape
    out = torch.zeros(batch, dtype=dist.dtype)
    for b in range(batch):
        for i in range(n):
            level = float(tau[i] if tau.dim() == 1 else tau[b, i])
            mean = 0.0
            for j in range(target.shape[1]):
                u = float(target[b, j] - dist[b, i])
                if kappa == 0:
                    loss = abs(u)
                else:
                    loss = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
                mean += abs(level - (1.0 if u < 0 else 0.0)) * loss / target.shape[1]
            out[b] += mean
    return out


def test_quantile_huber_loss_by_hand() -> None:
    dist, target = torch.tensor([[0.0, 2.0]]), torch.tensor([[0.5, 3.0]])
    # i=0, tau=.25: u = .5 -> .25 * .125 ; u = 3 -> .25 * 2.5 ; mean .328125
    # i=1, tau=.75: u = -1.5 -> .25 * 1.0 ; u = 1 -> .75 * .5 ; mean .3125
    loss = quantile_huber_loss(dist, quantile_midpoints(2), target)
    torch.testing.assert_close(loss, torch.tensor([0.640625]))


@settings(deadline=None, max_examples=60)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5)),
    kappa=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    own_tau=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_quantile_huber_loss_pairs_every_prediction_with_every_target(
    shape: tuple[int, int, int], kappa: float, own_tau: bool, seed: int
) -> None:
    batch, n, m = shape
    rng = np.random.default_rng(seed)
    dist, target = torch.from_numpy(rng.normal(size=(batch, n))), torch.from_numpy(rng.normal(size=(batch, m)))
    tau = torch.from_numpy(rng.random((batch, n) if own_tau else n))
    loss = quantile_huber_loss(dist, tau, target, kappa)
    torch.testing.assert_close(loss, slow_quantile_huber_loss(dist, tau, target, kappa))
    # The target is a set of atoms: their order is of no meaning (it would be under i = j pairing).
    torch.testing.assert_close(quantile_huber_loss(dist, tau, target.flip(1), kappa), loss)


def test_quantile_regression_finds_the_quantiles() -> None:
    atoms = torch.arange(100.0)[None]  # a uniform distribution over 0..99
    dist = torch.full((1, 4), 50.0, requires_grad=True)
    optimizer = torch.optim.SGD([dist], lr=20.0)
    for _ in range(200):
        optimizer.zero_grad()
        quantile_huber_loss(dist, quantile_midpoints(4), atoms, kappa=0.0).sum().backward()
        optimizer.step()
    torch.testing.assert_close(dist.detach(), torch.tensor([[12.5, 37.5, 62.5, 87.5]]), atol=1.5, rtol=0)


def test_quantile_loss_gradient_goes_to_the_prediction_only() -> None:
    dist = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    target = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    tau = torch.rand(3, dtype=torch.float64, requires_grad=True)
    quantile_huber_loss(dist, tau, target).sum().backward()
    assert dist.grad is not None and target.grad is None and tau.grad is None
    assert torch.autograd.gradcheck(lambda x: quantile_huber_loss(x, tau.detach(), target.detach()), (dist,))


def test_quantile_loss_of_a_bfloat16_prediction_and_a_float32_target() -> None:
    dist = torch.tensor([[0.0, 2.0]], dtype=torch.bfloat16, requires_grad=True)
    loss = quantile_huber_loss(dist, quantile_midpoints(2), torch.tensor([[0.5, 3.0]]))
    torch.testing.assert_close(loss.detach(), torch.tensor([0.640625]))
    loss.sum().backward()
    # i=0: -(.25 * .5 + .25 * 1) / 2 ; i=1: -(.25 * -1 + .75 * 1) / 2
    torch.testing.assert_close(dist.grad, torch.tensor([[-0.1875, -0.25]], dtype=torch.bfloat16))


def test_double_quantile_target_by_hand() -> None:
    dist_t = torch.tensor([[[0.0, 2.0], [10.0, 30.0]], [[1.0, 1.0], [5.0, 5.0]]])  # [B, A, N]
    # Sample 0: means 3 and 1, so action 0 although its atoms in dist_t are the smaller ones. Sample 1 terminated.
    selector = torch.tensor([[[3.0], [1.0]], [[0.0], [1.0]]])
    target = double_quantile_target(selector, dist_t.requires_grad_(), R, D)
    # 1 + .5 * [0, 2] ; 2 + 0 * [5, 5]
    torch.testing.assert_close(target, torch.tensor([[1.0, 2.0], [2.0, 2.0]]))
    assert not target.requires_grad


def test_double_quantile_target_with_one_quantile_is_double_q() -> None:
    selector, q_t = torch.randn(2, 3), torch.randn(2, 3)
    target = double_quantile_target(selector[..., None], q_t[..., None], R, D)
    torch.testing.assert_close(target[:, 0], double_q_target(selector, q_t, R, D))


def test_refusals_name_the_shape() -> None:
    a = torch.tensor([1, 0])
    with pytest.raises(ValueError, match=r"q_t must be \[B, A\] \(rank 2\), got shape \(2,\)"):
        q_learning_target(R, R, D)
    with pytest.raises(ValueError, match=r"r_t must be \[B\] \(rank 1\), got shape \(2, 1\)"):
        double_q_target(Q_T, Q_T, R[:, None], D)
    with pytest.raises(ValueError, match=r"q_t must be \[B, A\] with A = 2, got shape \(2, 3\)"):
        double_q_target(Q_T[:, :2], Q_T, R, D)
    with pytest.raises(ValueError, match=r"target must be \[B\] \(rank 1\), got shape \(2, 1\)"):
        td_error(Q_T, a, R[:, None])
    with pytest.raises(TypeError, match=r"a_tm1 must be of an integer dtype, got torch.float32 of shape \(2,\)"):
        td_error(Q_T, a.float(), R)
    with pytest.raises(TypeError, match=r"integer dtype, got torch\.bool"):
        batched_index(Q_T, a.bool())
    with pytest.raises(ValueError, match=r"values must be \[B, A\] .* got shape \(2,\)"):
        batched_index(R, a)
    with pytest.raises(TypeError, match=r"q_t must be floating point, got torch.int64 of shape \(2, 3\)"):
        q_learning_target(Q_T.long(), R, D)
    with pytest.raises(ValueError, match=r"tau_tm1 must be \[N\] with N = 3, got shape \(4,\)"):
        quantile_huber_loss(Q_T, quantile_midpoints(4), Q_T)
    with pytest.raises(ValueError, match=r"target must be \[B, M\] \(rank 2\), got shape \(2,\)"):
        quantile_huber_loss(Q_T, quantile_midpoints(3), R)
    with pytest.raises(ValueError, match=r"dist_t must be \[B, A, N\] \(rank 3\), got shape \(2, 3\)"):
        double_quantile_target(Q_T[..., None], Q_T, R, D)
    with pytest.raises(ValueError, match="delta must be positive, got 0"):
        huber(R, 0.0)
    with pytest.raises(ValueError, match="kappa must be at least 0, got -1"):
        quantile_huber_loss(Q_T, quantile_midpoints(3), Q_T, -1.0)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        quantile_midpoints(0)
