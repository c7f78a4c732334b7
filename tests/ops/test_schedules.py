"""Linear schedules."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.ops import LinearSchedule, linear_schedule


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


def test_travels_between_processes() -> None:
    schedule = LinearSchedule(0.4, 1.0, 10)
    assert pickle.loads(pickle.dumps(schedule)) == schedule


def test_refuses_negative_steps() -> None:
    with pytest.raises(ValueError, match="steps must be at least 0, got -1"):
        linear_schedule(0.0, 1.0, -1)
