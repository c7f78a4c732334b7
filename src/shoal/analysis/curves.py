"""Curves of single runs, as pure functions.

A curve is a step function: a reading holds until the next one. Nothing is interpolated towards a later reading, and
nothing is extrapolated beyond the last one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.analysis.statistics import Floats


class Readings(NamedTuple):
    """One metric of one run, ordered by step; all [K]."""

    step: Floats
    wall: Floats
    value: Floats


class Curve(NamedTuple):
    """Values over steps or seconds, both [K], x ascending. The last of several values at one x counts."""

    x: Floats
    y: Floats


class Range(NamedTuple):
    """The range of x in which all curves have a value."""

    start: float
    end: float


def make_readings(step: Sequence[float], wall: Sequence[float], value: Sequence[float]) -> Readings:
    """Orders readings by step: an evaluation is written when it ends, with the step at which it began."""
    order = np.argsort(np.asarray(step, dtype=np.float64), kind="stable")
    return Readings(*(np.asarray(column, dtype=np.float64)[order] for column in (step, wall, value)))


def over_steps(readings: Readings) -> Curve:
    return Curve(readings.step, readings.value)


def over_seconds(readings: Readings) -> Curve:
    order = np.argsort(readings.wall, kind="stable")
    return Curve(readings.wall[order], readings.value[order])


def hold(curve: Curve, at: npt.NDArray[Any]) -> Floats:
    """The newest value at each x of `at`, [G]; NaN before the first reading."""
    index = np.searchsorted(curve.x, at, side="right") - 1
    return np.where(index >= 0, curve.y[np.maximum(index, 0)], math.nan)


def mean_over(curve: Curve, start: float, end: float) -> float:
    """The exact mean of the curve from `start` to `end`; NaN if it begins later than `start`."""
    if start >= end:
        return float(hold(curve, np.array([end]))[0])
    inside = curve.x[(curve.x > start) & (curve.x < end)]
    places = np.concatenate([[start], inside])
    widths = np.diff(np.concatenate([places, [end]]))
    return float((hold(curve, places) * widths).sum() / (end - start))


def common_range(curves: Sequence[Curve]) -> Range | None:
    """From the largest first x to the smallest last x; None if no x is covered by all curves."""
    if not curves or any(not len(curve.x) for curve in curves):
        return None
    found = Range(float(max(curve.x[0] for curve in curves)), float(min(curve.x[-1] for curve in curves)))
    return found if found.start <= found.end else None


def first_reaching(readings: Readings, threshold: float, window: int = 1) -> tuple[float, float]:
    """When the mean of the last `window` readings first was at least `threshold`.

    Returns:
        Steps and seconds of the last reading in that window; both infinite if it never was.
    """
    if len(readings.value) < window:
        return math.inf, math.inf
    means = np.lib.stride_tricks.sliding_window_view(readings.value, window).mean(axis=1)
    reached = np.flatnonzero(means >= threshold)
    if not len(reached):
        return math.inf, math.inf
    index = reached[0] + window - 1
    return float(readings.step[index]), float(readings.wall[index])
