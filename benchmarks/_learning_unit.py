"""One run of `learning.py`, in its own process: `python _learning_unit.py UNIT FOLDER` writes FOLDER/found.json.

The score is the mean return of greedy episodes with the final weights, in a fresh environment with a seed of its own.
Evaluations do not count as training time.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from _learning_plan import RANDOM, TASKS, ZOO, Task, Unit

EVERY = 10_000
"""Steps between SB3's evaluations: Shoal's default."""
JUDGED = 20
"""Their episodes, likewise."""


def eval_seed(unit: Unit) -> int:
    """Of the final episodes."""
    return unit.seed + 10_000


def of_random(unit: Unit, task: Task) -> dict[str, Any]:
    """Uniformly random actions."""
    env = _make(task)
    env.action_space.seed(unit.seed)
    returns: list[float] = []
    began, steps = time.monotonic(), 0
    for episode in range(100):
        env.reset(seed=eval_seed(unit) if episode == 0 else None)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total, over, steps = total + float(reward), terminated or truncated, steps + 1
        returns.append(total)
    return {"returns": returns, "env_steps": steps, "seconds": time.monotonic() - began, "curve": []}


def of_shoal(unit: Unit, task: Task, folder: Path) -> dict[str, Any]:
    """As a new user would train, with nothing set; the whole number of steps, because no goal is given."""
    import shoal

    run = shoal.train(
        task.env,
        algo=unit.contender,
        steps=unit.steps,
        seed=unit.seed,
        runtime="inline",
        out=folder / "runs",
        quiet=True,
        settings={} if task.limit is None else {"env.max_episode_steps": task.limit},
    )
    summary = run.summary
    assert summary is not None and summary.env_steps >= unit.steps, summary
    began, spent, curve = summary.startup_seconds or 0.0, 0.0, []
    for line in run.metrics():
        if line.get("eval/mean_reward") is not None:
            spent += line.get("time/eval_seconds") or 0.0
            curve.append((line["step"], line["wall"] - began - spent, line["eval/mean_reward"]))
    final = shoal.load(run.path, checkpoint="last").evaluate(task.episodes, seed=eval_seed(unit))
    return {
        "returns": list(final.returns),
        "env_steps": summary.env_steps,
        "updates": summary.updates,
        "seconds": summary.wall_seconds - began - spent,
        "curve": curve,
    }


def of_sb3(unit: Unit, task: Task) -> dict[str, Any]:
    """Stable-Baselines3 with its defaults, or the Zoo's settings."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.utils import LinearSchedule
    from stable_baselines3.common.vec_env import VecNormalize, sync_envs_normalization

    torch.set_num_threads(1)
    settings = dict(ZOO.get(unit.contender, {}).get(unit.env, {}))
    lanes, normalize = settings.pop("n_envs", 1), settings.pop("normalize", False)
    for name, value in settings.items():
        if str(value).startswith("lin_"):
            settings[name] = LinearSchedule(float(value[4:]), 0.0, 1.0)

    def envs(number: int, seed: int, training: bool) -> Any:
        made = make_vec_env(lambda: _make(task), number, seed=seed)
        if not normalize:
            return made
        return VecNormalize(made, training=training, norm_reward=training, gamma=settings.get("gamma", 0.99))

    def judge(model: Any, env: Any, episodes: int) -> list[float]:
        if normalize:
            sync_envs_normalization(model.get_env(), env)
        returns, _ = evaluate_policy(model, env, episodes, deterministic=True, return_episode_rewards=True)
        return [float(value) for value in returns]  # type: ignore[union-attr]

    judged = envs(1, unit.seed + 20_000, False)

    class Judge(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.began, self.spent, self.due = math.nan, 0.0, EVERY
            self.curve: list[tuple[int, float, float]] = []

        def _on_step(self) -> bool:
            now = time.monotonic()
            if math.isnan(self.began):
                self.began = now
            if self.num_timesteps >= self.due:
                self.due += EVERY
                returns = judge(self.model, judged, JUDGED)
                self.curve.append((self.num_timesteps, now - self.began - self.spent, statistics.fmean(returns)))
                self.spent += time.monotonic() - now
            return True

    watch = Judge()
    algorithm = getattr(stable_baselines3, unit.contender.split("-")[1].upper())
    model = algorithm("MlpPolicy", envs(lanes, unit.seed, True), seed=unit.seed, device="cpu", **settings)
    model.set_logger(Logger(None, []))
    model.learn(unit.steps, callback=watch)
    seconds = time.monotonic() - watch.began - watch.spent
    returns = judge(model, envs(1, eval_seed(unit), False), task.episodes)
    return {"returns": returns, "env_steps": model.num_timesteps, "seconds": seconds, "curve": watch.curve}


def _make(task: Task) -> Any:
    import gymnasium

    return gymnasium.make(task.env, **({} if task.limit is None else {"max_episode_steps": task.limit}))


def measure(unit: Unit, folder: Path) -> dict[str, Any]:
    """Runs one unit: the mean and the standard deviation of the final returns, and the curve."""
    task = TASKS[unit.env]
    if unit.contender == RANDOM:
        found = of_random(unit, task)
    elif unit.contender.startswith("sb3-"):
        found = of_sb3(unit, task)
    else:
        found = of_shoal(unit, task, folder)
    returns = found.pop("returns")
    found |= {"score": round(statistics.fmean(returns), 4), "spread": round(statistics.pstdev(returns), 4)}
    found["seconds"] = round(found["seconds"], 2)
    found["curve"] = [[step, round(seconds, 2), round(mean, 3)] for step, seconds, mean in found["curve"]]
    return found


if __name__ == "__main__":
    place = Path(sys.argv[2])
    (place / "found.json").write_text(json.dumps(measure(Unit(**json.loads(sys.argv[1])), place)))
