"""The comparison as words: tables for the terminal and the page, what each number means, and JSON."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from shoal.analysis.results import FINAL_SHARE, WINDOWS, Comparison, GroupResult, Score
from shoal.analysis.statistics import LEVEL, Estimate
from shoal.files import to_json

NONE = "–"
NEVER = "not reached"
_RULES = {1: "one reading", 3: "mean of 3 readings"}


class TextTable(NamedTuple):
    """Rows of text; the first column is left-aligned, the others are numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, title: str, rows: list[dict[str, str]]) -> TextTable:
        """From rows by column."""
        return cls(title, tuple(rows[0]), tuple(tuple(row.values()) for row in rows))


def number(value: float) -> str:
    """About four digits, with thousands separators; ∞ for infinite, a dash for NaN."""
    if math.isnan(value):
        return NONE
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def with_interval(estimate: Estimate | None, show: Callable[[float], str] = number) -> str:
    """`431.2 [402.1, 455.0]`"""
    if estimate is None or math.isnan(estimate.value):
        return NONE
    value = NEVER if math.isinf(estimate.value) else show(estimate.value)
    return f"{value} [{show(estimate.low)}, {show(estimate.high)}]" if math.isfinite(estimate.low) else value


def small(estimate: Estimate | None) -> str:
    """The same with two digits, for probabilities and ratios."""
    return with_interval(estimate, lambda value: f"{value:.2f}" if math.isfinite(value) else "∞")


def share(fraction: float) -> str:
    return NONE if math.isnan(fraction) else f"{100 * fraction:.1f} %"


def groups_table(comparison: Comparison) -> TextTable:
    """One row for each group."""
    rows = [
        {
            "group": one.group.name,
            "runs": one.group.describe(),
            "area": with_interval(one.area.iqm),
            "final return": with_interval(one.final.iqm),
            "P(better area)": small(one.area.better),
            "P(better final)": small(one.final.better),
            "foreign": share(one.foreign_fraction),
            "wall s": number(one.wall_seconds),
            "steps/s": number(one.steps_per_second),
        }
        for one in comparison.groups
    ]
    return TextTable.of(f"{comparison.metric} over {_steps(comparison)}", rows)


def threshold_table(comparison: Comparison) -> TextTable | None:
    """Two rows for each group, one for each rule; None without a threshold."""
    if comparison.threshold is None:
        return None
    rows = [
        {
            "group": one.group.name,
            "reached by": _RULES[reached.window],
            "runs": f"{reached.runs} of {len(one.scores)}",
            "steps": with_interval(reached.steps),
            "ratio of steps": small(reached.steps_ratio),
            "seconds": with_interval(reached.seconds),
            "ratio of seconds": small(reached.seconds_ratio),
        }
        for one in comparison.groups
        for reached in one.reached
    ]
    return TextTable.of(f"time to {comparison.metric} = {comparison.threshold:.10g}", rows)


def runs_table(comparison: Comparison, beside: Path) -> TextTable:
    """One row for each run; the last column is its path relative to the folder `beside`."""
    rows = [_run_row(comparison, one, score, beside) for one in comparison.groups for score in one.scores]
    return TextTable.of("every run", rows)


def _run_row(comparison: Comparison, one: GroupResult, score: Score, beside: Path) -> dict[str, str]:
    run = score.run
    readings = run.readings.get(comparison.metric)
    peers = ", ".join(f"{peer} {share(fraction)}" for peer, fraction in run.peers.items())
    reached = {
        f"steps to {comparison.threshold:.10g}, {_RULES[window]}": NEVER if math.isinf(steps) else number(steps)
        for window, (steps, _) in zip(WINDOWS, score.reached, strict=False)
    }
    return {
        "group": one.group.name,
        "launch": run.launch.name,
        "seed": NONE if run.seed is None else str(run.seed),
        "status": run.status or "no summary",
        "readings": "0" if readings is None else str(len(readings.step)),
        "steps": number(run.last_step),
        "wall s": number(run.wall_seconds),
        "area": number(score.area),
        "final return": number(score.final),
        **reached,
        "foreign": share(run.foreign_fraction),
        "from": peers or NONE,
        "run": os.path.relpath(run.path, beside),
    }


