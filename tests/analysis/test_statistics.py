"""Statistics of a few runs, against numbers worked out by hand and slow references."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.analysis import statistics
from shoal.analysis.statistics import Estimate, Floats


def _expanded(values: Floats, counts: Floats) -> Floats:
    return np.sort(np.repeat(values, counts.astype(int)))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7.0], 7.0),
        ([0.0, 10.0], 5.0),
        ([9.0, 0.0, 3.0], (0.25 * 0 + 3 + 0.25 * 9) / 1.5),
        ([4.0, 1.0, 3.0, 2.0], 2.5),
        ([0.0, 1.0, 2.0, 3.0, 100.0], (0.75 * 1 + 2 + 0.75 * 3) / 2.5),
        ([-1e9, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 1e9], 2.0),
    ],
)
def test_iqm(values: list[float], expected: float) -> None:
    found = statistics.iqm(np.array([values]), statistics.once(len(values)))
    assert found.shape == (1, 1) and found[0, 0] == pytest.approx(expected)


@pytest.mark.parametrize("chunk", [1, 1 << 21])
def test_iqm_of_resamples_is_that_of_their_runs(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Slow reference: every run four times, so that a quarter is a whole number of them."""
    monkeypatch.setattr(statistics, "_CHUNK", chunk)
    rng = np.random.default_rng(0)
    values, counts = rng.integers(5, size=(6, 7)).astype(float), rng.integers(3, size=(20, 7)).astype(float)
    counts[:, 0] += 1
    found = statistics.iqm(values, counts)
    for row, drawn in enumerate(counts):
        for point, line in enumerate(values):
            many = np.repeat(_expanded(line, drawn), 4)
            quarter = len(many) // 4
            assert found[row, point] == pytest.approx(many[quarter : len(many) - quarter].mean())


def test_median_of_resamples() -> None:
    rng = np.random.default_rng(1)
    values, counts = rng.normal(size=6), rng.integers(3, size=(50, 6)).astype(float)
    counts[:, 2] += 1
    found = statistics.median(values, counts)
    assert found == pytest.approx([np.median(_expanded(values, drawn)) for drawn in counts])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3.0, 1.0, np.inf], 3.0),
        ([3.0, 1.0, np.inf, np.inf], np.inf),
        ([2.0, 1.0, 3.0, np.inf], 2.5),
        ([np.inf], np.inf),
    ],
)
def test_median_with_runs_that_never_got_there(values: list[float], expected: float) -> None:
    assert statistics.median(np.array(values), statistics.once(len(values)))[0] == expected


def test_probability_of_improvement() -> None:
    x, y = np.array([1.0, 3.0]), np.array([2.0, 3.0])
    counts = np.array([[1.0, 1.0], [0.0, 2.0], [2.0, 0.0]])
    # 1 loses twice; 3 wins once and ties once.
    assert statistics.probability_of_improvement(x, y, counts, counts) == pytest.approx([0.375, 0.5, 0.0])
    assert statistics.probability_of_improvement(x, x, counts[:1], counts[:1])[0] == 0.5


def test_a_drawn_launch_brings_all_its_runs() -> None:
    units = np.array(["b", "a", "b", "c", "a"])
    counts = statistics.resample_counts(units, 500, np.random.default_rng(0))
    assert counts.shape == (500, 5)
    assert (counts[:, 0] == counts[:, 2]).all() and (counts[:, 1] == counts[:, 4]).all()
    assert (counts[:, 0] + counts[:, 1] + counts[:, 3] == 3).all()
    assert counts.mean(axis=0) == pytest.approx(np.ones(5), abs=0.15)


def test_launches_that_differ_make_wide_intervals() -> None:
    """Four runs that are the same tell no more than one."""
    values = np.repeat(np.arange(6.0), 4)[None]

    def width(units: np.ndarray) -> float:
        counts = statistics.resample_counts(units, 2_000, np.random.default_rng(0))
        low, high = statistics.interval(statistics.iqm(values, counts))
        return float(high[0] - low[0])

    assert width(np.repeat(np.arange(6), 4)) > 1.5 * width(np.arange(24))


