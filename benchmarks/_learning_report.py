"""From the runs of `learning.py` to its table, `results/learning.json`, `docs/learning.md` and the picture."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from _harness import Row, console, report
from _learning_plan import CONTENDERS, FILE, OURS, PEERS, RANDOM, ROOT, SEEDS, TASKS, Task, Unit
from rich.table import Table

from shoal.analysis import statistics as stats

PACKAGES = ("gymnasium", "mujoco", "numpy", "stable-baselines3", "torch")
PAGE = ROOT / "docs" / "learning.md"
IMAGE = ROOT / "docs" / "images" / "learning.png"
MARKS = ("<!-- results: written by make bench-learning -->", "<!-- end of results -->")
SHARE = 0.8
"""The bar: the part of its environments on which an algorithm is at least as good as the better of SB3's defaults."""
Found = Mapping[Unit, dict[str, Any]]


@dataclass(frozen=True)
class Line:
    """A contender on an environment, over its seeds."""

    contender: str
    seeds: int
    iqm: stats.Estimate
    worst: float
    goal_steps: float
    """Median over the seeds of the first evaluation at the goal or above; infinite if most seeds have none."""
    goal_seconds: float
    reached: int
    seconds: float
    """Median."""
    as_good: bool | None = None
    """IQM at least that of the better of SB3's defaults; None for others than Shoal, or without both of SB3's."""
    beats_random: bool | None = None
    """The worst seed is better than the random policy's mean."""


def summarise(found: Found, task: Task, steps: int | None = None) -> list[Line]:
    """One line per contender that has results, in the usual order."""
    of: dict[str, list[dict[str, Any]]] = {}
    for unit, one in sorted(found.items(), key=lambda item: item[0].seed):
        if unit.env == task.env and unit.steps == (steps or task.steps) and "error" not in one:
            of.setdefault(unit.contender, []).append(one)
    iqms = {name: interquartile([one["score"] for one in runs]) for name, runs in of.items()}
    peers = [iqms[name].value for name in PEERS[task.continuous] if name in iqms]
    best = max(peers) if len(peers) == len(PEERS[task.continuous]) else None
    chance = iqms[RANDOM].value if RANDOM in iqms else None
    lines = []
    for name in (one for one in CONTENDERS if one in of):
        runs, ours = of[name], name in OURS[task.continuous]
        goals = [first_at(one["curve"], task.goal) for one in runs]
        worst = min(one["score"] for one in runs)
        lines.append(
            Line(
                name,
                len(runs),
                iqms[name],
                worst,
                statistics.median(step for step, _ in goals),
                statistics.median(seconds for _, seconds in goals),
                sum(math.isfinite(step) for step, _ in goals),
                statistics.median(one["seconds"] for one in runs),
                iqms[name].value >= best if ours and best is not None else None,
                worst > chance if ours and chance is not None else None,
            )
        )
    return lines


def interquartile(scores: list[float]) -> stats.Estimate:
    """The IQM over seeds, with an interval where three or more seeds allow one."""
    values, rng = np.asarray([scores], np.float64), np.random.default_rng(1)
    resamples = 2000 if len(scores) >= 3 else 0
    counts = stats.resample_counts(np.arange(len(scores)), resamples, rng)
    return stats.estimate(lambda drawn: stats.iqm(values, drawn)[:, 0], counts)


def first_at(curve: list[list[float]], goal: float) -> tuple[float, float]:
    """Steps and seconds of the first evaluation at the goal or above; infinite if there is none."""
    return next(((step, seconds) for step, seconds, mean in curve if mean >= goal), (math.inf, math.inf))


def bars(lines: Mapping[str, list[Line]]) -> list[Row]:
    """Shoal's figures, then two bars per algorithm; a bar is judged when all environments and seeds are measured.

    Args:
        lines: per environment, from `summarise`.
    """
    rows, judged = [], []
    for kind in (False, True):
        tasks = [env for env, task in TASKS.items() if task.continuous == kind]
        for name in OURS[kind]:
            mine = {env: line for env in tasks for line in lines.get(env, ()) if line.contender == name}
            rows += [_figure(env, line, lines[env]) for env, line in mine.items()]
            needed = (name, *PEERS[kind], RANDOM)
            fewest = min((line.seeds for env in mine for line in lines[env] if line.contender in needed), default=0)
            for what, verdicts, share in (
                ("IQM at least SB3's better default", [line.as_good for line in mine.values()], SHARE),
                ("worst seed better than random", [line.beats_random for line in mine.values()], 1.0),
            ):
                if known := [one for one in verdicts if one is not None]:
                    part = sum(known) / len(known)
                    text = f"{name}: {what}: {sum(known)} of {len(known)} environments"
                    text += f", {len(tasks) - len(known)} not measured" if len(known) < len(tasks) else ""
                    text += f", only {fewest} seed(s) of some" if fewest < SEEDS else ""
                    complete = len(known) == len(tasks) and fewest >= SEEDS
                    judged.append(Row(text, part, bar=f">= {share:g}", holds=part >= share if complete else None))
    return rows + judged


