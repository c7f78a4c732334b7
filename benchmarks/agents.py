"""What agents learn together, on two cores: `make bench-agents`. Every run is inline with one thread.

    --only alone     path finding with one agent: are all fixed cases solved, and how much longer are its ways?
    --only talking   path finding with communication and without, the same steps and seeds
    --only spread    mpe2's simple_spread with nothing set, beside agents that learn and act by themselves

Scores are of greedy episodes with the final weights. Runs take minutes; finished ones are kept in
results/agents-partial.jsonl, and the next call goes on with what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

from _harness import RESULTS, Row, described, report, say

PACKAGES = ("gymnasium", "mpe2", "numba", "numpy", "pettingzoo", "torch")
SEEDS, EPISODES = 3, 200
ROOT = Path(__file__).resolve().parents[1]
STORE = RESULTS / "agents-partial.jsonl"
CASES = {"env.kwargs.cases": 200, "env.kwargs.density": 0.3, "env.max_episode_steps": 256}
ALONE = {"env.kwargs.agents": 1, "env.kwargs.neighbours": 0, "curriculum.limit.agents": 1}
SILENT = {"communication": "none"}
SHORT = {"stop.steps": 150_000, "schedule_updates": 4_600}
"""Half of the scenario's steps."""
SPREAD, SPREAD_STEPS = "mpe2:simple_spread_v3", 60_000
LONGER = 1.02
"""How much longer than the shortest ways those of one agent may be."""


class Trial(NamedTuple):
    """What is trained, and the sets of 200 greedy episodes that judge it."""

    target: str
    settings: dict[str, Any]
    judged: list[dict[str, Any]]


def teams(agents: int) -> dict[str, Any]:
    """200 fixed cases with so many agents."""
    return {**CASES, "env.kwargs.agents": agents}


TRIALS = {
    "alone": {"one agent": Trial("pathfinding_small", ALONE, [{**teams(1), "env.kwargs.neighbours": 0}])},
    "talking": {
        "neighbours": Trial("pathfinding_small", SHORT, [teams(2), teams(4)]),
        "none": Trial("pathfinding_small", SHORT | SILENT, [teams(2), teams(4)]),
    },
    "spread": {"neighbours": Trial(SPREAD, {}, [{}]), "none": Trial(SPREAD, SILENT, [{}])},
}


def measure(part: str, name: str, seed: int) -> list[dict[str, float]]:
    """Trains and plays: mean return and length, and what the environment says of its episodes."""
    import shoal

    trial = TRIALS[part][name]
    spread: dict[str, Any] = {"algo": "comm-dqn", "steps": SPREAD_STEPS} if trial.target == SPREAD else {}
    with tempfile.TemporaryDirectory() as folder:
        run = shoal.train(
            trial.target, seed=seed, runtime="inline", out=folder, quiet=True, settings=trial.settings, **spread
        )
        found = []
        for settings in trial.judged:
            overrides = [f"{key}={value}" for key, value in settings.items()]
            played = shoal.load(run.path, checkpoint="last", overrides=overrides).evaluate(EPISODES, seed=10_000)
            found.append({"return": played.mean, "length": statistics.fmean(played.lengths), **played.metrics})
        return found


def missing(parts: list[str], seeds: int) -> tuple[dict[tuple[str, str, int], Any], list[tuple[str, str, int]]]:
    """Results that are there, and the runs that are not."""
    lines = STORE.read_text().splitlines() if STORE.exists() else []
    there = {tuple(one["run"]): one for one in map(json.loads, lines)}
    wanted = [(part, name, seed) for part in parts for seed in range(1, seeds + 1) for name in TRIALS[part]]
    return there, [unit for unit in wanted if unit not in there]


