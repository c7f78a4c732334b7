"""What a comparison shows, in a sentence per group, and warnings about what weakens it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from shoal.analysis.results import Comparison, GroupResult, Measure
from shoal.analysis.runs import METRICS, ComparedRun, counted
from shoal.analysis.statistics import smallest_p

_P = 0.05
"""A difference that chance makes more often than this is not reported as one."""
_FEW_UNITS = 5
_SHORT = 0.9
"""A run that covers less than this part of the median run's steps is reported: it shortens everything else."""


def verdicts(comparison: Comparison) -> list[str]:
    """One sentence for each group but the first: did it help?"""
    first, *others = comparison.groups
    if not others:
        return [f"There is nothing to compare {first.group.name} with: only one group was given."]
    return [_verdict(first, other) for other in others]


def _verdict(first: GroupResult, other: GroupResult) -> str:
    pair = f"{other.group.name} against {first.group.name}"
    if smallest_p(other.independent, first.independent) > _P:
        results = f"{counted(other.independent, 'independent result')} against {first.independent}"
        return f"{pair}: cannot tell. {results} can never be told from chance, however good. Repeat the launches."
    if math.isnan(other.area.p) and math.isnan(other.final.p):
        return f"{pair}: cannot tell. No step is covered by all runs, so there is no area and no final return."
    said = {"area": _direction(other.area), "final return": _direction(other.final)}
    seen = ", ".join(f"{name} {text}" for name, text in said.items() if text)
    if not seen:
        return f"{pair}: no difference that could be told from chance, neither in area nor in final return."
    undecided = [name for name, text in said.items() if not text]
    return f"{pair}: {seen}" + (f"; {undecided[0]} undecided." if undecided else ".")


def _direction(measure: Measure) -> str | None:
    if measure.better is None or not measure.p <= _P:
        return None
    return f"{'higher' if measure.better.value > 0.5 else 'lower'} (p = {measure.p:.2g})"


def warnings(comparison: Comparison) -> list[str]:
    """Everything that weakens the numbers, the most serious first."""
    return [
        *_environments(comparison),
        *_overlaps(comparison),
        *_missing(comparison),
        *_span(comparison),
        *_intervals(comparison),
        *_endings(comparison),
    ]


def _environments(comparison: Comparison) -> Iterator[str]:
    found = {
        one.group.name: sorted({run.env for run in one.group.runs if run.env is not None}) for one in comparison.groups
    }
    if len({env for envs in found.values() for env in envs}) > 1:
        listed = "; ".join(f"{name}: {', '.join(envs) or 'unknown'}" for name, envs in found.items())
        yield f"Not all runs are of the same environment, so their returns do not compare ({listed})."


def _overlaps(comparison: Comparison) -> Iterator[str]:
    twice = [path for path, groups in Counter(run.path for run in comparison.runs).items() if groups > 1]
    if twice:
        yield f"{_runs(twice)} in more than one group, such as {twice[0].name}: groups overlap."


def _missing(comparison: Comparison) -> Iterator[str]:
    lacking = [run for run in comparison.runs if comparison.metric not in run.readings]
    if lacking:
        yield (
            f"{_runs(lacking)} without a reading of {comparison.metric}: left out of curves, areas and final "
            f"returns, counted as never having reached a threshold: {_names(lacking)}."
        )
    if comparison.metric == METRICS["rollout"]:
        few = [run for run in comparison.runs if METRICS["eval"] not in run.readings]
        if few:
            yield (
                f"Returns are those of training, with exploration: {_runs(few)} without {METRICS['eval']}, "
                f"such as {few[0].path.name}."
            )
    torn = [run for run in comparison.runs if run.damaged]
    if torn:
        lines = counted(sum(run.damaged for run in torn), "damaged line")
        yield f"{lines} skipped in the metrics of {_names(torn)}."


def _span(comparison: Comparison) -> Iterator[str]:
    if comparison.span is None:
        yield "No step is covered by all runs: there is no area and no final return."
        return
    judged = [run for run in comparison.runs if comparison.metric in run.readings]
    ends = [float(run.readings[comparison.metric].step[-1]) for run in judged]
    usual = sorted(ends)[len(ends) // 2]
    short = [run for run, end in zip(judged, ends, strict=True) if end < _SHORT * usual]
    if short:
        yield (
            f"{_runs(short)} shorter than the others ({_names(short)}): areas and final returns of all groups "
            f"end at step {comparison.span.end:,.0f}, where the usual run ends at {usual:,.0f}."
        )


def _intervals(comparison: Comparison) -> Iterator[str]:
    for one in comparison.groups:
        name, runs = one.group.name, len(one.group.runs)
        if one.group.unit == "nothing":
            yield f"{name} is a single run: it has no interval, and says nothing about the next one."
        elif one.group.unit == "runs":
            tie = "learned from each other" if one.group.shared else "may have more in common than runs of two launches"
            yield (
                f"{name} is one launch: its {runs} runs were drawn one by one. They {tie}, so its intervals "
                "understate the uncertainty."
            )
        elif one.group.units < _FEW_UNITS:
            yield f"{name} has {one.group.units} launches only: intervals from so few are rough, and mostly too narrow."


def _endings(comparison: Comparison) -> Iterator[str]:
    for one in comparison.groups:
        odd = [run for run in one.group.runs if run.status not in ("solved", "finished")]
        if odd:
            how = ", ".join(sorted({run.status or "no summary: killed, or still running" for run in odd}))
            yield f"{one.group.name}: {_runs(odd)} that did not end by themselves ({how}): {_names(odd)}."
        unsaid = [run for run in one.group.runs if math.isnan(run.foreign_fraction)]
        if one.group.shared and unsaid:
            yield f"{one.group.name}: {_runs(unsaid)} without share/foreign_fraction; its mean leaves them out."


def _runs(runs: Sequence[object]) -> str:
    return counted(len(runs), "run")


def _names(runs: Sequence[ComparedRun], most: int = 3) -> str:
    listed = ", ".join(f"{run.launch.name}/{run.path.name}" for run in runs[:most])
    return listed + (f" and {len(runs) - most} more" if len(runs) > most else "")
