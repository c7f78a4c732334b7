"""The numbers of a comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from shoal.analysis.curves import Range
from shoal.analysis.runs import ComparedRun, RunGroup
from shoal.analysis.statistics import Estimate, Floats

FINAL_SHARE = 0.1
"""The last part of the common steps whose mean is the final return."""
WINDOWS = (1, 3)
"""Readings whose mean has to reach a threshold: any one of them, and three in a row."""


class Band(NamedTuple):
    """A group's curve: the IQM over its runs, and its interval; all [G], or empty."""

    x: Floats
    value: Floats
    low: Floats
    high: Floats


class Score(NamedTuple):
    """One run: NaN where it has no reading of the metric, infinite where it never reached the threshold."""

    run: ComparedRun
    area: float
    final: float
    reached: tuple[tuple[float, float], ...]
    """Steps and seconds, for each of `WINDOWS`; empty without a threshold."""


class Reached(NamedTuple):
    """When a group's runs reached the threshold. The median is infinite if half of them or more never did."""

    window: int
    runs: int
    """How many did."""
    steps: Estimate
    seconds: Estimate
    steps_ratio: Estimate | None
    """To the first group; None for that one."""
    seconds_ratio: Estimate | None


class Measure(NamedTuple):
    """One number of a group against the first group."""

    iqm: Estimate
    """Over its runs."""
    better: Estimate | None
    """Probability of improvement over the first group; None for that one."""
    p: float
    """How often chance alone would do as much; NaN for the first group."""


@dataclass(frozen=True)
class GroupResult:
    """One row of the comparison.

    Attributes:
        independent: number of independent results; runs of a single launch that shared data are one.
        over_steps, over_seconds: its curves.
        area, final: mean return over all common steps, and over the last of them.
        reached: one for each of `WINDOWS`; empty without a threshold.
        foreign_fraction: mean over its runs that report it.
        wall_seconds, steps_per_second: medians over its runs.
    """

    group: RunGroup
    independent: int
    scores: tuple[Score, ...]
    over_steps: Band
    over_seconds: Band
    area: Measure
    final: Measure
    reached: tuple[Reached, ...]
    foreign_fraction: float
    wall_seconds: float
    steps_per_second: float


@dataclass(frozen=True)
class Comparison:
    """All results.

    Attributes:
        metric: its name in metrics.jsonl.
        span: the steps that all runs of all groups cover; None if there are none.
    """

    metric: str
    threshold: float | None
    seed: int
    resamples: int
    span: Range | None
    groups: tuple[GroupResult, ...]

    @property
    def runs(self) -> list[ComparedRun]:
        """The runs of all groups."""
        return [run for one in self.groups for run in one.group.runs]
