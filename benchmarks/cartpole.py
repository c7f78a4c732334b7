"""CartPole-v1 to 475, as `make train` runs it, compared with Stable-Baselines3's DQN, per seed: `make bench-cartpole`.

Shoal runs one process per seed, `shoal train cartpole_apex_dqn --seed S`: Ray, two actors, a learner, an evaluator.
SB3 runs one process per seed with the settings of the RL Zoo and one torch thread. A run is solved when 20 greedy
episodes reach a mean of 475 for the first time. SB3 is evaluated every 2,000 steps, and its evaluation time is not
counted. Shoal is evaluated every 1,000 steps, and its evaluation time is counted. Time starts at the first environment
step. The time before it is the start-up, from the start of the process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from _harness import RESULTS, Row, bounded, console, report, say
from rich.table import Table

PACKAGES = ("gymnasium", "numpy", "ray", "stable-baselines3", "torch")
ROOT = Path(__file__).resolve().parents[1]
SOLVED = 475.0
EPISODES = 20
EVERY_STEPS = 2_000
ACTORS = 2
MOST_STEPS = 100_000
EXPLORATION_STEPS = 8_000
"""0.16 of the RL Zoo's 50,000 steps: the schedule stays the same although runs may be longer."""
LOOK_SECONDS = 0.02
RUN_SECONDS = 900.0
ZOO: dict[str, Any] = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "gamma": 0.99,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [256, 256]},
}


@dataclass
class Outcome:
    """The result of one seed. If the status is not `solved`, seconds to solve are seconds until it stopped."""

    who: str
    seed: int
    status: str
    env_steps: int
    updates: int
    startup: float
    """Seconds from the start of the process to the first environment step."""
    startup_inside: float | None
    """The start-up from the run's own summary, without imports and preparation."""
    to_solve: float
    """Seconds from the first environment step to the evaluation that reached the goal."""
    total: float
    """Seconds from the start to the end of the process."""
    eval_return: float
    ray_calls_per_1000: float | None = None

    @property
    def solved(self) -> bool:
        return self.status == "solved" and self.eval_return >= SOLVED


# ---- Shoal


def shoal(seed: int, steps: int | None) -> Outcome:
    """One run in a temporary folder, as a user starts it."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "runs", Path(folder) / "output.txt"
        command = [sys.executable, "-m", "shoal", "train", "cartpole_apex_dqn", "--seed", str(seed)]
        command += ["--out", str(out)] + (["--steps", str(steps)] if steps else [])
        # Shoal sets its own thread counts and must not depend on this variable.
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        began = time.monotonic()
        with log.open("w") as output:
            process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, env=environment)
        try:
            first_step = _first_step(process, out / "latest") - began
            code = process.wait(RUN_SECONDS)
        except BaseException:
            process.terminate()
            process.wait(60)
            raise
        finally:
            _free(out / "latest")
        total = time.monotonic() - began
        if code != 0:
            raise SystemExit(f"shoal train ended with {code}:\n{log.read_text()[-4000:]}")
        return _outcome(seed, out / "latest", first_step, total)


def _first_step(process: subprocess.Popen[bytes], run: Path) -> float:
    """The time of the first environment step, read from outside, from the shards' headers."""
    from shoal.replay.counters import Counters
    from shoal.replay.shard_files import Header

    headers: list[Counters] = []
    while process.poll() is None:
        if len(headers) < ACTORS and (run / "replay.json").exists():
            replay = Path(json.loads((run / "replay.json").read_text())["path"])
            headers = [Counters(path, writable=False) for path in sorted(replay.glob("shard_???/header.bin"))]
        if any(header[Header.STEPS] for header in headers):
            return time.monotonic()
        time.sleep(LOOK_SECONDS)
    return math.nan


