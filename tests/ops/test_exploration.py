"""The ladder of epsilons and batched epsilon-greedy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.ops import epsilon_greedy, epsilon_ladder


def test_ladder_by_hand() -> None:
    # 0.4^1, 0.4^8 at the ends; 0.4^4.5 in the middle of three
    np.testing.assert_allclose(epsilon_ladder(3), [0.4, 0.0161908, 0.00065536], rtol=1e-5)
    # The 20 actors of DHC: .4, .285, .204, ... , .0007
    np.testing.assert_allclose(epsilon_ladder(20)[:3], [0.4, 0.2854, 0.2036], atol=1e-4)
    np.testing.assert_array_equal(epsilon_ladder(1), [0.4])


@given(total=st.integers(1, 400), base=st.floats(0.01, 1.0), exponent=st.floats(0.0, 10.0))
def test_ladder_falls_and_agrees_with_the_formula(total: int, base: float, exponent: float) -> None:
    ladder = epsilon_ladder(total, base, exponent)
    assert ladder.shape == (total,) and ladder.dtype == np.float64
    assert np.all(np.diff(ladder) <= 1e-15)
    formula = [base ** (1.0 + exponent * i / max(total - 1, 1)) for i in range(total)]
    np.testing.assert_allclose(ladder, formula, rtol=1e-12)


def test_ladder_refusals() -> None:
    with pytest.raises(ValueError, match="total must be at least 1, got 0"):
        epsilon_ladder(0)
    with pytest.raises(ValueError, match="base"):
        epsilon_ladder(2, base=0.0)
    with pytest.raises(ValueError, match="exponent"):
        epsilon_ladder(2, exponent=-1.0)


def test_epsilon_zero_is_greedy_and_one_is_uniform() -> None:
    rng = np.random.default_rng(0)
    greedy = np.full(40_000, 2, dtype=np.int32)
    calm = epsilon_greedy(greedy, np.zeros(40_000), 4, rng)
    np.testing.assert_array_equal(calm, greedy)
    assert calm is not greedy and calm.dtype == np.int32
    wild = epsilon_greedy(greedy, np.ones(40_000), 4, rng)
    np.testing.assert_allclose(np.bincount(wild, minlength=4) / 40_000, 0.25, atol=0.01)
    np.testing.assert_array_equal(greedy, 2)


def test_each_lane_has_its_own_epsilon() -> None:
    rng = np.random.default_rng(1)
    epsilon = np.array([0.0, 0.3, 0.9])
    draws = np.stack([epsilon_greedy(np.zeros(3, dtype=np.int64), epsilon, 10, rng) for _ in range(20_000)])
    # A random action is the greedy one once in 10: not greedy with probability epsilon * .9
    np.testing.assert_allclose((draws != 0).mean(axis=0), epsilon * 0.9, atol=0.01)


def test_luck_of_one_lane_does_not_move_the_others() -> None:
    greedy = np.zeros(4, dtype=np.int64)
    first, second = (np.random.default_rng(7), np.random.default_rng(7))
    epsilon_greedy(greedy, np.zeros(4), 5, first)
    epsilon_greedy(greedy, np.ones(4), 5, second)
    assert first.random() == second.random()


def test_epsilon_greedy_refusals() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match=r"got shapes \(2,\) and \(3,\)"):
        epsilon_greedy(np.zeros(2, dtype=np.int64), np.zeros(3), 2, rng)
    with pytest.raises(ValueError, match=r"got shapes \(2, 1\)"):
        epsilon_greedy(np.zeros((2, 1), dtype=np.int64), np.zeros((2, 1)), 2, rng)
    with pytest.raises(TypeError, match="must be integers, got float64"):
        epsilon_greedy(np.zeros(2), np.zeros(2), 2, rng)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_actions must be at least 1, got 0"):
        epsilon_greedy(np.zeros(2, dtype=np.int64), np.zeros(2), 0, rng)
