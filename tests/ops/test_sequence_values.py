"""Values of sequences: hand-worked numbers, and slow references."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from shoal.ops import double_q_values, n_step_returns, regret, rescaled, sequence_priority, unrescaled


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]  # [T, 1]


def test_rescaling_by_hand() -> None:
    x = torch.tensor([0.0, 3.0, -3.0, 99.0])
    torch.testing.assert_close(rescaled(x), torch.tensor([0.0, 1.003, -1.003, 9.099]))


@given(st.floats(-1e5, 1e5, width=32))
def test_the_inverse_of_rescaling(x: float) -> None:
    value = torch.tensor([x], dtype=torch.float32)
    torch.testing.assert_close(unrescaled(rescaled(value)), value, rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(rescaled(unrescaled(value)), value, rtol=2e-5, atol=1e-6)


def test_the_inverse_is_the_papers() -> None:
    """sign(x) (((sqrt(1 + 4 e (|x| + 1 + e)) - 1) / (2 e))^2 - 1), e = 0.001, in double precision."""
    for x in (-30.0, -0.5, 0.0, 1e-3, 2.0, 500.0):
        y = (math.sqrt(1 + 0.004 * (abs(x) + 1.001)) - 1) / 0.002
        expected = math.copysign(y * y - 1, x)
        assert float(unrescaled(torch.tensor(x, dtype=torch.float64))) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_double_q_values_by_hand() -> None:
    selector = torch.tensor([[[1.0, 2.0], [3.0, 0.0]]])  # [T, B, A]: picks 1, then 0
    target = torch.tensor([[[10.0, 20.0], [30.0, 40.0]]])
    assert double_q_values(selector, target).tolist() == [[20.0, 30.0]]


# Five rows and the one after them; gamma is 1/2, the values are 10, 20, ... 60.
ROWS: list[tuple[str, dict[str, Any], list[float]]] = [
    # r0 + (r1 + V2 / 2) / 2 = 1 + (1 + 15) / 2 and so on; the last row has one step only: 1 + 60 / 2.
    ("no end", {}, [9.0, 11.5, 14.0, 16.5, 31.0]),
    # Row 1 terminates, row 2 is its final row: V2 counts for nothing. Row 0: 1 + 1 / 2.
    ("terminated", {"discount": {1: 0.0}, "mask": {2: 0.0}}, [1.5, 1.0, 30.0, 16.5, 31.0]),
    # Row 1 is truncated: both rows bootstrap from the final row's value, row 0 over two steps, row 1 over one.
    ("truncated", {"mask": {2: 0.0}}, [9.0, 16.0, 30.0, 16.5, 31.0]),
    # The sequence begins with a final row, and ends with one.
    ("at the ends", {"mask": {0: 0.0, 4: 0.0}}, [10.0, 11.5, 14.0, 26.0, 50.0]),
]


@pytest.mark.parametrize(("changes", "expected"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_returns_of_two_steps_by_hand(changes: dict[str, dict[int, float]], expected: list[float]) -> None:
    given_rows = {"reward": [1.0] * 5, "discount": [0.5] * 5, "mask": [1.0] * 5}
    for name, values in changes.items():
        for t, value in values.items():
            given_rows[name][t] = value
    rows = {name: column(*values) for name, values in given_rows.items()}
    returns = n_step_returns(column(10, 20, 30, 40, 50, 60), **rows, n=2)
    assert returns[:, 0].tolist() == expected


def slow_return(values: Any, reward: Any, discount: Any, mask: Any, n: int, t: int) -> float:
    """Straight from the definition."""
    total, factor = 0.0, 1.0
    for k in range(n):
        if t + k == len(reward) or not mask[t + k]:
            break
        total += factor * reward[t + k]
        factor *= discount[t + k]
    else:
        k = n
    return float(total + factor * values[t + k])


@given(st.integers(0, 2**32 - 1), st.integers(1, 7))
def test_returns_are_the_slow_ones(seed: int, n: int) -> None:
    """With an axis of agents, each with ends of its own."""
    rng, shape = np.random.default_rng(seed), (6, 2, 3)
    values, reward = rng.normal(size=(7, 2, 3)), rng.normal(size=shape)
    discount = np.where(rng.random(shape) < 0.2, 0.0, 0.9)
    mask = (rng.random(shape) < 0.7).astype(np.float64)
    found = n_step_returns(*map(torch.from_numpy, (values, reward, discount, mask)), n).numpy()
    for at in np.ndindex(shape):
        rows = [one[(slice(None), *at[1:])] for one in (values, reward, discount, mask)]
        assert found[at] == pytest.approx(slow_return(*rows, n, at[0]), rel=1e-9, abs=1e-12)


def test_what_a_masked_row_says_is_ignored() -> None:
    nan = column(1, math.nan, 1)
    mask = column(1, 0, 1)
    returns = n_step_returns(column(1, 2, 3, 4), nan, nan, mask, 3)
    assert torch.isfinite(returns).all()


def test_priorities_by_hand() -> None:
    error = torch.tensor([[1.0, -4.0], [-3.0, 100.0]])  # [T, B]
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    assert sequence_priority(error, mask, 0.9).tolist() == pytest.approx([0.9 * 3 + 0.1 * 2, 4.0])
    several = torch.tensor([[[1.0, 5.0]], [[3.0, 9.0]]])  # [T, B, agents]; the second agent has one step
    one_step = torch.tensor([[[1.0, 1.0]], [[1.0, 0.0]]])
    assert sequence_priority(several, one_step, 0.5).tolist() == pytest.approx([0.5 * 5 + 0.5 * 3])
    assert sequence_priority(error, torch.zeros(2, 2), 0.9).tolist() == [0.0, 0.0]


def test_shapes_that_would_broadcast_are_refused() -> None:
    rows = torch.zeros(3, 2)
    with pytest.raises(ValueError, match=r"values \(3, 2\), reward \(3, 2\), discount \(3, 2\), mask \(3, 1\)"):
        n_step_returns(torch.zeros(4, 2), rows, rows, torch.zeros(3, 1), 2)
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        n_step_returns(torch.zeros(4, 2), rows, rows, rows, 0)
    with pytest.raises(ValueError, match="same shape"):
        double_q_values(torch.zeros(3, 2), torch.zeros(3, 3))
    with pytest.raises(ValueError, match=r"eta must be in \[0, 1\], got 1.5"):
        sequence_priority(rows, rows, 1.5)
    with pytest.raises(TypeError, match="x must be floating point"):
        rescaled(torch.zeros(2, dtype=torch.int64))


def test_regret_by_hand() -> None:
    q = torch.tensor([[1.0, 3.0, 2.5], [-1.0, -4.0, -2.0]], requires_grad=True)
    found = regret(q, torch.tensor([2, 0]))
    assert found.tolist() == [-0.5, 0.0] and not found.requires_grad


def test_a_share_of_the_regret_widens_the_gap_and_keeps_the_best_value() -> None:
    """Two states in turn, two actions with different rewards: the fixed points, by iteration."""
    reward, gamma = torch.tensor([[1.0, 0.9], [0.2, 0.0]], dtype=torch.float64), 0.8
    actions = torch.tensor([[0, 1], [0, 1]])
    fixed = {}
    for share in (0.0, 0.9):
        q = torch.zeros(2, 2, dtype=torch.float64)
        for _ in range(2_000):
            q = reward + gamma * q.amax(1).flip(0)[:, None] + share * regret(q[:, None].expand(2, 2, 2), actions)
        fixed[share] = q
    torch.testing.assert_close(fixed[0.9].amax(1), fixed[0.0].amax(1))
    gaps = {share: q[:, 0] - q[:, 1] for share, q in fixed.items()}
    torch.testing.assert_close(gaps[0.9], 10 * gaps[0.0])
