"""Groups of runs against the first of them: curves, areas, final returns, time to a threshold.

Every interval is a bootstrap over what is independent. Runs of one launch may have learned from each other, so launches
are drawn, each with all its runs. Only in a group with a single launch are runs drawn one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.analysis import curves, statistics
from shoal.analysis.curves import Curve, Range, Readings
from shoal.analysis.results import FINAL_SHARE, WINDOWS, Band, Comparison, GroupResult, Measure, Reached, Score
from shoal.analysis.runs import METRICS, ComparedRun, RunGroup, Unit
from shoal.analysis.statistics import Estimate, Floats, estimate
from shoal.errors import ConfigError, UnknownName

GRID = 200
"""Points of a curve."""
_STEPS, _SECONDS = 0, 1


class _Sample(NamedTuple):
    """A group with its resamples: of all runs, [B, N], and of those that have the metric, [B, K]."""

    group: RunGroup
    scores: tuple[Score, ...]
    judged: tuple[Score, ...]
    counts: Floats
    judged_counts: Floats
    independent: npt.NDArray[np.str_]
    """To which independent result each judged run belongs, [K]; runs of a single launch that shared data are one."""


def compare(
    groups: Sequence[RunGroup],
    metric: str = "auto",
    threshold: float | None = None,
    seed: int = 0,
    resamples: int = 2_000,
) -> Comparison:
    """Compares groups with the first of them.

    Args:
        groups: at least one.
        metric: eval, rollout, or auto: eval where every run has it, else rollout.
        threshold: the return to be reached; None leaves that part out.
        seed: of the bootstrap. The same seed and runs give the same numbers.
        resamples: of the bootstrap.
    """
    if threshold is not None and not math.isfinite(threshold):
        raise ConfigError(f"threshold = {threshold} cannot be used: it must be a finite number.")
    name = choose_metric(groups, metric)
    readings = [[run.readings[name] for run in group.runs if name in run.readings] for group in groups]
    span = curves.common_range([curves.over_steps(one) for some in readings for one in some])
    samples = [
        _sample(group, name, threshold, span, resamples, np.random.default_rng([seed, number]))
        for number, group in enumerate(groups)
    ]
    results = tuple(
        _result(sample, samples[0] if number else None, some, np.random.default_rng([seed, number, 1]))
        for number, (sample, some) in enumerate(zip(samples, readings, strict=True))
    )
    return Comparison(name, threshold, seed, resamples, span, results)


def choose_metric(groups: Sequence[RunGroup], metric: str) -> str:
    """The metric's name in metrics.jsonl; every group has at least one run with it."""
    if metric != "auto" and metric not in METRICS:
        raise UnknownName("metric", metric, ["auto", *METRICS])
    runs = [run for group in groups for run in group.runs]
    if metric == "auto":
        metric = "eval" if all(METRICS["eval"] in run.readings for run in runs) else "rollout"
    name = METRICS[metric]
    for group in groups:
        if any(name in run.readings for run in group.runs):
            continue
        there = [key for key, other in METRICS.items() if any(other in run.readings for run in group.runs)]
        remedy = f"It has {METRICS[there[0]]}: try --metric {there[0]}." if there else "Did its runs ever start?"
        raise ConfigError(f"No run in {group.path} has a reading of {name}. {remedy}")
    return name


def _sample(
    group: RunGroup, metric: str, threshold: float | None, span: Range | None, resamples: int, rng: np.random.Generator
) -> _Sample:
    scores = tuple(_score(run, metric, threshold, span) for run in group.runs)
    judged = tuple(score for score in scores if metric in score.run.readings)

    def draw(some: tuple[Score, ...]) -> Floats:
        labels = _labels(some, group.unit)
        return statistics.resample_counts(labels, resamples if len(set(labels)) > 1 else 0, rng)

    counts = draw(scores)
    return _Sample(
        group=group,
        scores=scores,
        judged=judged,
        counts=counts,
        judged_counts=counts if len(judged) == len(scores) else draw(judged),
        independent=_labels(judged, "launches" if group.unit == "runs" and group.shared else group.unit),
    )


def _labels(scores: tuple[Score, ...], unit: Unit) -> npt.NDArray[np.str_]:
    """To which unit each run belongs, [N]."""
    return np.array([str(one.run.launch if unit == "launches" else one.run.path) for one in scores])


