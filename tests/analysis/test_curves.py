"""Curves of single runs: staircases without look-ahead."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.analysis.curves import (
    Curve,
    Range,
    common_range,
    first_reaching,
    hold,
    make_readings,
    mean_over,
    over_seconds,
    over_steps,
)

CURVE = Curve(np.array([10.0, 20.0, 40.0]), np.array([1.0, 5.0, 3.0]))


def test_hold_does_not_look_ahead() -> None:
    found = hold(CURVE, np.array([9.0, 10.0, 19.9, 20.0, 39.9, 40.0, 99.0]))
    assert math.isnan(found[0])
    assert found[1:].tolist() == [1.0, 1.0, 5.0, 5.0, 3.0, 3.0]


def test_of_two_readings_at_one_step_the_last_counts() -> None:
    assert hold(Curve(np.array([1.0, 1.0]), np.array([7.0, 8.0])), np.array([1.0]))[0] == 8.0


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (10, 40, (10 * 1 + 20 * 5) / 30),
        (15, 25, (5 * 1 + 5 * 5) / 10),
        (20, 30, 5.0),
        (12, 14, 1.0),
        (10, 50, (10 * 1 + 20 * 5 + 10 * 3) / 40),
        (40, 40, 3.0),
    ],
)
def test_mean_over(start: float, end: float, expected: float) -> None:
    assert mean_over(CURVE, start, end) == pytest.approx(expected)


def test_mean_before_the_first_reading_is_unknown() -> None:
    assert math.isnan(mean_over(CURVE, 5, 40))


def test_common_range() -> None:
    other = Curve(np.array([12.0, 30.0]), np.array([0.0, 0.0]))
    assert common_range([CURVE, other]) == Range(12.0, 30.0)
    assert common_range([CURVE, Curve(np.array([40.0, 50.0]), np.zeros(2))]) == Range(40.0, 40.0)
    assert common_range([CURVE, Curve(np.array([41.0]), np.zeros(1))]) is None
    assert common_range([CURVE, Curve(np.empty(0), np.empty(0))]) is None
    assert common_range([]) is None


def test_readings_are_put_in_order() -> None:
    """An evaluation is written down later than the line of the step at which it began."""
    readings = make_readings([20, 10, 20], [3.0, 4.0, 5.0], [1.0, 2.0, 3.0])
    assert readings.step.tolist() == [10, 20, 20] and readings.value.tolist() == [2.0, 1.0, 3.0]
    assert over_steps(readings).x.tolist() == [10, 20, 20]
    assert over_seconds(readings).x.tolist() == [3.0, 4.0, 5.0]
    assert over_seconds(readings).y.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("threshold", "window", "expected"),
    [
        (9, 1, (10, 1.0)),
        (9, 3, (50, 5.0)),  # 9, 0, 9 has the mean 6; 0, 9, 9 has 6; 9, 9, 9 is there
        (6, 3, (30, 3.0)),
        (1, 1, (0, 0.0)),
        (10, 1, (math.inf, math.inf)),
        (9.1, 3, (math.inf, math.inf)),
        (0, 7, (math.inf, math.inf)),  # fewer readings than the window
    ],
)
def test_first_reaching(threshold: float, window: int, expected: tuple[float, float]) -> None:
    readings = make_readings([0, 10, 20, 30, 40, 50], [0, 1, 2, 3, 4, 5], [1, 9, 0, 9, 9, 9])
    assert first_reaching(readings, threshold, window) == expected
