"""Linear and polynomial schedules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.ops import linear_schedule, polynomial_schedule


def test_by_hand() -> None:
    beta = linear_schedule(0.4, 1.0, 100)
    assert [beta(s) for s in (-5, 0, 50, 100, 10**9)] == pytest.approx([0.4, 0.4, 0.7, 1.0, 1.0])
    falling = linear_schedule(1.0, 0.1, 9)
    assert falling(1) == pytest.approx(0.9)


def test_no_steps_is_the_end_at_once() -> None:
    assert linear_schedule(0.4, 1.0, 0)(0) == 1.0
    assert linear_schedule(0.4, 1.0, 0)(-1) == 1.0


@given(start=st.floats(-1e3, 1e3), stop=st.floats(-1e3, 1e3), steps=st.integers(0, 10**6), step=st.integers(-5, 10**7))
def test_stays_between_its_ends_and_arrives_exactly(start: float, stop: float, steps: int, step: int) -> None:
    schedule = linear_schedule(start, stop, steps)
    low, high = sorted((start, stop))
    assert low - 1e-9 <= schedule(step) <= high + 1e-9
    assert schedule(steps) == stop


def test_refuses_negative_steps() -> None:
    with pytest.raises(ValueError, match="steps must be at least 0, got -1"):
        linear_schedule(0.0, 1.0, -1)


def test_polynomial_by_hand() -> None:
    rate = polynomial_schedule(1.0, 0.2, 4, 2.0)
    # .2 + .8 * (1, .75^2, .5^2, .25^2, 0)
    assert [rate(s) for s in (-1, 0, 1, 2, 3, 4, 9)] == pytest.approx([1.0, 1.0, 0.65, 0.4, 0.25, 0.2, 0.2])
    assert polynomial_schedule(1.0, 0.2, 0, 2.0)(0) == 0.2


@given(start=st.floats(-1e3, 1e3), stop=st.floats(-1e3, 1e3), steps=st.integers(0, 10**6), step=st.integers(-5, 10**7))
def test_polynomial_of_power_one_is_linear(start: float, stop: float, steps: int, step: int) -> None:
    polynomial = polynomial_schedule(start, stop, steps, 1.0)
    assert polynomial(step) == pytest.approx(linear_schedule(start, stop, steps)(step), abs=1e-9)
    assert polynomial(steps) == stop


def test_polynomial_refuses() -> None:
    with pytest.raises(ValueError, match="steps must be at least 0, got -1"):
        polynomial_schedule(1.0, 0.0, -1)
    with pytest.raises(ValueError, match="power must be positive, got 0"):
        polynomial_schedule(1.0, 0.0, 1, 0)