def definitions(comparison: Comparison) -> dict[str, str]:
    """What each number is, in a sentence."""
    first, level = comparison.groups[0].group.name, f"{100 * LEVEL:g} %"
    found = {
        "metric": f"{comparison.metric} of metrics.jsonl; a reading holds until the next one (no look-ahead).",
        "[low, high]": f"The {level} percentile interval of {comparison.resamples:,} bootstrap resamples, seed "
        f"{comparison.seed}: launches are drawn with replacement, each with all its runs; in a group with one "
        "launch, runs are.",
        "curve": "Interquartile mean over the runs of a group, where all of them have readings, with that interval.",
        "IQM": "Interquartile mean: the mean of the middle half of the runs, with fractions at its edges.",
        "area": f"Mean return of a run over {_steps(comparison)}, which all runs of all groups cover; IQM over runs.",
        "final return": f"Mean return of a run over the last {100 * FINAL_SHARE:g} % of these steps; IQM over runs.",
        "P(better ...)": f"Probability that a random run of the group is better than one of {first}; a tie counts "
        "half. 0.5 means no difference.",
        "p": "How often chance alone would move P(better ...) as far from 0.5: an exact permutation test that deals "
        "out launches to the groups again (runs, where a group has one launch and did not share).",
        "foreign": "Last share/foreign_fraction: the part of all a run learned from that other runs collected.",
        "wall s, steps/s": "Median over the runs of their seconds, and of their env steps per second, start included.",
    }
    if comparison.threshold is not None:
        goal = f"at least {comparison.threshold:.10g}"
        found |= {
            "one reading": f"The first reading of {goal}; luck suffices.",
            "mean of 3 readings": f"The first reading at which the mean of the last 3 was {goal}.",
            "steps, seconds": "Median over the runs of the env steps and seconds until then; a run that never got "
            f"there counts as infinite, so {NEVER} means that at least half of them did not.",
            "ratio": f"That median divided by the one of {first}: below 1 is faster; only where both are finite.",
        }
    return found


def _steps(comparison: Comparison) -> str:
    if comparison.span is None:
        return "no common steps"
    return f"steps {comparison.span.start:,.0f} to {comparison.span.end:,.0f}"


def as_json(comparison: Comparison, verdicts: list[str], warnings: list[str]) -> dict[str, Any]:
    """Everything as plain JSON. null: not known, not reached, or unbounded."""
    content = {
        "metric": comparison.metric,
        "threshold": comparison.threshold,
        "seed": comparison.seed,
        "resamples": comparison.resamples,
        "steps": None if comparison.span is None else list(comparison.span),
        "verdicts": verdicts,
        "warnings": warnings,
        "groups": [_group_json(one) for one in comparison.groups],
    }
    return {name: to_json(value) for name, value in content.items()}


def _group_json(one: GroupResult) -> dict[str, Any]:
    return {
        "name": one.group.name,
        "path": one.group.path,
        "runs": len(one.scores),
        "launches": len(one.group.launches),
        "resampled": one.group.unit,
        "area": one.area.iqm,
        "final_return": one.final.iqm,
        "probability_of_improvement": {"area": one.area.better, "final_return": one.final.better},
        "p": {"area": one.area.p, "final_return": one.final.p},
        "independent": one.independent,
        "reached": [{**reached._asdict(), "of": len(one.scores)} for reached in one.reached],
        "foreign_fraction": one.foreign_fraction,
        "wall_seconds": one.wall_seconds,
        "steps_per_second": one.steps_per_second,
        "curves": {"steps": one.over_steps, "seconds": one.over_seconds},
        "every_run": [_score_json(score) for score in one.scores],
    }


def _score_json(score: Score) -> dict[str, Any]:
    run = score.run
    return {
        "path": run.path,
        "launch": run.launch.name,
        "seed": run.seed,
        "status": run.status,
        "env": run.env,
        "area": score.area,
        "final_return": score.final,
        "reached": [
            {"window": window, "steps": steps, "seconds": seconds}
            for window, (steps, seconds) in zip(WINDOWS, score.reached, strict=False)
        ],
        "foreign_fraction": run.foreign_fraction,
        "peers": run.peers,
        "last_step": run.last_step,
        "wall_seconds": run.wall_seconds,
        "damaged_lines": run.damaged,
    }
