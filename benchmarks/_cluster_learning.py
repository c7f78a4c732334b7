"""Learning on three nodes beside one, for benchmarks/cluster.py: every algorithm, 5 seeds, env steps to its goal.

Three nodes are real raylets on loopback, kept for all runs. The home has CPUs for learner and evaluator only, so all
actors are on the other two nodes. One node is the same command without an address. The two alternate run by run, and
the one that goes first alternates seed by seed. Finished runs are kept in results/cluster_learning-partial.jsonl, and
the next call goes on with what is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from _harness import RESULTS, Row, _run, say

ROOT = Path(__file__).resolve().parents[1]
STORE = RESULTS / "cluster_learning-partial.jsonl"
SCENARIOS = (
    *("cartpole_apex_dqn", "cartpole_apex_qr_dqn", "cartpole_impala", "cartpole_impact_replay", "cartpole_ppo"),
    *("cartpole_a3c", "pendulum_sac", "pendulum_td3", "pendulum_d4pg", "pendulum_apex_dpg"),
)
QUICK = ("cartpole_impala", "cartpole_impact_replay")
"""Often solved before the evaluator, which starts with the first weights, is ready to look: its start would be
measured, not learning. They are run a second time, `_paced`: environments are slow until the evaluator is ready.
"""
TASKS = {
    **{name: (name,) for name in SCENARIOS if name not in QUICK},
    # There is no scenario of R2D2 on CartPole: its defaults, looked at as often as the scenarios are.
    "cartpole_r2d2": ("CartPole-v1", "--algo", "r2d2", "--stop-return", "400", "evaluation.every_steps=2_000"),
    **{f"{name}_paced": (name,) for name in QUICK},
    **{name: (name,) for name in QUICK},
}
SEEDS = 5
ACTORS = 3
CPUS = (2, 2, 2)
"""Of the home, for learner and evaluator, and of the two nodes of the actors."""
SECONDS = 240.0
"""A run that has not reached its goal by then has missed it."""
END_SECONDS = 90.0
"""What a run may take beyond that, for its start and its end."""
RESAMPLES = 10_000


@dataclass(frozen=True)
class Trial:
    """One run: what it learns, its seed, and on how many nodes."""

    task: str
    seed: int
    nodes: int


def trials(tasks: Iterable[str], seeds: int) -> list[Trial]:
    """All runs, one seed of every task after the other, three nodes and one node in turn; quick tasks, of which there
    is a better measurement, after all others.
    """
    names = list(tasks)
    every = [
        Trial(task, seed, nodes)
        for seed in range(1, seeds + 1)
        for task in names
        for nodes in ((3, 1) if seed % 2 else (1, 3))
    ]
    return sorted(every, key=lambda trial: trial.task in QUICK)


def stored(path: Path) -> dict[Trial, dict[str, Any]]:
    """Finished runs; the last result of a trial counts, and a line cut off by a crash is skipped."""
    found: dict[Trial, dict[str, Any]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError, KeyError):
            one = json.loads(line)
            found[Trial(one["task"], one["seed"], one["nodes"])] = one
    return found


def told_runs(path: Path) -> list[dict[str, Any]]:
    """Finished runs for the results file: of the curves, how many looks there were and the step of the first."""
    runs = []
    for one in stored(path).values():
        curve = one.get("curve", [])
        runs.append({name: value for name, value in one.items() if name != "curve"} | {"looks": len(curve)})
        runs[-1]["first_look"] = curve[0][0] if curve else None
    return runs


def not_there(wanted: Iterable[Trial], there: Mapping[Trial, dict[str, Any]]) -> list[Trial]:
    """Those without a result; failed ones are tried again, those that missed the goal are not."""
    return [trial for trial in wanted if "error" in there.get(trial, {"error": "not run"})]


def learning_rows(options: argparse.Namespace) -> list[Row]:
    """Runs what is missing, then judges what is there."""
    if options.fresh:
        options.store.unlink(missing_ok=True)
    if not options.report:
        work(trials(TASKS, 1 if options.quick else SEEDS), options.store)
    return judged(stored(options.store))


def work(wanted: list[Trial], store: Path) -> None:
    """Runs those that have no result yet and stores each as it comes."""
    from tests.lab import light_cluster

    missing = not_there(wanted, stored(store))
    say(f"  {len(wanted) - len(missing)} of {len(wanted)} runs are there")
    if not missing:
        return
    # For `_paced_env`, on every node.
    os.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT / "src"), str(ROOT / "benchmarks")))
    with light_cluster(cpus=CPUS) as lab:
        for number, trial in enumerate(missing, start=1):
            began = time.monotonic()
            found = {**asdict(trial), **run(trial, lab), "total_seconds": time.monotonic() - began}
            found |= {"commit": _run("git", "rev-parse", "HEAD"), "load": os.getloadavg()[0]}
            found["time"] = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            with store.open("a") as file:
                file.write("\n" + json.dumps(found))  # the line before may be cut off
            steps = f"{found['steps']:,} steps" if found.get("steps") else found.get("error", "goal not reached")
            left = remaining(missing[number:], stored(store)) / 60
            where = f"{trial.nodes} node{'s' * (trial.nodes > 1)}"
            took = found["total_seconds"]
            say(
                f"  [{number}/{len(missing)}] {trial.task} seed {trial.seed}, {where}: {steps}, {took:.0f} s; "
                f"about {left:.0f} min left"
            )


def remaining(missing: Iterable[Trial], there: Mapping[Trial, dict[str, Any]]) -> float:
    """Seconds that the missing runs will take, judged by those of the same task, or by all."""
    took: dict[str, list[float]] = {}
    for trial, one in there.items():
        took.setdefault(trial.task, []).append(one["total_seconds"])
    every = statistics.mean(value for some in took.values() for value in some)
    return sum(statistics.mean(took.get(trial.task, [every])) for trial in missing)


def run(trial: Trial, lab: Any) -> dict[str, Any]:
    """One `shoal train`; its result, or why there is none. Nothing of it is left."""
    with tempfile.TemporaryDirectory(prefix="shoal-learning-") as folder:
        out = Path(folder)
        command = [sys.executable, "-m", "shoal", "train", *TASKS[trial.task], "--seed", str(trial.seed), "--quiet"]
        command += ["--actors", str(ACTORS), "--seconds", f"{SECONDS:g}", "--out", str(out)]
        if trial.task.endswith("_paced"):
            command.append(f"env.wrappers=[{{name: '_paced_env:Paced', args: {{until: {out / 'go'}}}}}]")
        with (out / "output.txt").open("w") as log:
            given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            if trial.nodes == 1:
                process = subprocess.Popen(command, start_new_session=True, **given)
            else:
                process = lab.nodes[0].run([*command, "--address", lab.address], **given)
        try:
            _wait(process, out)
            return outcome(out / "latest", trial.nodes)
        except (subprocess.TimeoutExpired, OSError, ValueError) as error:
            said = " ".join((out / "output.txt").read_text(errors="replace").split())
            return {"error": f"{type(error).__name__}, exit code {process.poll()}: {said[-300:]}"}
        finally:
            _end(process)
            _free(out / "latest")


def _wait(process: subprocess.Popen[Any], out: Path) -> None:
    """Waits for the end of a run, and lets paced environments go as soon as its evaluator is ready."""
    deadline = time.monotonic() + SECONDS + END_SECONDS
    while process.poll() is None:
        with contextlib.suppress(OSError, ValueError):  # not there, or being written
            if "evaluator" in json.loads((out / "latest" / "processes.json").read_text()):
                (out / "go").touch()
        if time.monotonic() > deadline:
            raise subprocess.TimeoutExpired(process.args, SECONDS + END_SECONDS)
        time.sleep(0.1)


def outcome(folder: Path, nodes: int) -> dict[str, Any]:
    """What a run's files say. `steps` is the step of the weights that reached the goal, None if none did.

    Raises:
        ValueError: the run failed, or its actors were not where they should be.
    """
    summary = json.loads((folder / "summary.json").read_text())
    if summary["status"] not in ("solved", "finished"):
        raise ValueError(f"{summary['status']}: {summary['error']}")
    if nodes > 1:
        sites = json.loads((folder / "nodes.json").read_text())["sites"]
        away = [site["roles"] for site in sites if site["outpost"] is not None]
        if len(away) != nodes - 1 or sum(role.startswith("actor") for roles in away for role in roles) != ACTORS:
            raise ValueError(f"actors are not on {nodes - 1} outposts: {sites}")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    looks = [line for line in lines if "eval/mean_reward" in line]
    solved = summary["status"] == "solved"
    kept = ("env_steps", "updates", "episodes", "wall_seconds", "startup_seconds", "steps_per_second")
    kept += ("updates_per_second", "samples_per_insert", "staleness_mean", "bottleneck", "restarts")
    return {
        "steps": looks[-1]["step"] if solved else None,
        "seconds": looks[-1]["wall"] - summary["startup_seconds"] if solved else None,
        "curve": [[line["step"], line["eval/mean_reward"]] for line in looks],
        **{name: summary[name] for name in kept},
    }


def _end(process: subprocess.Popen[Any]) -> None:
    """Stops a run cleanly if it still runs; its session is killed if that does not help."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _free(folder: Path) -> None:
    """Frees the replay that a run keeps which was interrupted."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        shutil.rmtree(json.loads((folder / "replay.json").read_text())["path"], ignore_errors=True)


# ---- the verdict


def judged(found: Mapping[Trial, dict[str, Any]]) -> list[Row]:
    """A row for each task and one for all together; a bar holds only when all seeds are there, and fails at a miss."""
    rows, logs = [], []
    for task in TASKS:
        runs = {
            nodes: [one for trial, one in found.items() if (trial.task, trial.nodes) == (task, nodes)]
            for nodes in (3, 1)
        }
        valid = {nodes: [one for one in some if "error" not in one] for nodes, some in runs.items()}
        if all(valid.values()):
            rows.append(_row(task, valid[3], valid[1]))
            if task not in QUICK:
                logs.append([_logs(valid[3]), _logs(valid[1])])
    if logs:
        value, low, high = _ratio(logs)
        what = "steps to the goal on three nodes against one: all tasks together (ratio of geometric means)"
        rows.append(Row(what, value, others={"95 % from": low, "to": high, "tasks": len(logs)}))
    return rows


def _row(task: str, three: list[dict[str, Any]], one: list[dict[str, Any]]) -> Row:
    import numpy as np

    from shoal.analysis.statistics import permutation_p

    there, here = (np.array([run["steps"] or math.inf for run in some]) for some in (three, one))
    value, low, high = _ratio([[_logs(three), _logs(one)]])
    solved = int(np.isfinite(there).sum())
    row = Row(f"env steps to the goal: {task}, three nodes", float(np.median(there)), float(np.median(here)))
    row.peer, row.ratio = "one node", value
    row.bar = f"{SEEDS} of {SEEDS} solve, median <= one node's max"
    if solved < len(three):
        row.holds = False
    elif min(len(three), len(one)) >= SEEDS:
        row.holds = bool(row.shoal <= here.max())
    chance = permutation_p(there, here, np.arange(len(there)), np.arange(len(here)), np.random.default_rng(0))
    row.others = {
        **{
            "seeds": len(three),
            "solved": solved,
            "at the first look": _at_first_look(three),
            "min": there.min(),
            "max": there.max(),
        },
        **{"one node: solved": int(np.isfinite(here).sum()), "one node: at the first look": _at_first_look(one)},
        **{"one node: min": here.min(), "one node: max": here.max()},
        **{"ratio 95 % from": low, "to": high, "p (exact rank test)": chance},
        "seconds": statistics.median(run["seconds"] or SECONDS for run in three),
        "one node: seconds": statistics.median(run["seconds"] or SECONDS for run in one),
    }
    row.others = {name: float(number) for name, number in row.others.items() if math.isfinite(number)}
    return row


def _at_first_look(runs: list[dict[str, Any]]) -> int:
    """Of so many it is only known that they had reached the goal by then."""
    return sum(run["steps"] is not None and len(run["curve"]) == 1 for run in runs)


def _logs(runs: list[dict[str, Any]]) -> Any:
    """Logarithms of the steps; a run that missed counts with the steps it made, which is too few."""
    import numpy as np

    return np.log([run["steps"] or run["env_steps"] for run in runs])


def _ratio(tasks: list[list[Any]]) -> tuple[float, float, float]:
    """The ratio of geometric means, over all tasks alike, and its 95 % bootstrap interval over seeds."""
    import numpy as np

    from shoal.analysis.statistics import interval, once, resample_counts

    rng = np.random.default_rng(0)

    def difference(draw: Any) -> Any:
        both = [[draw(logs) @ logs / len(logs) for logs in task] for task in tasks]
        return np.exp(np.mean([there - here for there, here in both], axis=0))

    low, high = interval(difference(lambda logs: resample_counts(np.arange(len(logs)), RESAMPLES, rng)))
    return float(difference(lambda logs: once(len(logs)))[0]), float(low), float(high)