def _figure(env: str, line: Line, others: list[Line]) -> Row:
    peers = [one for one in others if one.contender in PEERS[TASKS[env].continuous]]
    best = max(peers, key=lambda one: one.iqm.value, default=None)
    beside = {"worst seed": line.worst} | {one.contender: one.iqm.value for one in others if one.contender == RANDOM}
    what = f"{line.contender}, {env}: IQM of {line.seeds} seed(s)"
    if best is None:
        return Row(what, line.iqm.value, others=beside)
    return Row(what, line.iqm.value, best.iqm.value, best.contender, others=beside)


HEADINGS = ("contender", "IQM [95 %]", "worst seed", "steps to the goal", "seconds to the goal", "seconds per run")
HEADINGS += ("at least SB3", "worst > random")


def cells(line: Line, seeds: int) -> tuple[str, ...]:
    """A line of the table as text; `seeds` is the usual number, others are shown."""
    low, high = line.iqm.low, line.iqm.high
    name = line.contender + (f" ({line.seeds} seeds)" if line.seeds != seeds else "")
    interval = "" if math.isnan(low) else f" [{number(low)}, {number(high)}]"
    some = f" ({line.reached} of {line.seeds})" if 0 < line.reached < line.seeds else ""
    goal = f"{line.goal_steps:,.0f}" if math.isfinite(line.goal_steps) else "–"
    seconds = f"{line.goal_seconds:,.0f}" if math.isfinite(line.goal_seconds) else "–"
    verdict = {True: "yes", False: "**no**", None: ""}
    figures = number(line.iqm.value) + interval, number(line.worst), goal + some, seconds, f"{line.seconds:,.0f}"
    if line.contender == RANDOM:
        figures = (number(line.iqm.value), "", "", "", "")
    return (name, *figures, verdict[line.as_good], verdict[line.beats_random])


