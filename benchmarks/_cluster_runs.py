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

from _harness import Measured, Row, bounded, compared, say

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
    """One node: the same work with the code before mirrors, and now, in turns of a quarter of a second."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-before-"))
    found: dict[str, dict[str, Measured]] = {}
    script, running = str(Path(__file__).with_name("_cluster_single.py")), {}
    try:
        archive = subprocess.run(["git", "archive", BEFORE, "src"], cwd=ROOT, check=True, capture_output=True).stdout
        subprocess.run(["tar", "x", "-C", str(folder)], input=archive, check=True)
        for name, source in (("shoal", ROOT / "src"), ("before", folder / "src")):
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            env = os.environ | {"PYTHONPATH": str(source)}
            running[name] = subprocess.Popen([sys.executable, script], env=env, **pipes)
            known = json.loads(running[name].stdout.readline())
        for _ in range(rounds):
            for what in known:
                for name, process in running.items():
                    print(what, file=process.stdin, flush=True)
                    rate = float(process.stdout.readline())
                    found.setdefault(what, {}).setdefault(name, Measured()).rates.append(rate)
    finally:
        for process in running.values():
            process.communicate()
        shutil.rmtree(folder)
    return [compared(f"one node, against {BEFORE}: {what}", one, at_least=0.97) for what, one in found.items()]
