"""Runs one training in a separate process: Shoal as a user starts it, or Stable-Baselines3."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RUN_SECONDS = 6 * 3600.0


@dataclass
class Outcome:
    """The result of one seed. `curve` holds (environment steps, seconds since the first step, mean return)."""

    who: str
    what: str
    seed: int
    status: str
    env_steps: int
    updates: int
    seconds: float
    """From the first environment step to the end, for SB3 without its evaluations."""
    samples_per_insert: float | None = None
    curve: list[tuple[int, float, float]] = field(default_factory=list)

    @property
    def last(self) -> float:
        return self.curve[-1][2] if self.curve else math.nan

    def first_at(self, goal: float) -> tuple[int, float] | None:
        """Steps and seconds of the first evaluation that reached the goal."""
        return next(((steps, seconds) for steps, seconds, mean in self.curve if mean >= goal), None)


def shoal(scenario: str, seed: int, overrides: tuple[str, ...] = (), who: str = "shoal") -> Outcome:
    """Runs `shoal train SCENARIO --seed SEED ...` in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "runs", Path(folder) / "output.txt"
        command = [sys.executable, "-m", "shoal", "train", scenario, "--seed", str(seed), "--out", str(out)]
        # Shoal sets its own thread counts and must not depend on this variable.
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        with log.open("w") as output:
            process = subprocess.Popen([*command, *overrides], cwd=ROOT, stdout=output, stderr=output, env=environment)
        try:
            code = process.wait(RUN_SECONDS)
        except BaseException:
            process.terminate()
            process.wait(60)
            raise
        finally:
            with contextlib.suppress(OSError, ValueError):  # an interrupted run keeps its replay
                place = json.loads((out / "latest" / "replay.json").read_text())["path"]
                shutil.rmtree(place, ignore_errors=True)
        if code != 0:
            raise SystemExit(f"{' '.join(command)} ended with {code}:\n{log.read_text()[-4000:]}")
        summary = json.loads((out / "latest" / "summary.json").read_text())
        lines = [json.loads(line) for line in (out / "latest" / "metrics.jsonl").read_text().splitlines()]
        began = summary["startup_seconds"] or 0.0
        return Outcome(
            who,
            scenario,
            seed,
            summary["status"],
            summary["env_steps"],
            summary["updates"],
            summary["wall_seconds"] - began,
            summary["samples_per_insert"],
            [(line["step"], line["wall"] - began, line["eval/mean_reward"]) for line in lines if _judged(line)],
        )


def _judged(line: dict[str, Any]) -> bool:
    return line.get("eval/mean_reward") is not None


@dataclass
class Sb3Plan:
    """The task of an SB3 process."""

    algo: str
    env: str
    steps: int
    settings: dict[str, Any]
    every_steps: int
    episodes: int
    goal: float | None = None
    """Stops at the first evaluation that reaches this return."""
    who: str = "sb3"
    threads: int = 1


def sb3(plan: Sb3Plan, seed: int) -> Outcome:
    """Runs one seed in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "found.json"
        text = json.dumps(plan.__dict__)
        command = [sys.executable, "-W", "ignore", __file__, text, str(seed), str(result)]
        subprocess.run(command, check=True, timeout=RUN_SECONDS, cwd=ROOT)
        found: dict[str, Any] = json.loads(result.read_text())
    curve = [tuple(point) for point in found.pop("curve")]
    return Outcome(plan.who, f"{plan.algo} {plan.env}", seed, **found, curve=curve)


def sb3_child(plan: Sb3Plan, seed: int) -> dict[str, Any]:
    """Trains. Evaluations do not count as training time."""
    import gymnasium
    import stable_baselines3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.monitor import Monitor

    torch.set_num_threads(plan.threads)
    judged = Monitor(gymnasium.make(plan.env))
    judged.reset(seed=seed + 10_000)

    class Judge(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.began, self.spent = math.nan, 0.0
            self.curve: list[tuple[int, float, float]] = []

        def _on_step(self) -> bool:
            if self.num_timesteps == 1:
                self.began = time.monotonic()
            if self.num_timesteps % plan.every_steps:
                return True
            asked = time.monotonic()
            mean, _ = evaluate_policy(self.model, judged, n_eval_episodes=plan.episodes)
            self.curve.append((self.num_timesteps, asked - self.began - self.spent, float(mean)))  # type: ignore[arg-type]
            self.spent += time.monotonic() - asked
            return plan.goal is None or self.curve[-1][2] < plan.goal

    judge = Judge()
    settings = {"device": "cpu", **plan.settings}
    model = getattr(stable_baselines3, plan.algo)("MlpPolicy", gymnasium.make(plan.env), seed=seed, **settings)
    model.set_logger(Logger(None, []))
    model.learn(plan.steps, callback=judge)
    reached = plan.goal is not None and bool(judge.curve) and judge.curve[-1][2] >= plan.goal
    return {
        "status": "solved" if reached else "finished",
        "env_steps": model.num_timesteps,
        "updates": model._n_updates,
        "seconds": time.monotonic() - judge.began - judge.spent,
        "curve": judge.curve,
    }


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(json.dumps(sb3_child(Sb3Plan(**json.loads(sys.argv[1])), int(sys.argv[2]))))