def number(value: float) -> str:
    """Three digits or so, as returns are read."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 2 else f"{value:.2f}"


def failures(found: Found, steps: int | None) -> list[str]:
    """A sentence for each run that failed last."""
    return [
        f"{unit}: {one['error']}"
        for unit, one in found.items()
        if "error" in one and unit.steps == (steps or TASKS[unit.env].steps)
    ]


def sources(found: Found) -> list[str]:
    """Which code was measured: a sentence per contender."""
    of: dict[str, dict[str, int]] = {}
    for unit, one in found.items():
        if (source := one.get("source")) and unit.steps == TASKS[unit.env].steps and "error" not in one:
            name = f"SB3 {source['sb3']}" if "sb3" in source else f"{source['commit']} (sources {source['sources']})"
            counts = of.setdefault(unit.contender, {})
            counts[name] = counts.get(name, 0) + 1
    return [
        f"{name}: " + ", ".join(f"{version}, {runs} runs" for version, runs in of[name].items())
        for name in CONTENDERS
        if name in of
    ]


def page(found: Found, lines: Mapping[str, list[Line]], rows: list[Row]) -> str:
    """The part of docs/learning.md that is written by program."""
    text = ["| algorithm | bar | share | holds |", "|---|---|---|---|"]
    for row in rows:
        if row.bar:
            name, what = row.what.split(": ", 1)
            holds = {True: "yes", False: "**no**", None: "not yet known"}[row.holds]
            text.append(f"| {name} | {what} | {row.shoal:.0%} (bar {float(row.bar[3:]):.0%}) | {holds} |")
    text += ["", "![Learning curves](images/learning.png)", ""]
    text += [
        "Mean over the seeds of the evaluations during training. Dashed: SB3. Dash-dotted: the goal. Dotted: random.",
        "",
    ]
    for env, some in lines.items():
        task, usual = TASKS[env], max(line.seeds for line in some)
        text += [f"### {env}", "", f"{task.steps:,} steps, goal {task.goal:g}, {usual} seed(s)."]
        text += ["", f"| {' | '.join(HEADINGS)} |", "|---" + "|---:" * 5 + "|---" * 2 + "|"]
        text += [f"| {' | '.join(cells(line, usual))} |" for line in some] + [""]
    if failed := failures(found, None):
        text += ["### Failed runs", "", *(f"- {one}" for one in failed), ""]
    where = sorted({f"{one['machine']['cpu']}, {one['machine']['jobs']} runs at a time" for _, one in _own(found)})
    text += ["### Code and machine", "", *(f"- {one}" for one in (*sources(found), *where)), ""]
    return "\n".join(text)


def put_between(marks: tuple[str, str], text: str, new: str) -> str:
    """Replaces what is between two marks."""
    before, rest = text.split(marks[0])
    return before + marks[0] + "\n\n" + new.strip() + "\n\n" + marks[1] + rest.split(marks[1])[1]


def draw(found: Found) -> None:
    """One panel per environment, the mean of the seeds per contender, in bins of a twentieth of the steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    learned = {unit.env for unit, one in _own(found) if one["curve"]}
    shown = [task for task in TASKS.values() if task.env in learned]
    if not shown:
        return
    columns = 3
    figure, axes = pyplot.subplots(-(-len(shown) // columns), columns, figsize=(11, 2.7 * -(-len(shown) // columns)))
    for axis, task in zip(axes.flat, shown, strict=False):
        for name in CONTENDERS:
            curves = [one["curve"] for unit, one in _own(found) if (unit.contender, unit.env) == (name, task.env)]
            if points := mean_curve([curve for curve in curves if curve], task.steps):
                everyone = (*OURS[task.continuous], *PEERS[task.continuous])
                colour = f"C{everyone.index(name)}" if name in everyone else ("0.35", "0.65")["ppo" in name]
                style = "-" if name in OURS[task.continuous] else "--"
                axis.plot(*zip(*points, strict=True), style, color=colour, lw=1.3, label=name)
        chance = [one["score"] for unit, one in _own(found) if (unit.contender, unit.env) == (RANDOM, task.env)]
        for level, style in ((task.goal, "-."), *((statistics.fmean(chance), ":"),) * bool(chance)):
            axis.axhline(level, color="0.6", lw=0.8, ls=style)
        if task.env == "CliffWalking-v1":
            axis.set_yscale("symlog")
        axis.set_title(task.env, fontsize=9)
        axis.tick_params(labelsize=7)
        axis.xaxis.set_major_formatter(lambda step, _: f"{step / 1000:g}k")
        axis.legend(fontsize=6, frameon=False)
    for axis in list(axes.flat)[len(shown) :]:
        axis.set_visible(False)
    figure.tight_layout()
    IMAGE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(IMAGE, dpi=90, metadata={"Software": None})
    pyplot.close(figure)


def _own(found: Found) -> list[tuple[Unit, dict[str, Any]]]:
    """Good runs with their environment's own number of steps."""
    return [(unit, one) for unit, one in found.items() if unit.steps == TASKS[unit.env].steps and "error" not in one]


def mean_curve(curves: list[list[list[float]]], steps: int, bins: int = 20) -> list[tuple[float, float]]:
    """The mean return per bin of steps, at the mean step, over all seeds."""
    inside: dict[int, list[list[float]]] = {}
    for curve in curves:
        for point in curve:
            inside.setdefault(min(int(point[0] * bins / steps + 0.5), bins), []).append(point)
    binned = [np.mean(points, axis=0) for _, points in sorted(inside.items())]
    return [(float(mean[0]), float(mean[2])) for mean in binned]


def write(found: Found, steps: int | None = None) -> bool:
    """Prints the tables. With the environments' own steps, also writes the results, the page and the picture."""
    lines = {env: some for env, task in TASKS.items() if (some := summarise(found, task, steps))}
    for env, some in lines.items():
        usual = max(line.seeds for line in some)
        title = f"{env}: {steps or TASKS[env].steps:,} steps, goal {TASKS[env].goal:g}, {usual} seed(s)"
        table = Table(*HEADINGS, title=title, title_justify="left")
        for line in some:
            table.add_row(*(cell.replace("**no**", "[bold red]NO[/]") for cell in cells(line, usual)))
        console.print(table)
    for one in failures(found, steps):
        console.print(f"[bold red]failed[/] {one}", highlight=False)
    rows = bars(lines)
    if steps is not None or not lines:
        return all(row.holds is not False for row in rows)
    holds = report("learning", rows, PACKAGES, {"tasks": [task._asdict() for task in TASKS.values()]})
    if unknown := sum(bool(row.bar) and row.holds is None for row in rows):
        console.print(f"{unknown} bars are not judged yet: runs are missing.")
    head = json.dumps(json.loads(FILE.read_text()), indent=1).removesuffix("\n}")
    kept = ",\n".join("  " + json.dumps(one) for _, one in _own(found))
    FILE.write_text(f'{head},\n "units": [\n{kept}\n ]\n}}\n')
    draw(found)
    if PAGE.exists():
        PAGE.write_text(put_between(MARKS, PAGE.read_text(), page(found, lines, rows)))
        console.print(f"{PAGE} and {IMAGE} written.")
    return holds
