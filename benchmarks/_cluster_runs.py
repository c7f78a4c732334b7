"""Whole runs, for benchmarks/cluster.py: Ray calls per step on a cluster, and speeds of one node before and after."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _harness import Measured, Row, _run, bounded, compared, say

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
BEFORE = "87dcce7"
"""The last commit without mirrors."""
SCENARIOS = ("cartpole_apex_dqn", "cartpole_impala", "cartpole_ppo")


def call_rows(actors: tuple[int, ...], seconds: float) -> list[Row]:
    """Ray calls per 1,000 environment steps of runs whose actors are all on one outpost."""
    from tests.lab import light_cluster

    rows = []
    for scenario in SCENARIOS:
        for count in actors:
            with light_cluster(cpus=[2, count]) as lab:
                told = _train(lab, scenario, count, seconds)
            calls = 1000 * told["ray_calls"] / max(1, told["env_steps"])
            speed = told["steps_per_second"]
            say(f"  {scenario}, {count} actors: {calls:.2f} calls per 1,000 steps, {speed:,.0f} steps/s")
            rows.append(
                bounded(f"Ray calls per 1,000 steps: {scenario}, {count} actors on an outpost", calls, at_most=5)
            )
            rows[-1].others |= {"steps": told["env_steps"], "steps/s": speed, "Ray calls": told["ray_calls"]}
    return rows


def _train(lab: Any, scenario: str, actors: int, seconds: float) -> dict[str, Any]:
    out = lab.folder / "runs"
    given = [
        "stop.mean_return=null",
        "stop.steps=null",
        "evaluation.every_steps=1_000_000_000",
        "evaluation.episodes=1",
    ]
    command = [sys.executable, "-m", "shoal", "train", scenario, "--address", lab.address, "--out", str(out)]
    command += ["--actors", str(actors), "--seconds", str(seconds), *given]
    done = lab.nodes[0].run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = done.communicate()[0]
    found = list(out.rglob("summary.json"))
    if not found:
        raise RuntimeError(f"{' '.join(command)}:\n{said[-3000:]}")
    told: dict[str, Any] = json.loads(found[0].read_text())
    nodes = json.loads((found[0].parent / "nodes.json").read_text())
    there = [role for site in nodes["sites"] if site["outpost"] is not None for role in site["roles"]]
    if told["status"] == "failed" or len(there) < actors:
        raise RuntimeError(f"{told['error']}; on the outpost: {there}\n{said[-3000:]}")
    return told


def single_rows(rounds: int) -> list[Row]:
    """One node: the same work with the code before mirrors, and now."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-before-"))
    found: dict[str, dict[str, Measured]] = {}
    try:
        archive = subprocess.run(["git", "archive", BEFORE, "src"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "x", "-C", str(folder)], input=archive, check=True)
        for _ in range(rounds):
            for name, source in (("shoal", ROOT / "src"), ("before", folder / "src")):
                script = str(Path(__file__).with_name("_cluster_single.py"))
                env = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
                said = subprocess.run([sys.executable, script], env=env, check=True, capture_output=True, text=True)
                for what, rate in json.loads(said.stdout).items():
                    found.setdefault(what, {}).setdefault(name, Measured()).rates.append(rate)
            last = {what: one["shoal"].rates[-1] / one["before"].rates[-1] for what, one in found.items()}
            say(f"  {', '.join(f'{what} {value:.2f}x' for what, value in last.items())}")
    finally:
        shutil.rmtree(folder)
    label = _run("git", "rev-parse", "--short", BEFORE) or BEFORE
    return [compared(f"one node, against {label}: {what}", one, at_least=0.97) for what, one in found.items()]