def test_interval() -> None:
    low, high = statistics.interval(np.arange(1001.0)[:, None])
    assert (low[0], high[0]) == (25.0, 975.0)
    # Forty of a thousand got nowhere: more than the upper 2.5 %.
    low, high = statistics.interval(np.array([1.0] * 960 + [np.inf] * 40))
    assert (low, high) == (1.0, np.inf)
    low, high = statistics.interval(np.array([1.0] * 960 + [np.nan] * 40))
    assert (low, high) == (-np.inf, np.inf)


def test_estimate() -> None:
    def total(x: Floats, y: Floats) -> Floats:
        return np.asarray(x @ [1.0, 2.0] + y @ [10.0])

    drawn = np.array([[2.0, 0.0]] * 50 + [[0.0, 2.0]] * 50)
    assert statistics.estimate(total, drawn, np.ones((100, 1))) == Estimate(13.0, 12.0, 14.0)
    for alone in (
        statistics.estimate(total, drawn, np.ones((0, 1))),
        statistics.estimate(total, drawn[:0], drawn[:, :1]),
    ):
        assert alone.value == 13.0 and np.isnan([alone.low, alone.high]).all()


def test_ratio() -> None:
    found = statistics.ratio(np.array([1.0, np.inf, 1.0, np.inf]), np.array([2.0, 2.0, np.inf, np.inf]))
    assert found[:3] == pytest.approx([0.5, np.inf, 0.0]) and np.isnan(found[3])


def _p(x: list[float], y: list[float], units_x: list[int] | None = None) -> float:
    labels = np.arange(len(x)) if units_x is None else np.array(units_x)
    return statistics.permutation_p(np.array(x), np.array(y), labels, np.arange(len(y)), np.random.default_rng(0))


def test_permutation_p() -> None:
    assert _p([5, 6, 7, 8], [1, 2, 3, 4]) == pytest.approx(2 / 70)  # this order and its reverse
    assert _p([1, 2], [3, 4]) == pytest.approx(2 / 6)
    # P = 3/4: three of the four pairs. As far from a half: {4, 3}, {1, 2}, {4, 2}, {1, 3}, but not {4, 1} and {2, 3}.
    assert _p([4, 2], [3, 1]) == pytest.approx(4 / 6)
    assert _p([1, 1], [1, 1]) == 1.0
    # Four runs of one launch are one of five results: it would be as far from a half if 1 were alone.
    assert _p([9, 9, 9, 9], [1, 2, 3, 4], units_x=[0, 0, 0, 0]) == pytest.approx(2 / 5)


def test_permutation_p_at_random_is_near_the_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = [3.0, 5.0, 6.0, 7.0, 9.0], [1.0, 2.0, 4.0, 5.5, 6.5]
    exact = _p(x, y)
    monkeypatch.setattr(statistics, "_MOST_WAYS", 251)  # one fewer than there are
    assert 0 < exact < 1 and _p(x, y) == pytest.approx(exact, abs=0.08)


def test_alike_groups_are_rarely_told_apart() -> None:
    """At most one in twenty, also where the runs of a launch are much alike."""
    rng, units = np.random.default_rng(0), np.repeat(np.arange(5), 2)

    def group() -> Floats:
        return np.repeat(rng.normal(size=5), 2) + 0.3 * rng.normal(size=10)

    wrong = sum(statistics.permutation_p(group(), group(), units, units, rng) <= 0.05 for _ in range(300))
    assert wrong <= 0.05 * 300 + 3 * (0.05 * 0.95 * 300) ** 0.5


@pytest.mark.parametrize(("n", "m", "expected"), [(3, 3, 0.1), (4, 4, 2 / 70), (1, 5, 1 / 3), (1, 1, 1.0)])
def test_smallest_p(n: int, m: int, expected: float) -> None:
    assert statistics.smallest_p(n, m) == pytest.approx(expected)
