"""n-step returns against hand-worked numbers and a slow double loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.ops import n_step_return


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]  # [T, 1]


def slow_n_step_return(r: Tensor, d: Tensor, v: Tensor, n: int, cut: Tensor) -> Tensor:
    """Close to the notation: add rewards one by one; after n, at a cut or at the end, bootstrap and stop."""
    steps, batch = r.shape
    out = torch.zeros_like(r)
    for b in range(batch):
        for k in range(steps):
            product = 1.0
            for i in range(k, steps):
                out[k, b] += product * r[i, b]
                product *= float(d[i, b])
                if i - k + 1 == n or bool(cut[i, b]) or i == steps - 1:
                    out[k, b] += product * v[i, b]
                    break
    return out


def test_hand_worked_numbers_with_a_shorter_tail() -> None:
    out = n_step_return(column(1, 2, 3), column(0.5, 0.5, 0.5), column(10, 20, 30), n=2)
    # 1 + .5*2 + .25*20 ; 2 + .5*3 + .25*30 ; only one reward left: 3 + .5*30
    torch.testing.assert_close(out, column(7.0, 11.0, 18.0))


def test_one_step_is_the_plain_target() -> None:
    out = n_step_return(column(1, 2), column(0.9, 0.9), column(10, 20), n=1)
    torch.testing.assert_close(out, column(10.0, 20.0))


def test_termination_hides_everything_after_it() -> None:
    out = n_step_return(column(1, 2, 3), column(0.5, 0.0, 0.5), column(10, 20, 30), n=3)
    # 1 + .5*2 ; 2 ; 3 + .5*30
    torch.testing.assert_close(out, column(2.0, 2.0, 18.0))


def test_truncation_bootstraps_where_it_happened() -> None:
    cut = column(0, 1, 0).bool()
    out = n_step_return(column(1, 2, 3), column(0.5, 0.5, 0.5), column(10, 20, 30), n=3, cut_t=cut)
    # 1 + .5*2 + .25*20 ; 2 + .5*20 ; 3 + .5*30
    torch.testing.assert_close(out, column(7.0, 12.0, 18.0))


def test_every_reward_is_discounted_by_its_own_power() -> None:
    # Guards against the origin's `G += gamma * r` and its lost last reward.
    out = n_step_return(column(1, 1, 1), column(0.5, 0.5, 0.5), column(0, 0, 0), n=3)
    torch.testing.assert_close(out, column(1.75, 1.5, 1.0))


@settings(deadline=None, max_examples=60)
@given(steps=st.integers(1, 7), batch=st.integers(1, 3), n=st.integers(1, 10), seed=st.integers(0, 2**31))
def test_equals_the_slow_reference(steps: int, batch: int, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    r, v = torch.from_numpy(rng.normal(size=(2, steps, batch)))
    d = torch.from_numpy(rng.choice([0.0, 0.9, 0.99], size=(steps, batch)))
    cut = torch.from_numpy(rng.random((steps, batch)) < 0.3)
    torch.testing.assert_close(n_step_return(r, d, v, n, cut), slow_n_step_return(r, d, v, n, cut))
    no_cut = torch.zeros_like(cut)
    torch.testing.assert_close(n_step_return(r, d, v, n), slow_n_step_return(r, d, v, n, no_cut))


def test_no_gradient_and_inputs_untouched() -> None:
    v = column(10, 20).requires_grad_()
    r = column(1, 2)
    assert not n_step_return(r, column(0.5, 0.5), v, n=2).requires_grad
    torch.testing.assert_close(r, column(1, 2))


def test_refusals_name_the_shape() -> None:
    x = torch.zeros(3, 2)
    with pytest.raises(ValueError, match=r"r_t must be \[T, B\] \(rank 2\), got shape \(3,\)"):
        n_step_return(torch.zeros(3), x, x, 1)
    with pytest.raises(ValueError, match=r"v_t must be \[T, B\] with T = 3, got shape \(4, 2\)"):
        n_step_return(x, x, torch.zeros(4, 2), 1)
    with pytest.raises(TypeError, match=r"discount_t must be floating point, got torch.int64 of shape \(3, 2\)"):
        n_step_return(x, x.long(), x, 1)
    with pytest.raises(ValueError, match=r"cut_t .* got shape \(3, 1\)"):
        n_step_return(x, x, x, 1, torch.zeros(3, 1, dtype=torch.bool))
    with pytest.raises(TypeError, match="cut_t must be bool"):
        n_step_return(x, x, x, 1, x)
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        n_step_return(x, x, x, 0)
