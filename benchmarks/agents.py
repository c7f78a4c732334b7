"""What agents learn together, on two cores: `make bench-agents`. Every run is inline with one thread.

    --only alone     path finding with one agent: are all fixed cases solved, and how much longer are its ways?
    --only teams     path finding after twenty minutes, judged with more agents and on larger maps, too
    --only talking   path finding with communication and without, the same steps and seeds
    --only spread    mpe2's simple_spread with nothing set, beside independent learners (SB3's DQN, one per agent)

Scores are of evaluation episodes with the final weights; path finding draws actions by `temperature`. Runs take
minutes; finished ones are kept in results/agents-partial.jsonl, and the next call goes on with what is missing, or had
other settings. After a change of the code, `--fresh` forgets them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

from _harness import RESULTS, Row, described, report, say

PACKAGES = ("gymnasium", "mpe2", "numba", "numpy", "pettingzoo", "stable-baselines3", "torch")
SEEDS, EPISODES = 3, 200
ROOT = Path(__file__).resolve().parents[1]
STORE = RESULTS / "agents-partial.jsonl"
CASES = {"env.kwargs.cases": 200, "env.kwargs.density": 0.3, "env.max_episode_steps": 256}
ALONE = {
    "stop.steps": 300_000,
    "schedule_updates": 10_000,
    "env.kwargs.agents": 1,
    "env.kwargs.neighbours": 0,
    "curriculum.limit.agents": 1,
    "temperature": 0.1,
}
"""Nobody is in the way of one agent: it needs less chance, and its ways are shorter."""
SILENT = {"communication": "none"}
SHORT = {"stop.steps": 120_000, "schedule_updates": 3_700}
"""A fifth of the scenario's steps; the step size falls until the end of them."""
SPREAD, SPREAD_STEPS = "mpe2:simple_spread_v3", 60_000
INDEPENDENT = "independent"
LEARNERS = {"neighbours": "talking", "none": "silent", INDEPENDENT: "SB3's DQN, one per agent"}
LONGER = 1.02
"""How much longer than the shortest ways those of one agent may be."""
T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
T_95 |= {10: 2.228, 12: 2.179, 14: 2.145, 16: 2.120, 18: 2.101}
"""Student's t for 95 %, by degrees of freedom."""


class Trial(NamedTuple):
    """What is trained, and the sets of 200 evaluation episodes that judge it."""

    target: str
    settings: dict[str, Any]
    judged: list[dict[str, Any]]


def teams(agents: int, size: int = 10, temperature: float | None = None) -> dict[str, Any]:
    """200 fixed cases with so many agents; None: with the run's own temperature."""
    chance = {} if temperature is None else {"algorithm.temperature": temperature}
    return {**CASES, "env.kwargs.agents": agents, **({} if size == 10 else {"env.kwargs.size": size}), **chance}


PLAYED = {(4, 10, 0.8): 0.95, (4, 40, 0.5): 0.96, (8, 40, 0.5): 0.90, (16, 40, 0.5): 0.85, (16, 40, 0.8): None}
PLAYED |= {(4, 10, 0.5): None, (4, 10, 0.0): None}
"""Agents, size and temperature, and the share of cases that they should solve."""

TRIALS = {
    "alone": {"one agent": Trial("pathfinding_small", ALONE, [{**teams(1), "env.kwargs.neighbours": 0}])},
    "teams": {"neighbours": Trial("pathfinding_small", {}, [teams(*one) for one in PLAYED])},
    "talking": {
        "neighbours": Trial("pathfinding_small", SHORT, [teams(2), teams(4)]),
        "none": Trial("pathfinding_small", SHORT | SILENT, [teams(2), teams(4)]),
    },
    "spread": {
        "neighbours": Trial(SPREAD, {}, [{}]),
        "none": Trial(SPREAD, SILENT, [{}]),
        INDEPENDENT: Trial(SPREAD, {}, [{}]),
    },
}


@cache
def trial_of(part: str, name: str) -> dict[str, Any]:
    """As a stored line has it: all that a run depends on, since a scenario may have changed."""
    from shoal.config.load import load_target

    trial = TRIALS[part][name]
    if name == INDEPENDENT:
        from _independent import SETTINGS

        return {"target": trial.target, "steps": SPREAD_STEPS, "settings": SETTINGS}
    asked = {**trial.settings, **({"algo": "comm-dqn", "stop.steps": SPREAD_STEPS} if trial.target == SPREAD else {})}
    settings = load_target(trial.target, asked).model_dump(mode="json")
    sections = ("env", "actors", "algorithm", "learner", "replay", "curriculum", "stop")
    return {"target": trial.target, "judged": trial.judged, **{section: settings[section] for section in sections}}


