"""The comparison as words: tables for the terminal and the page, what each number means, and JSON."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any, NamedTuple

from shoal.analysis.results import FINAL_SHARE, WINDOWS, Comparison, GroupResult, Reached, Score
from shoal.analysis.statistics import LEVEL, Estimate

NONE = "–"
NEVER = "not reached"
_RULES = {1: "one reading", 3: "mean of 3 readings"}


class TextTable(NamedTuple):
    """Rows of text; the first column is left-aligned, the others are numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def number(value: float) -> str:
    """Four digits or so, thousands separated; infinite is the sign for it, NaN a dash."""
    if math.isnan(value):
        return NONE
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def with_interval(estimate: Estimate | None) -> str:
    """`431.2 [402.1, 455.0]`"""
    if estimate is None or math.isnan(estimate.value):
        return NONE
    value = NEVER if math.isinf(estimate.value) else number(estimate.value)
    return value if not math.isfinite(estimate.low) else f"{value} [{number(estimate.low)}, {number(estimate.high)}]"


def small(estimate: Estimate | None) -> str:
    """The same with two digits, for probabilities and ratios."""
    if estimate is None or math.isnan(estimate.value):
        return NONE
    low, high = (f"{bound:.2f}" if math.isfinite(bound) else "∞" for bound in (estimate.low, estimate.high))
    return f"{estimate.value:.2f}" + ("" if math.isnan(estimate.low) else f" [{low}, {high}]")


def share(fraction: float) -> str:
    return NONE if math.isnan(fraction) else f"{100 * fraction:.1f} %"


def groups_table(comparison: Comparison) -> TextTable:
    """One row for each group."""
    columns = (
        "group",
        "runs",
        "area",
        "final return",
        "P(better area)",
        "P(better final)",
        "foreign",
        "wall s",
        "steps/s",
    )
    rows = tuple(
        (
            one.group.name,
            one.group.describe(),
            with_interval(one.area),
            with_interval(one.final),
            small(one.better_area),
            small(one.better_final),
            share(one.foreign_fraction),
            number(one.wall_seconds),
            number(one.steps_per_second),
        )
        for one in comparison.groups
    )
    return TextTable(f"{comparison.metric} over {_steps(comparison)}", columns, rows)


def threshold_table(comparison: Comparison) -> TextTable | None:
    """Two rows for each group, one for each rule; None without a threshold."""
    if comparison.threshold is None:
        return None
    columns = ("group", "reached by", "runs", "steps", "ratio of steps", "seconds", "ratio of seconds")
    rows = tuple(_reached_row(one, reached) for one in comparison.groups for reached in one.reached)
    return TextTable(f"time to {comparison.metric} = {comparison.threshold:.10g}", columns, rows)


def _reached_row(one: GroupResult, reached: Reached) -> tuple[str, ...]:
    return (
        one.group.name,
        _RULES[reached.window],
        f"{reached.runs} of {len(one.scores)}",
        with_interval(reached.steps),
        small(reached.steps_ratio),
        with_interval(reached.seconds),
        small(reached.seconds_ratio),
    )


def runs_table(comparison: Comparison, beside: Path) -> TextTable:
    """One row for each run; the last column is its path as seen from the folder `beside`."""
    columns = ["group", "launch", "seed", "status", "readings", "steps", "wall s", "area", "final return"]
    columns += [f"steps to {comparison.threshold:.10g}, {_RULES[window]}" for window in _windows(comparison)]
    columns += ["foreign", "from", "run"]
    rows = tuple(_run_row(one, score, comparison.metric, beside) for one in comparison.groups for score in one.scores)
    return TextTable("every run", tuple(columns), rows)


def _run_row(one: GroupResult, score: Score, metric: str, beside: Path) -> tuple[str, ...]:
    run = score.run
    readings = run.readings.get(metric)
    peers = ", ".join(f"{peer} {share(fraction)}" for peer, fraction in run.peers.items())
    return (
        one.group.name,
        run.launch.name,
        NONE if run.seed is None else str(run.seed),
        run.status or "no summary",
        "0" if readings is None else str(len(readings.step)),
        number(run.last_step),
        number(run.wall_seconds),
        number(score.area),
        number(score.final),
        *(NEVER if math.isinf(steps) else number(steps) for steps, _ in score.reached),
        share(run.foreign_fraction),
        peers or NONE,
        os.path.relpath(run.path, beside),
    )


