"""The categorical projection by hand, against a slow loop, and by what it must keep."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.ops import categorical_loss, categorical_projection, support

ATOMS = support(-1.0, 1.0, 3)


def test_projection_by_hand() -> None:
    """Atoms -1, 0, 1. All of 0.25 goes a quarter to 1 and three quarters to 0; 5 goes to the end; -0.5 is halved."""
    z_p = torch.tensor([[0.25, 5.0, -0.5]])
    found = categorical_projection(ATOMS, z_p, torch.tensor([[0.4, 0.4, 0.2]]))
    torch.testing.assert_close(found, torch.tensor([[0.1, 0.3 + 0.1, 0.1 + 0.4]]))


def test_the_last_atom_keeps_its_own() -> None:
    probs = torch.tensor([[0.2, 0.3, 0.5]])
    torch.testing.assert_close(categorical_projection(ATOMS, ATOMS[None], probs), probs)


def slow_projection(z_q: Tensor, z_p: Tensor, probs: Tensor) -> Tensor:
    """Algorithm 1 of the paper, atom by atom."""
    low, high, n = float(z_q[0]), float(z_q[-1]), len(z_q)
    width = (high - low) / (n - 1)
    found = torch.zeros(len(z_p), n, dtype=torch.float64)
    for b in range(len(z_p)):
        for j in range(z_p.shape[1]):
            place = (min(max(float(z_p[b, j]), low), high) - low) / width
            lower, upper = int(place // 1), min(int(place // 1) + 1, n - 1)
            found[b, lower] += float(probs[b, j]) * (1 - (place - lower))
            found[b, upper] += float(probs[b, j]) * (place - lower)
    return found


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), atoms=st.integers(2, 51), discount=st.floats(0, 1), reward=st.floats(-3, 3))
def test_projection_equals_the_slow_one(seed: int, atoms: int, discount: float, reward: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    z_q = torch.linspace(-2.0, 3.0, atoms, dtype=torch.float64)  # float32's are not quite evenly spaced
    probs = torch.rand(2, atoms, generator=generator, dtype=torch.float64)
    probs /= probs.sum(dim=1, keepdim=True)
    z_p = reward + discount * z_q.expand(2, -1)
    found = categorical_projection(z_q, z_p, probs)
    torch.testing.assert_close(found, slow_projection(z_q, z_p, probs), atol=1e-9, rtol=0)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(2, dtype=torch.float64))
    inside = (z_p >= -2.0).all() and (z_p <= 3.0).all()
    if inside:  # nothing fell over an end: the mean is kept
        torch.testing.assert_close((found * z_q).sum(dim=1), (probs * z_p).sum(dim=1))


def test_loss_by_hand() -> None:
    """Even logits say log 3 whatever the target; the gradient is p - target."""
    logits = torch.zeros(1, 3, requires_grad=True)
    loss = categorical_loss(logits, torch.tensor([[0.0, 1.0, 0.0]]))
    assert loss.item() == pytest.approx(1.0986123)
    loss.sum().backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[1 / 3, -2 / 3, 1 / 3]]))


@pytest.mark.parametrize(("low", "high", "atoms"), [(1.0, 1.0, 3), (2.0, 1.0, 3), (0.0, 1.0, 1)])
def test_an_impossible_support_is_refused(low: float, high: float, atoms: int) -> None:
    with pytest.raises(ValueError, match="support"):
        support(low, high, atoms)
