"""Breakout with half of every batch replayed: uniform against elite strategy 3, per seed. For a machine with a GPU.

    python benchmarks/breakout.py --settings actors=8 actor.inference=served learner.device=cuda learner.compile=true

Two runs of one seed, side by side, differ only in the selector. The setup is that of elite replay's authors: lost lives
end episodes, CLEAR without LASER, a memory of 500,000 steps, candidates that decrease from 6 over 140,000 batches.
The curve of a run is the mean return of its last 100 training games. `results/breakout.json` is written after every
pair. A pair that it already holds, with the same settings, is not repeated. `--plot` draws the curves.
"""

from __future__ import annotations

import argparse
import bisect
import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from _harness import RESULTS, Row, report, say
from impala import train

PACKAGES = ("ale-py", "gymnasium", "numpy", "ray", "torch")
ROOT = Path(__file__).resolve().parents[1]
FILE = RESULTS / "breakout.json"
IMAGE = ROOT / "docs" / "images" / "breakout_elite.png"
SELECTORS = {
    "uniform": "{type: uniform, ratio: 0.5, capacity: 25_000}",
    "elite 3": "{type: elite, ratio: 0.5, capacity: 25_000, strategy: 3, lambda: 6, anneal_draws: 70_000}",
}
"""A sequence is 20 steps."""
GAME = ["env.id=BreakoutNoFrameskip-v4", "env.episodic_life=true", "clear=true", "laser=false"]
GAME += ["replay.capacity=600_000", "stop.mean_return=null"]
ONE_EVALUATION = ["evaluation.every_steps=1_000_000_000", "evaluation.episodes=1", "evaluation.lanes=1"]
ONE_EVALUATION += ["env.max_episode_steps=10_000"]
"""Limit of the final evaluation: a greedy policy that never serves would play half an hour of game time."""
STEPS = 4_000_000
"""The step with the largest difference between the authors' curves: 188 against 134."""
MARK = 500_000
"""Environment steps between two rows of the table."""


def one_run(selector: str, seed: int, seconds: float, settings: list[str]) -> dict[str, Any]:
    """The run's curve (step, seconds, mean return) and its speed."""
    parts = f"replay=[{{type: fifo, ratio: 0.5}}, {SELECTORS[selector]}]"
    arguments = ["--seed", str(seed), "--seconds", str(seconds), f"stop.steps={STEPS}", *GAME, parts]
    arguments += [*ONE_EVALUATION, *settings]
    summary, lines, _ = train("pong_impala", *arguments, limit=seconds + 300.0)
    curve = [
        [line["step"], line["wall"], line["rollout/ep_rew_mean"]]
        for line in lines
        if line.get("rollout/ep_rew_mean") is not None
    ]
    speed = {name: summary[name] for name in ("env_steps", "updates", "steps_per_second", "updates_per_second")}
    return {"selector": selector, "seed": seed, "seconds": seconds, "settings": settings, **speed, "curve": curve}


def rows(runs: list[dict[str, Any]]) -> list[Row]:
    """Mean return over the seeds at every mark that all runs reached, and the speed."""
    found = []
    last = min(run["curve"][-1][0] if run["curve"] else 0 for run in runs)
    for mark in range(MARK, last + 1, MARK):
        at = {name: [_at(run["curve"], mark) for run in runs if run["selector"] == name] for name in SELECTORS}
        mean = {name: statistics.mean(returns) for name, returns in at.items()}
        spread = {f"deviation, {name}": statistics.stdev(returns) for name, returns in at.items() if len(returns) > 1}
        ratio = mean["elite 3"] / mean["uniform"] if mean["uniform"] > 0 else None
        what = f"mean return at {mark / 1e6:g}M steps, {len(at['uniform'])} seed(s): elite 3"
        found.append(Row(what, mean["elite 3"], mean["uniform"], "uniform", ratio, others=spread))
    rates = [
        statistics.mean(run["updates_per_second"] for run in runs if run["selector"] == name) for name in SELECTORS
    ]
    found.append(Row("updates/s: elite 3", rates[1], rates[0], "uniform", rates[1] / rates[0]))
    return found


def _at(curve: list[list[float]], step: int) -> float:
    """The last known return at a step."""
    place = bisect.bisect_right([point[0] for point in curve], step)
    return curve[max(0, place - 1)][2]


def plot(runs: list[dict[str, Any]]) -> None:
    """Draws one colour per selector, one line per seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for colour, name in enumerate(SELECTORS):
        for number, run in enumerate(run for run in runs if run["selector"] == name):
            steps, _, returns = zip(*run["curve"], strict=True)
            label = name if number == 0 else None
            axes.plot([step / 1e6 for step in steps], returns, color=f"C{colour}", alpha=0.8, lw=1.2, label=label)
    axes.set(
        xlabel="million environment steps", ylabel="mean return of the last 100 training episodes", title="Breakout"
    )
    axes.legend(frameon=False)
    figure.savefig(IMAGE, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds, from 1 on (3)")
    parser.add_argument("--seconds", type=float, default=600.0, help="time limit of each run (600)")
    parser.add_argument("--settings", nargs="*", default=[], metavar="KEY=VALUE", help="settings for every run")
    parser.add_argument("--plot", action="store_true", help="also draw the curves into docs/images")
    options = parser.parse_args()
    runs: list[dict[str, Any]] = json.loads(FILE.read_text())["runs"] if FILE.exists() else []
    asked = {"seconds": options.seconds, "settings": options.settings}
    runs = [run for run in runs if {name: run[name] for name in asked} == asked]
    for seed in range(1, options.seeds + 1):
        if any(run["seed"] == seed for run in runs):
            continue
        with ThreadPoolExecutor(len(SELECTORS)) as pool:
            runs += pool.map(partial(one_run, seed=seed, **asked), SELECTORS)
        for one in runs[-len(SELECTORS) :]:
            returned = one["curve"][-1][2] if one["curve"] else float("nan")
            say(f"  seed {seed}: {one['selector']} {returned:.1f} after {one['env_steps']:,} steps")
        report("breakout", rows(runs), PACKAGES, asked)
        FILE.write_text(json.dumps(json.loads(FILE.read_text()) | {"runs": runs}, indent=1) + "\n")
    if options.plot:
        plot(runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