def measure(part: str, name: str, seed: int) -> list[dict[str, float]]:
    """Trains and plays: mean return and length, and what the environment says of its episodes. `way`: the steps of
    solved episodes in units of the shortest ways.
    """
    import shoal
    from shoal.envs.make import make_env
    from shoal.loops.evaluator import play
    from shoal.loops.reports import mean_episode_metrics

    if name == INDEPENDENT:
        return [{"return": independent(seed)}]
    trial = TRIALS[part][name]
    spread: dict[str, Any] = {"algo": "comm-dqn", "steps": SPREAD_STEPS} if trial.target == SPREAD else {}
    with tempfile.TemporaryDirectory() as folder:
        run = shoal.train(
            trial.target, seed=seed, runtime="inline", out=folder, quiet=True, settings=trial.settings, **spread
        )
        found = []
        for settings in trial.judged:
            overrides = [f"{key}={value}" for key, value in settings.items()]
            judged = shoal.load(run.path, checkpoint="last", overrides=overrides)
            lanes = judged.settings.evaluation.lanes_for(EPISODES)
            env = make_env(judged.env_settings, lanes, 10_000, training=False)
            episodes = play(env, judged.make_policy(lanes), EPISODES)
            env.close()
            one = {
                "return": statistics.fmean(episode.episode_return for episode in episodes),
                "length": statistics.fmean(episode.length for episode in episodes),
                **mean_episode_metrics(episode.metrics for episode in episodes),
            }
            if solved := [each for each in episodes if each.metrics.get("is_success")]:
                shortest = sum(each.metrics["shortest"] for each in solved)
                one["way"] = sum(each.length for each in solved) / shortest
            found.append(one)
        return found


def independent(seed: int) -> float:
    """Trains and plays SB3's DQNs, one per agent."""
    import torch
    from _independent import play, train
    from mpe2 import simple_spread_v3

    torch.set_num_threads(1)
    env = simple_spread_v3.parallel_env()
    return play(env, train(env, SPREAD_STEPS, seed), EPISODES, seed=10_000)


def missing(parts: list[str], seeds: int) -> tuple[dict[tuple[str, str, int], Any], list[tuple[str, str, int]]]:
    """Results that are there, and the runs that are not."""
    lines = STORE.read_text().splitlines() if STORE.exists() else []
    there = {tuple(one["run"]): one for one in map(json.loads, lines)}
    there = {(part, name, seed): one for (part, name, seed), one in there.items()
             if one["trial"] == trial_of(part, name)}  # fmt: skip
    wanted = [(part, name, seed) for part in parts for seed in range(1, seeds + 1) for name in TRIALS[part]]
    return there, [unit for unit in wanted if unit not in there]