def run(unit: tuple[str, str, int]) -> dict[str, Any]:
    """In a process of its own; keeps the result."""
    command = [sys.executable, "-W", "ignore", __file__, "--unit", json.dumps(unit)]
    environment, began = os.environ | {"PYTHONPATH": str(ROOT / "src")}, time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=7_200)
    if done.returncode:
        raise SystemExit(f"{unit} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    code = {name: value for name, value in described(()).items() if name in ("commit", "time")}
    one = {"run": unit, "found": json.loads(done.stdout.splitlines()[-1]), **code}
    with STORE.open("a") as file:
        file.write(json.dumps(one) + "\n")
    said = "; ".join(f"return {each['return']:.2f}, solved {each.get('success_rate', '-')}" for each in one["found"])
    say(f"  {' '.join(map(str, unit))}: {said} ({time.monotonic() - began:.0f} s)")
    return one


def interval(values: list[float]) -> tuple[float, float]:
    """Of the mean, 95 %, by Student's t: there are few seeds."""
    quantile = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}.get(len(values), 2.0)
    half = quantile * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return statistics.fmean(values) - half, statistics.fmean(values) + half


def judged(found: dict[tuple[str, str, int], Any], part: str, seeds: int) -> list[Row]:
    """The rows of a part; bars are open where seeds are missing."""

    def each(name: str, place: int, what: str) -> list[float]:
        return [found[part, name, seed]["found"][place][what] for seed in range(1, seeds + 1)]

    def per_seed(name: str, values: list[float]) -> dict[str, float]:
        return {f"{name}, seed {seed}": value for seed, value in enumerate(values, 1)}

    full = seeds >= SEEDS
    if part == "alone":
        solved, length = each("one agent", 0, "success_rate"), each("one agent", 0, "length")
        shortest = each("one agent", 0, "shortest")
        ratios = [way / least for way, least in zip(length, shortest, strict=True)]
        return [
            Row("one agent: share of 200 fixed cases solved, worst seed", min(solved), bar="= 1",
                holds=min(solved) == 1.0 if full else None, others=per_seed("solved", solved)),
            Row("one agent: steps in units of the shortest ways, worst seed", max(ratios), bar=f"<= {LONGER}x",
                holds=max(ratios) <= LONGER if full else None, others=per_seed("steps", ratios)),
        ]  # fmt: skip
    what, titles = "success_rate", ["200 cases with 2 agents solved", "200 cases with 4 agents solved"]
    if part == "spread":
        what, titles = "return", [f"simple_spread, {SPREAD_STEPS:,} steps: mean return"]
    rows = []
    for place, title in enumerate(titles):
        with_, without = each("neighbours", place, what), each("none", place, what)
        others = per_seed("with", with_) | per_seed("without", without)
        for name, values in (("with", with_), ("without", without)):
            others |= dict(zip((f"{name}, from", f"{name}, to"), interval(values), strict=True))
        better = statistics.fmean(with_) > statistics.fmean(without)
        bar = "better" if part == "spread" else ""
        holds = better if bar and full else None
        mean = statistics.fmean(with_)
        rows.append(Row(title, mean, statistics.fmean(without), "no communication", None, bar, holds, others))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TRIALS, action="append", help="only this part; can be repeated")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"number of seeds, from 1 on ({SEEDS})")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time (cores)")
    parser.add_argument("--report", action="store_true", help="run nothing: what is there")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a bar does not hold")
    parser.add_argument("--unit", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.unit:
        print(json.dumps(measure(*json.loads(options.unit))))
        return 0
    parts = options.only or list(TRIALS)
    found, wanted = missing(parts, options.seeds)
    if not options.report:
        with ThreadPoolExecutor(options.jobs) as pool:
            found |= dict(zip(wanted, pool.map(run, wanted), strict=True))
    rows = [row for part in parts for row in judged(found, part, options.seeds)]
    name = "agents" if parts == list(TRIALS) else "agents-partial"
    holds = report(name, rows, PACKAGES, {"runs": list(found.values())})
    return 1 if options.strict and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
