"""IMPALA: seconds to solve CartPole, environment steps per second, episodes to solve, the cost of scoring:
`make bench-impala`.

Every run is a separate process, as a user starts it, on a local Ray with two actors, a learner and an evaluator.
Time starts at the first environment step. Peers were measured on the same kind of machine with their own default
settings. They need other versions of Gymnasium and cannot share a process with Shoal, so their figures are constants
here, and the results say so.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from _harness import Row, bounded, compared, interleave, report, say

PACKAGES = ("ale-py", "gymnasium", "numpy", "ray", "torch")
ROOT = Path(__file__).resolve().parents[1]
SOLVED = 475.0
RLLIB_CARTPOLE, SAMPLE_FACTORY_CARTPOLE, RLLIB_PONG = 3_100.0, 11_000.0, 644.0
"""Environment steps per second of the peers: RLlib 2.60 IMPALA, Sample Factory 2.1.1 APPO, RLlib on Pong at 64x64."""
MACHIN_EPISODES = 70
"""Episodes per actor in machin's best log, rounded down a little; run here it took 174."""
RUN_SECONDS = 600.0
PONG = [
    "algorithm.torso=small",
    "algorithm.image_hidden=256",
    "replay=[{type: fifo}]",
    "learner.batch_size=32",
    "laser=false",
]
"""On two cores, Pong uses the small network, a third of the cost of Nature's. As in RLlib, every step is used once."""
THROUGHPUT = ["env.lanes=64", "learner.batch_size=64", "learner.publish_every=2", "algorithm.unroll=20"]


def train(
    scenario: str, *arguments: str, limit: float = RUN_SECONDS
) -> tuple[dict[str, Any], list[dict[str, Any]], list[list[float]]]:
    """One run: its summary, its metrics, and the returns of each actor's episodes in order."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "runs", Path(folder) / "output.txt"
        command = [sys.executable, "-m", "shoal", "train", scenario, "--out", str(out)]
        command += [*arguments, "replay.keep=true"]
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        with log.open("w") as output:
            code = subprocess.run(command, cwd=ROOT, stdout=output, stderr=output, env=environment, timeout=limit)
        if code.returncode != 0:
            raise SystemExit(f"{' '.join(command)} ended with {code.returncode}:\n{log.read_text()[-4000:]}")
        run = out / "latest"
        replay = Path(json.loads((run / "replay.json").read_text())["path"])
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        try:
            episodes = [_episodes(path) for path in sorted(replay.glob("shard_???"))]
            return json.loads((run / "summary.json").read_text()), lines, episodes
        finally:
            shutil.rmtree(replay, ignore_errors=True)


def _episodes(path: Path) -> list[float]:
    """Returns of the first lane's episodes. Valid until the ring wraps around."""
    from shoal.replay import ShardReader

    shard = ShardReader(path)
    head = min(shard.head, shard.rows)
    reward = shard.columns["reward"][:head, 0]
    ended = np.flatnonzero((shard.columns["terminated"] | shard.columns["truncated"])[:head, 0])
    return [float(part.sum()) for part in np.split(reward, ended + 1)[:-1]]


# ---- CartPole


def cartpole(seeds: int) -> list[Row]:
    """Seconds to 475, per seed."""
    seconds, solved, steps = [], 0, []
    for seed in range(1, seeds + 1):
        summary, lines, _ = train("cartpole_impala", "--seed", str(seed))
        reached = [line["wall"] for line in lines if line.get("eval/mean_reward", -math.inf) >= SOLVED]
        solved += summary["status"] == "solved"
        seconds.append((reached[-1] if reached else summary["wall_seconds"]) - summary["startup_seconds"])
        steps.append(summary["env_steps"])
        say(f"  seed {seed}: {summary['status']} after {steps[-1]:,} steps, {seconds[-1]:.1f} s")
    median = statistics.median(seconds)
    return [
        Row("CartPole: seeds that reach 475", solved, bar=f"= {seeds}", holds=solved == seeds),
        bounded("CartPole: median seconds to 475, after start-up", median, at_most=10.0),
        Row(
            "CartPole: median env steps to 475", float(statistics.median(steps)), others={"worst seconds": max(seconds)}
        ),
    ]


def throughput(seconds: float) -> list[Row]:
    """Environment steps per second with the learner on."""
    summary, _, _ = train(
        "cartpole_impala", "--seconds", f"{seconds}", "--stop-return", "1e9", "--steps", "1000000000", *THROUGHPUT
    )
    ours = summary["steps_per_second"]
    say(f"  CartPole: {ours:,.0f} steps/s, {summary['updates_per_second']:.0f} updates/s, {summary['bottleneck']}")
    pong, _, _ = train("pong_impala", "--seconds", f"{2 * seconds}", "--stop-return", "1e9", *PONG)
    say(f"  Pong: {pong['steps_per_second']:,.0f} steps/s, {pong['updates_per_second']:.1f} updates/s")
    against = {
        "RLlib IMPALA": (ours, RLLIB_CARTPOLE, 10.0, "CartPole"),
        "Sample Factory APPO": (ours, SAMPLE_FACTORY_CARTPOLE, 2.0, "CartPole"),
        "RLlib IMPALA at 64x64": (pong["steps_per_second"], RLLIB_PONG, 2.0, "Pong"),
    }
    return [
        Row(
            f"{env}: env steps/s, learner on, 2 actors",
            rate,
            peer,
            f"{name}, as measured apart",
            rate / peer,
            f">= {bar:g}x",
            rate >= bar * peer,
        )
        for name, (rate, peer, bar, env) in against.items()
    ]