def _score(run: ComparedRun, metric: str, threshold: float | None, span: Range | None) -> Score:
    readings = run.readings.get(metric, Readings(np.empty(0), np.empty(0), np.empty(0)))
    area = final = math.nan
    if span is not None and len(readings.step):
        curve, begin = curves.over_steps(readings), span.end - FINAL_SHARE * (span.end - span.start)
        area, final = curves.mean_over(curve, *span), curves.mean_over(curve, begin, span.end)
    reached = [] if threshold is None else [curves.first_reaching(readings, threshold, window) for window in WINDOWS]
    return Score(run, area, final, tuple(reached))


def _result(sample: _Sample, first: _Sample | None, readings: list[Readings], rng: np.random.Generator) -> GroupResult:
    runs = sample.group.runs
    shares = [run.foreign_fraction for run in runs if not math.isnan(run.foreign_fraction)]
    walls = [run.wall_seconds for run in runs if run.wall_seconds > 0]
    rates = [run.last_step / run.wall_seconds for run in runs if run.wall_seconds > 0]
    return GroupResult(
        group=sample.group,
        independent=len(set(sample.independent)),
        scores=sample.scores,
        over_steps=_band([curves.over_steps(one) for one in readings], sample.judged_counts),
        over_seconds=_band([curves.over_seconds(one) for one in readings], sample.judged_counts),
        area=_measure(sample, first, "area", rng),
        final=_measure(sample, first, "final", rng),
        reached=tuple(_reached(sample, first, window) for window in range(len(sample.scores[0].reached))),
        foreign_fraction=float(np.mean(shares)) if shares else math.nan,
        wall_seconds=float(np.median(walls)) if walls else math.nan,
        steps_per_second=float(np.median(rates)) if rates else math.nan,
    )


def _band(lines: list[Curve], counts: Floats) -> Band:
    span = curves.common_range(lines)
    if span is None:
        return Band(*(np.empty(0) for _ in Band._fields))
    x = np.linspace(*span, GRID)
    values = np.stack([curves.hold(line, x) for line in lines], axis=1)  # [G, N]
    middle = statistics.iqm(values, statistics.once(len(lines)))[0]
    return Band(x, middle, *statistics.interval(statistics.iqm(values, counts)))


def _measure(sample: _Sample, first: _Sample | None, name: str, rng: np.random.Generator) -> Measure:
    x, y = (np.array([getattr(score, name) for score in one.judged]) for one in (sample, first or sample))
    if np.isnan(x).any() or np.isnan(y).any():  # no steps that all runs cover
        return Measure(Estimate(math.nan), Estimate(math.nan) if first else None, math.nan)
    iqm = estimate(lambda counts: statistics.iqm(x[None], counts)[:, 0], sample.judged_counts)
    if first is None:
        return Measure(iqm, None, math.nan)
    improvement = partial(statistics.probability_of_improvement, x, y)
    better = estimate(improvement, sample.judged_counts, first.judged_counts)
    return Measure(iqm, better, statistics.permutation_p(x, y, sample.independent, first.independent, rng))


def _reached(sample: _Sample, first: _Sample | None, index: int) -> Reached:
    runs = sum(math.isfinite(score.reached[index][0]) for score in sample.scores)
    times = [_times(sample, index, unit) for unit in (_STEPS, _SECONDS)]
    medians = [estimate(partial(statistics.median, one), sample.counts) for one in times]
    ratios = [first and _ratio(sample, first, index, unit) for unit in (_STEPS, _SECONDS)]
    return Reached(WINDOWS[index], runs, medians[0], medians[1], ratios[0], ratios[1])


def _times(sample: _Sample, index: int, unit: int) -> Floats:
    return np.array([score.reached[index][unit] for score in sample.scores])


def _ratio(sample: _Sample, first: _Sample, index: int, unit: int) -> Estimate:
    x, y = _times(sample, index, unit), _times(first, index, unit)
    value, base = (float(statistics.median(one, statistics.once(len(one)))[0]) for one in (x, y))
    if not (math.isfinite(value) and math.isfinite(base) and base > 0):
        return Estimate(math.nan)

    def ratio(counts_x: Floats, counts_y: Floats) -> Floats:
        return statistics.ratio(statistics.median(x, counts_x), statistics.median(y, counts_y))

    found = estimate(ratio, sample.counts, first.counts)
    return found._replace(low=max(found.low, 0.0))  # where neither resample got there, anything from 0 on is possible
