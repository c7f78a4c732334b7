"""Statistics of a few runs, as pure functions.

After "Deep Reinforcement Learning at the Edge of the Statistical Precipice", https://arxiv.org/abs/2108.13264.

A bootstrap resample is a row of counts, how often each run was drawn, not a list of runs. So launches of different
sizes need no special case, and all resamples are computed at once.

Shapes: B resamples (0 where there is nothing to draw from), N runs, M runs of another group, G grid points.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LEVEL = 0.95
_CHUNK = 1 << 21
"""Numbers that `iqm` holds at once: 16 MiB."""
_MOST_WAYS = 5_000
"""Ways to deal out units that `permutation_p` tries."""


class Estimate(NamedTuple):
    """A number and its 95 % interval; the bounds are NaN where there is none."""

    value: float
    low: float = math.nan
    high: float = math.nan


def once(runs: int) -> Floats:
    """The counts of the sample itself, [1, N]: every run once."""
    return np.ones((1, runs))


def resample_counts(units: npt.NDArray[Any], resamples: int, rng: np.random.Generator) -> Floats:
    """Draws units with replacement; a unit brings all its runs.

    Args:
        units: [N], to which unit each run belongs, as any label.
        resamples: B.
        rng: draws them.

    Returns:
        [B, N]: how often each run is in each resample.
    """
    labels, member = np.unique(units, return_inverse=True)
    drawn = rng.integers(len(labels), size=(resamples, len(labels)))
    flat = drawn + np.arange(resamples)[:, None] * len(labels)
    counts = np.bincount(flat.ravel(), minlength=resamples * len(labels)).reshape(resamples, len(labels))
    return counts[:, member].astype(np.float64)


def iqm(values: Floats, counts: Floats) -> Floats:
    """The interquartile mean: the mean of the middle half.

    The run in which a quarter ends counts with the fraction that lies inside, so it is exact for any number of runs.

    Args:
        values: [G, N], finite.
        counts: [B, N], from `resample_counts` or `once`.

    Returns:
        [B, G]
    """
    order = np.argsort(values, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)
    points = max(1, _CHUNK // max(1, counts.size))
    result = np.empty((len(counts), len(values)))
    total = counts.sum(axis=1)[:, None, None]
    for start in range(0, len(values), points):
        part = slice(start, start + points)
        ends = np.clip(np.cumsum(counts[:, order[part]], axis=2), total / 4, total * 3 / 4)  # [B, points, N]
        inside = np.diff(ends, axis=2, prepend=np.broadcast_to(total / 4, (*ends.shape[:2], 1)))
        result[:, part] = (inside * ordered[part]).sum(axis=2) / (total[:, 0] / 2)
    return result


def median(values: Floats, counts: Floats) -> Floats:
    """The median, of values that may be infinite; half-way between two middle ones, so infinite if one of them is.

    Args:
        values: [N]
        counts: [B, N]

    Returns:
        [B]
    """
    order = np.argsort(values)
    ordered, ends = values[order], np.cumsum(counts[:, order], axis=1)
    total = ends[:, -1]
    lower = ordered[np.argmax(ends > ((total - 1) // 2)[:, None], axis=1)]
    upper = ordered[np.argmax(ends > (total // 2)[:, None], axis=1)]
    return np.asarray((lower + upper) / 2)


def probability_of_improvement(x: Floats, y: Floats, counts_x: Floats, counts_y: Floats) -> Floats:
    """P(X > Y) + P(X = Y) / 2, of a run of one group and a run of the other.

    Args:
        x, y: [N], [M]
        counts_x, counts_y: [B, N], [B, M]

    Returns:
        [B]
    """
    wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)  # [N, M]
    pairs = counts_x.sum(axis=1) * counts_y.sum(axis=1)
    return np.asarray(((counts_x @ wins) * counts_y).sum(axis=1) / pairs)


def permutation_p(
    x: Floats, y: Floats, units_x: npt.NDArray[Any], units_y: npt.NDArray[Any], rng: np.random.Generator
) -> float:
    """How often chance alone makes the probability of improvement differ from 0.5 by as much as it does, or more.

    Exact for few units, where a bootstrap is overconfident: if the groups were alike, every way to deal out the units
    to them would have been as likely as the observed one. All of them are tried, or many at random.

    Args:
        x, y: [N], [M]
        units_x, units_y: [N], [M], to which unit each run belongs; units are dealt out whole.
        rng: used when there are too many ways to try them all.
    """
    here, member_x = np.unique(units_x, return_inverse=True)
    there, member_y = np.unique(units_y, return_inverse=True)
    mine, all_units = len(here), len(here) + len(there)
    if exact := math.comb(all_units, mine) <= _MOST_WAYS:
        dealt = np.array(list(itertools.combinations(range(all_units), mine)))
    else:
        dealt = np.argsort(rng.random((_MOST_WAYS, all_units)), axis=1)[:, :mine]
    chosen = np.zeros((len(dealt), all_units))
    np.put_along_axis(chosen, dealt, 1, axis=1)
    counts = chosen[:, np.concatenate([member_x, member_y + mine])]  # [ways, N + M]
    both = np.concatenate([x, y])
    seen = probability_of_improvement(x, y, once(len(x)), once(len(y)))[0]
    others = probability_of_improvement(both, both, counts, 1 - counts)
    as_far = int((np.abs(others - 0.5) >= abs(seen - 0.5) - 1e-9).sum())
    return as_far / len(dealt) if exact else (as_far + 1) / (len(dealt) + 1)


def ratio(x: Floats, y: Floats) -> Floats:
    """x / y, where both may be infinite (never reached): NaN if both are, because then it is unknown."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(x / y)


def interval(samples: Floats) -> tuple[Floats, Floats]:
    """The percentile interval over the first axis; NaN without any sample.

    No interpolation, so infinities do no harm. A NaN could have been anything: it counts as low at the low end and as
    high at the high end.
    """
    if not len(samples):
        none = np.full(samples.shape[1:], math.nan)
        return none, none
    unknown, tail = np.isnan(samples), (1 - LEVEL) / 2
    low = np.quantile(np.where(unknown, -np.inf, samples), tail, axis=0, method="lower")
    high = np.quantile(np.where(unknown, np.inf, samples), 1 - tail, axis=0, method="higher")
    return low, high


def estimate(statistic: Callable[..., Floats], *counts: Floats) -> Estimate:
    """A statistic of the runs of one or more groups, with the interval of its resamples.

    Args:
        statistic: takes counts, [B, N] for each group, and returns [B].
        counts: the resamples of each group.
    """
    value = float(statistic(*(once(one.shape[1]) for one in counts))[0])
    if not all(len(one) for one in counts):
        return Estimate(value)
    low, high = interval(statistic(*counts))
    return Estimate(value, float(low), float(high))


def smallest_p(n: int, m: int) -> float:
    """How often chance alone puts all n above all m, or all below.

    The smallest two-sided p-value that a rank test of n against m independent results can give: if it is above 0.05,
    no outcome can be told from chance.
    """
    return min(1.0, 2 / math.comb(n + m, n))