def run(unit: tuple[str, str, int]) -> dict[str, Any]:
    """In a process of its own; keeps the result."""
    command = [sys.executable, "-W", "ignore", __file__, "--unit", json.dumps(unit)]
    environment, began = os.environ | {"PYTHONPATH": str(ROOT / "src")}, time.monotonic()
    kept = ("commit", "uncommitted_changes", "time")
    code = {name: value for name, value in described(()).items() if name in kept}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=7_200)
    if done.returncode:
        raise SystemExit(f"{unit} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    one = {"run": unit, "trial": trial_of(*unit[:2]), "found": json.loads(done.stdout.splitlines()[-1]), **code}
    with STORE.open("a") as file:
        file.write(json.dumps(one) + "\n")
    said = "; ".join(f"return {each['return']:.2f}, solved {each.get('success_rate', '-')}" for each in one["found"])
    say(f"  {' '.join(map(str, unit))}: {said} ({time.monotonic() - began:.0f} s)")
    return one


def interval(values: list[float], others: list[float] | None = None) -> tuple[float, float]:
    """Of the mean, 95 %, or of how much larger it is than the mean of as many others."""
    mean, variance, freedom = statistics.fmean(values), statistics.variance(values), len(values) - 1
    if others is not None:
        mean, variance, freedom = mean - statistics.fmean(others), variance + statistics.variance(others), 2 * freedom
    half = T_95[freedom] * math.sqrt(variance / len(values))
    return mean - half, mean + half


def judged(found: dict[tuple[str, str, int], Any], part: str, seeds: int) -> list[Row]:
    """The rows of a part; bars are open where there are too few seeds."""

    def each(name: str, place: int, what: str) -> list[float]:
        return [found[part, name, seed]["found"][place][what] for seed in range(1, seeds + 1)]

    def per_seed(name: str, values: list[float]) -> dict[str, float]:
        return {f"{name}, seed {seed}": value for seed, value in enumerate(values, 1)}

    full = seeds >= SEEDS
    if part == "alone":
        solved, ways = each("one agent", 0, "success_rate"), each("one agent", 0, "way")
        return [
            Row("one agent: share of 200 fixed cases solved, worst seed", min(solved), bar="= 1",
                holds=min(solved) == 1.0 if full else None, others=per_seed("solved", solved)),
            Row("one agent: steps of solved cases in units of the shortest ways, worst seed", max(ways),
                bar=f"<= {LONGER}x", holds=max(ways) <= LONGER if full else None, others=per_seed("way", ways)),
        ]  # fmt: skip
    if part == "teams":
        rows = []
        for place, ((agents, size, temperature), least) in enumerate(PLAYED.items()):
            solved = each("neighbours", place, "success_rate")
            title = f"{agents} agents on {size}x{size}, temperature {temperature}: 200 cases solved, worst seed"
            bar, holds = (f">= {least}", min(solved) >= least if full else None) if least else ("", None)
            rows.append(Row(title, min(solved), bar=bar, holds=holds, others=per_seed("solved", solved)))
        return rows
    if part == "spread":
        title = f"simple_spread, {SPREAD_STEPS:,} steps: mean return"
        told = [("neighbours", INDEPENDENT, "gain > 0 (95 %)"), ("none", INDEPENDENT, ""), ("neighbours", "none", "")]
        compared = [(f"{title}, {LEARNERS[one]}", 0, "return", one, other, bar) for one, other, bar in told]
    else:
        titles = ["200 cases with 2 agents solved", "200 cases with 4 agents solved"]
        compared = [(title, place, "success_rate", "neighbours", "none", "") for place, title in enumerate(titles)]
    rows = []
    for title, place, what, one, other, bar in compared:
        ours, theirs = each(one, place, what), each(other, place, what)
        others = per_seed(LEARNERS[one], ours) | per_seed(LEARNERS[other], theirs)
        holds = None
        if seeds > 1:
            spans = {LEARNERS[one]: interval(ours), LEARNERS[other]: interval(theirs), "gain": interval(ours, theirs)}
            for name, span in spans.items():
                others |= dict(zip((f"{name}, from", f"{name}, to"), span, strict=True))
            holds = spans["gain"][0] > 0.0 if bar and full else None
        rows.append(
            Row(title, statistics.fmean(ours), statistics.fmean(theirs), LEARNERS[other], None, bar, holds, others)
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TRIALS, action="append", help="only this part; can be repeated")
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, choices=range(1, 11), metavar="N", help=f"1 to N, at most 10 ({SEEDS})"
    )
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time (cores)")
    parser.add_argument("--fresh", action="store_true", help="forget the finished runs of these parts")
    parser.add_argument("--report", action="store_true", help="run nothing: the parts whose runs are all there")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a bar does not hold")
    parser.add_argument("--unit", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.unit:
        print(json.dumps(measure(*json.loads(options.unit))))
        return 0
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: at least one run at a time")
    parts = list(dict.fromkeys(options.only or TRIALS))
    if options.fresh and STORE.exists():
        lines = STORE.read_text().splitlines(keepends=True)
        STORE.write_text("".join(line for line in lines if json.loads(line)["run"][0] not in parts))
    found, wanted = missing(parts, options.seeds)
    if options.report:
        parts = [part for part in parts if part not in {unit[0] for unit in wanted}]
        if not parts:
            raise SystemExit(f"Nothing to report: no part has all its runs yet; {len(wanted)} are missing.")
    else:
        with ThreadPoolExecutor(options.jobs) as pool:
            found |= dict(zip(wanted, pool.map(run, wanted), strict=True))
    rows = [row for part in parts for row in judged(found, part, options.seeds)]
    name = "agents" if parts == list(TRIALS) else "agents-partial"
    holds = report(name, rows, PACKAGES, {"runs": list(found.values())})
    return 1 if options.strict and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