# ---- machin's task


def solved_after(returns: list[float]) -> float:
    """Episodes until the smoothed return was above 190 five times in a row, machin's criterion; infinity if never."""
    smooth, times = 0.0, 0
    for number, one in enumerate(returns, start=1):
        smooth = 0.9 * smooth + 0.1 * one
        times = times + 1 if smooth > 190 else 0
        if times == 5:
            return float(number)
    return math.inf


def machin(seeds: int) -> list[Row]:
    """Episodes per actor until solved; the slower of the two actors counts."""
    needed = []
    for seed in range(1, seeds + 1):
        _, _, episodes = train(
            "cartpole_impact_replay", "--seed", str(seed), "--stop-return", "1e9", "--steps", "40000"
        )
        needed.append(max(solved_after(returns) for returns in episodes))
        say(f"  seed {seed}: {needed[-1]:.0f} episodes per actor")
    median = statistics.median(needed)
    what = "CartPole capped at 200: episodes per actor, median"
    holds = median < MACHIN_EPISODES
    return [
        Row(
            what, median, 174.0, "machin, run here", median / 174, f"< {MACHIN_EPISODES}", holds, {"worst": max(needed)}
        )
    ]


# ---- scoring


def scoring(seconds: float, rounds: int) -> list[Row]:
    """Updates per second on a full replay, all on one core: half of a batch uniform, half from each selector."""
    from shoal.config.load import load_scenario
    from shoal.loops import assembly
    from shoal.loops.plan import make_plan
    from shoal.loops.preparation import prepare
    from shoal.loops.run_paths import RunPaths

    rows = []
    cores = os.sched_getaffinity(0)
    for scenario, steps, lanes in (("cartpole_impala", 8_000, 8), ("pong_impala", 4_000, 16)):
        loops = {}
        within = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        for name in ("uniform", "elite", "attentive"):
            parts = f"[{{type: newest, ratio: 0.5, fraction: 1.0}}, {{type: {name}, ratio: 0.5}}]"
            overrides = [
                f"replay={parts}",
                "learner.prefetch=0",
                "actors=1",
                f"env.lanes={lanes}",
                "replay.capacity=20000",
                "learner.batch_size=8",
            ]
            settings = load_scenario(Path(scenario), overrides)
            folder = Path(within.name) / name
            plan = make_plan(settings, RunPaths(folder / "replay", folder / "checkpoints"))
            plan.paths.replay.mkdir(parents=True)
            prepare(plan, 3, "benchmark")
            actor = assembly.build_actor(plan, 0)
            actor.run(steps=steps // lanes)
            actor.end()
            loops[name] = assembly.build_learner(plan)
        os.sched_setaffinity(0, {min(cores)})  # scoring must not use a core that the actors would need
        calls = {name: (lambda loop=loop: loop.run(updates=1)) for name, loop in loops.items()}
        measured = interleave(f"{scenario}: updates/s", calls, seconds=seconds, rounds=rounds)
        os.sched_setaffinity(0, cores)
        for name in ("elite", "attentive"):
            pair = {name: measured[name], "uniform": measured["uniform"]}
            rows.append(compared(f"{scenario}: updates/s, {name} against uniform", pair, ours=name, at_least=0.8))
        within.cleanup()  # also at the interpreter's exit, if that comes first
    return rows


PARTS = {
    "cartpole": lambda quick: cartpole(1 if quick else 5),
    "throughput": lambda quick: throughput(5.0 if quick else 20.0),
    "machin": lambda quick: machin(1 if quick else 5),
    "scoring": lambda quick: scoring(0.3 if quick else 3.0, 2 if quick else 5),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="only this part; can be repeated")
    parser.add_argument("--quick", action="store_true", help="a smoke test")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a bar does not hold")
    options = parser.parse_args()
    rows: list[Row] = []
    for name in options.only or PARTS:
        say(f"{name} ({time.strftime('%H:%M:%S')})")
        rows += PARTS[name](options.quick)
    whole = not options.quick and not options.only
    settings = {"throughput": THROUGHPUT, "pong": PONG, "quick": options.quick, "only": options.only}
    holds = report("impala" if whole else "impala-partial", rows, PACKAGES, settings)
    return 1 if options.strict and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