def _outcome(seed: int, run: Path, first_step: float, total: float) -> Outcome:
    summary = json.loads((run / "summary.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    solved_at = [line["wall"] for line in lines if line.get("eval/mean_reward", -math.inf) >= SOLVED]
    inside = summary["startup_seconds"]
    ended_at = solved_at[-1] if solved_at else summary["wall_seconds"]
    return Outcome(
        "shoal",
        seed,
        summary["status"],
        summary["env_steps"],
        summary["updates"],
        first_step,
        inside,
        ended_at - (inside or 0.0),
        total,
        summary["eval_return_mean"] if summary["eval_return_mean"] is not None else math.nan,
        1000 * summary["ray_calls"] / max(1, summary["env_steps"]),
    )


def _free(run: Path) -> None:
    """Frees the replay: an interrupted run keeps it, but this one will not be resumed."""
    with contextlib.suppress(OSError, ValueError):
        shutil.rmtree(json.loads((run / "replay.json").read_text())["path"], ignore_errors=True)


# ---- Stable-Baselines3


def sb3(seed: int, steps: int | None) -> Outcome:
    """Runs one seed in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "found.json"
        command = [sys.executable, __file__, "--sb3", str(seed), "--found", str(result)]
        began = time.monotonic()
        subprocess.run(command + (["--most-steps", str(steps)] if steps else []), check=True, timeout=RUN_SECONDS)
        found: dict[str, Any] = json.loads(result.read_text())
        startup = found.pop("first_step") - began  # the monotonic clock is the same for all processes
        return Outcome("sb3 dqn", seed, startup=startup, startup_inside=None, total=time.monotonic() - began, **found)


def sb3_child(seed: int, most_steps: int) -> dict[str, Any]:
    """Trains until an evaluation reaches the goal. Evaluations do not count as training time."""
    import gymnasium
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.monitor import Monitor

    torch.set_num_threads(1)
    judged = Monitor(gymnasium.make("CartPole-v1"))
    judged.reset(seed=seed + 10_000)

    class Judge(BaseCallback):
        first_step, spent, mean = math.nan, 0.0, math.nan

        def _on_step(self) -> bool:
            if self.num_timesteps == 1:
                self.first_step = time.monotonic()
            if self.num_timesteps % EVERY_STEPS:
                return True
            asked = time.monotonic()
            mean, _ = evaluate_policy(self.model, judged, n_eval_episodes=EPISODES)
            self.mean = float(mean)  # type: ignore[arg-type]  # a list only if asked for
            self.spent += time.monotonic() - asked
            return self.mean < SOLVED

    judge = Judge()
    fraction = EXPLORATION_STEPS / most_steps
    model = DQN(
        "MlpPolicy", gymnasium.make("CartPole-v1"), seed=seed, device="cpu", exploration_fraction=fraction, **ZOO
    )
    model.set_logger(Logger(None, []))
    model.learn(most_steps, callback=judge)
    return {
        "status": "solved" if judge.mean >= SOLVED else "finished",
        "env_steps": model.num_timesteps,
        "updates": model._n_updates,
        "first_step": judge.first_step,
        "to_solve": time.monotonic() - judge.first_step - judge.spent,
        "eval_return": judge.mean,
    }


# ---- the comparison


def rows_of(ours: list[Outcome], theirs: list[Outcome]) -> list[Row]:
    """The bars."""
    count, solved, peers_solved = len(ours), sum(one.solved for one in ours), sum(one.solved for one in theirs)
    wall = statistics.median(one.to_solve for one in ours)
    peer_wall = statistics.median(one.to_solve for one in theirs)
    steps, peer_steps = (float(statistics.median(one.env_steps for one in who)) for who in (ours, theirs))
    inside = [one.startup_inside for one in ours if one.startup_inside is not None]
    started = f"worst of {count}, from the process's start"
    peer = "sb3 dqn"
    return [
        Row("seeds that reach 475 over 20 episodes", solved, peers_solved, peer, None, f"= {count}", solved == count),
        Row("seconds to solve, after start-up", wall, peer_wall, peer, wall / peer_wall, "<= 1x", wall <= peer_wall),
        Row("env steps to solve", steps, peer_steps, peer, steps / peer_steps),
        Row(
            f"start-up seconds, {started}",
            worst := max(one.startup for one in ours),
            statistics.median(one.startup for one in theirs),
            peer,
            bar="< 12",
            holds=worst < 12,
            others={"inside, as the summary has it": max(inside, default=math.nan)},
        ),
        Row(
            "seconds from the command to its end",
            statistics.median(one.total for one in ours),
            statistics.median(one.total for one in theirs),
            "sb3 dqn, evaluations included",
        ),
        bounded(
            "Ray calls per 1,000 env steps, worst", max(one.ray_calls_per_1000 or 0.0 for one in ours), at_most=5.0
        ),
    ]


def show(outcomes: list[Outcome]) -> None:
    """The seeds, one by one."""
    table = Table(title="cartpole: seed by seed", title_justify="left")
    for heading in ("seed", "who", "status"):
        table.add_column(heading)
    for heading in (
        "env steps",
        "updates",
        "start-up s",
        "(inside)",
        "to solve s",
        "total s",
        "eval",
        "Ray calls/1,000",
    ):
        table.add_column(heading, justify="right")
    for one in outcomes:
        table.add_row(
            str(one.seed),
            one.who,
            one.status,
            f"{one.env_steps:,}",
            f"{one.updates:,}",
            f"{one.startup:.1f}",
            "" if one.startup_inside is None else f"{one.startup_inside:.1f}",
            f"{one.to_solve:.1f}",
            f"{one.total:.1f}",
            f"{one.eval_return:.1f}",
            "" if one.ray_calls_per_1000 is None else f"{one.ray_calls_per_1000:.2f}",
        )
    console.print(table)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="one seed, a few thousand steps: a smoke test, nothing is solved"
    )
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, from 1 on (5)")
    parser.add_argument("--strict", action="store_true", help="exit code 1 when a bar does not hold")
    parser.add_argument("--sb3", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--most-steps", type=int, default=MOST_STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = parse()
    if options.sb3 is not None:
        options.found.write_text(json.dumps(sb3_child(options.sb3, options.most_steps)))
        return 0
    seeds = range(1, 2 if options.quick else options.seeds + 1)
    steps = 8_000 if options.quick else None
    outcomes: list[Outcome] = []
    for seed in seeds:
        for contender in (shoal, sb3):
            one = contender(seed, steps)
            outcomes.append(one)
            say(f"  seed {seed}: {one.who} {one.status} after {one.env_steps:,} steps, {one.to_solve:.1f} s")
    show(outcomes)
    rows = rows_of([one for one in outcomes if one.who == "shoal"], [one for one in outcomes if one.who != "shoal"])
    name = "cartpole" if not options.quick and options.seeds == 5 else "cartpole-partial"
    zoo = {
        **ZOO,
        "exploration_steps": EXPLORATION_STEPS,
        "most_steps": steps or MOST_STEPS,
        "evaluated_every": EVERY_STEPS,
    }
    holds = report(name, rows, PACKAGES, {"seeds": list(seeds), "quick": options.quick, "sb3": zoo})
    written = RESULTS / f"{name}.json"
    written.write_text(
        json.dumps(json.loads(written.read_text()) | {"runs": [asdict(one) for one in outcomes]}, indent=1) + "\n"
    )
    return 1 if options.strict and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