def definitions(comparison: Comparison) -> list[tuple[str, str]]:
    """What each number is, in a sentence."""
    first, level = comparison.groups[0].group.name, f"{100 * LEVEL:g} %"
    found = [
        ("metric", f"{comparison.metric} of metrics.jsonl; a reading holds until the next one (no look-ahead)."),
        (
            "[low, high]",
            f"The {level} percentile interval of {comparison.resamples:,} bootstrap resamples, seed {comparison.seed}: "
            "launches are drawn with replacement, each with all its runs; in a group with one launch, runs are.",
        ),
        (
            "curve",
            "Interquartile mean over the runs of a group, where all of its runs have readings, with that interval.",
        ),
        ("IQM", "Interquartile mean: the mean of the middle half of the runs, with fractions at its edges."),
        (
            "area",
            f"Mean return of a run over {_steps(comparison)}, which all runs of all groups cover; IQM over the runs.",
        ),
        (
            "final return",
            f"Mean return of a run over the last {100 * FINAL_SHARE:g} % of the same steps; IQM over the runs.",
        ),
        (
            "P(better ...)",
            f"Probability that a run of the group, drawn at random, is better than one of {first}; a tie counts half. "
            "0.5 means no difference.",
        ),
        (
            "p",
            "How often chance alone would move P(better ...) as far from 0.5: an exact permutation test that deals out "
            "launches to the groups anew (runs, where a group has one launch and did not share).",
        ),
        ("foreign", "Last share/foreign_fraction: the part of all a run learned from that other runs collected."),
        (
            "wall s, steps/s",
            "Median over the runs of their seconds, and of their env steps per second, start included.",
        ),
    ]
    if comparison.threshold is not None:
        found += [
            ("one reading", f"The first reading of at least {comparison.threshold:.10g}; luck suffices."),
            (
                "mean of 3 readings",
                f"The first reading at which the mean of the last 3 was at least {comparison.threshold:.10g}.",
            ),
            (
                "steps, seconds",
                "Median over the runs of the env steps and seconds until then; a run that never got there counts as "
                f"infinite, so {NEVER} means that at least half of them did not.",
            ),
            ("ratio", f"That median divided by the one of {first}: below 1 is faster; only where both are finite."),
        ]
    return found


def _windows(comparison: Comparison) -> tuple[int, ...]:
    return () if comparison.threshold is None else WINDOWS


def _steps(comparison: Comparison) -> str:
    if comparison.span is None:
        return "no common steps"
    return f"steps {comparison.span.start:,.0f} to {comparison.span.end:,.0f}"


def as_json(comparison: Comparison, verdicts: list[str], warnings: list[str]) -> dict[str, Any]:
    """Everything as plain JSON. null: not known, not reached, or without bound."""
    return {
        "metric": comparison.metric,
        "threshold": comparison.threshold,
        "seed": comparison.seed,
        "resamples": comparison.resamples,
        "steps": None if comparison.span is None else list(comparison.span),
        "verdicts": verdicts,
        "warnings": warnings,
        "groups": [_group_json(one) for one in comparison.groups],
    }


def _group_json(one: GroupResult) -> dict[str, Any]:
    bands = {"steps": one.over_steps, "seconds": one.over_seconds}
    return {
        "name": one.group.name,
        "path": str(one.group.path),
        "runs": len(one.scores),
        "launches": len(one.group.launches),
        "resampled": one.unit,
        "area": _plain(one.area),
        "final_return": _plain(one.final),
        "probability_of_improvement": {"area": _plain(one.better_area), "final_return": _plain(one.better_final)},
        "p": {"area": _plain(one.p_area), "final_return": _plain(one.p_final)},
        "independent": one.independent,
        "reached": [
            {key: _plain(value) for key, value in reached._asdict().items()} | {"of": len(one.scores)}
            for reached in one.reached
        ],
        "foreign_fraction": _plain(one.foreign_fraction),
        "wall_seconds": _plain(one.wall_seconds),
        "steps_per_second": _plain(one.steps_per_second),
        "curves": {
            name: {key: _plain(v.tolist()) for key, v in band._asdict().items()} for name, band in bands.items()
        },
        "every_run": [_score_json(score) for score in one.scores],
    }


def _score_json(score: Score) -> dict[str, Any]:
    run = score.run
    return {
        "path": str(run.path),
        "launch": run.launch.name,
        "seed": run.seed,
        "status": run.status,
        "env": run.env,
        "area": _plain(score.area),
        "final_return": _plain(score.final),
        "reached": [
            {"window": window, "steps": _plain(steps), "seconds": _plain(seconds)}
            for window, (steps, seconds) in zip(WINDOWS, score.reached, strict=False)
        ],
        "foreign_fraction": _plain(run.foreign_fraction),
        "peers": {peer: _plain(fraction) for peer, fraction in run.peers.items()},
        "last_step": _plain(run.last_step),
        "wall_seconds": _plain(run.wall_seconds),
        "damaged_lines": run.damaged,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Estimate):
        return {key: _plain(part) for key, part in value._asdict().items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
