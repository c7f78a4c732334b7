"""What `learning.py` measures: environments, contenders, the order of the runs; and the store of finished runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from _harness import RESULTS, _run, _version

ROOT = Path(__file__).resolve().parents[1]
FILE = RESULTS / "learning.json"
STORE = RESULTS / "learning-partial.jsonl"


class Task(NamedTuple):
    """An environment and how it is used, alike for every contender."""

    env: str
    continuous: bool
    steps: int
    goal: float
    """The environment's own reward threshold where it has one; named here for CliffWalking, Pendulum and Hopper."""
    episodes: int = 20
    """Of the final score. FrozenLake's returns are 0 or 1, so 20 would say little."""
    limit: int | None = None
    """Steps at which episodes are cut, where the environment has no time limit."""


TASKS = {
    task.env: task
    for task in (
        Task("CartPole-v1", False, 100_000, 475),
        Task("Acrobot-v1", False, 100_000, -100),
        Task("LunarLander-v3", False, 100_000, 200),
        Task("MountainCar-v0", False, 100_000, -110),
        Task("FrozenLake-v1", False, 100_000, 0.7, episodes=100),
        Task("CliffWalking-v1", False, 100_000, -13, limit=200),
        Task("Pendulum-v1", True, 100_000, -200),
        Task("InvertedPendulum-v5", True, 100_000, 950),
        Task("Hopper-v5", True, 100_000, 1000),
        Task("MountainCarContinuous-v0", True, 50_000, 90),
    )
}
SEEDS = 5
RANDOM = "random"
OURS = {False: ("apex-dqn", "apex-qr-dqn", "impala", "impact", "ppo", "a3c"), True: ("sac", "td3", "d4pg", "apex-dpg")}
"""Shoal's algorithms for discrete and for continuous actions, with nothing set."""
PEERS = {False: ("sb3-dqn", "sb3-ppo"), True: ("sb3-sac", "sb3-td3")}
"""Stable-Baselines3 with nothing set: MlpPolicy on the CPU."""
_WIDE = {"policy_kwargs": {"net_arch": [256, 256]}}
_DQN = {"learning_rate": 6.3e-4, "batch_size": 128, "buffer_size": 50_000, "learning_starts": 0, **_WIDE}
_DQN |= {"target_update_interval": 250, "train_freq": 4, "gradient_steps": -1}
_DQN |= {"exploration_fraction": 0.12, "exploration_final_eps": 0.1}
_CARTPOLE_DQN = {"learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "learning_starts": 1000, **_WIDE}
_CARTPOLE_DQN |= {"target_update_interval": 10, "train_freq": 256, "gradient_steps": 128}
_CARTPOLE_DQN |= {"exploration_fraction": 0.16, "exploration_final_eps": 0.04}
_CAR_DQN = {"learning_rate": 4e-3, "batch_size": 128, "buffer_size": 10_000, "learning_starts": 1000, **_WIDE}
_CAR_DQN |= {"gamma": 0.98, "target_update_interval": 600, "train_freq": 16, "gradient_steps": 8}
_CAR_DQN |= {"exploration_fraction": 0.2, "exploration_final_eps": 0.07}
_CARTPOLE_PPO = {"n_envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20}
_CARTPOLE_PPO |= {"learning_rate": "lin_0.001", "clip_range": "lin_0.2"}
_LANDER_PPO = {"n_envs": 16, "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4}
_ACROBOT_PPO = {"normalize": True, "n_envs": 16, "n_steps": 256, "gae_lambda": 0.94, "n_epochs": 4}
_CAR_PPO = {"normalize": True, "n_envs": 16, "n_steps": 16, "gae_lambda": 0.98, "n_epochs": 4}
ZOO: dict[str, dict[str, dict[str, Any]]] = {
    "sb3-dqn-zoo": {
        "CartPole-v1": _CARTPOLE_DQN,
        "Acrobot-v1": _DQN,
        "LunarLander-v3": _DQN,
        "MountainCar-v0": _CAR_DQN,
    },
    "sb3-ppo-zoo": {
        "CartPole-v1": _CARTPOLE_PPO,
        "Acrobot-v1": _ACROBOT_PPO,
        "LunarLander-v3": {**_LANDER_PPO, "ent_coef": 0.01},
        "MountainCar-v0": _CAR_PPO,
    },
}
"""The tuned settings of RL Baselines3 Zoo (hyperparams/dqn.yml and ppo.yml; LunarLander's are those of its v2)."""
CONTENDERS = (*OURS[False], *PEERS[False], *ZOO, *OURS[True], *PEERS[True], RANDOM)


@dataclass(frozen=True)
class Unit:
    """One run: a contender on an environment with a seed."""

    contender: str
    env: str
    seed: int
    steps: int

    def __str__(self) -> str:
        return f"{self.contender} {self.env} seed {self.seed}"


def contenders(task: Task, only: Iterable[str] | None = None, zoo: bool = False) -> list[str]:
    """Who is measured on a task: random, Shoal, SB3; the Zoo's settings if asked for."""
    tuned = tuple(name for name, tasks in ZOO.items() if task.env in tasks and (zoo or name in (only or ())))
    names = (RANDOM, *OURS[task.continuous], *PEERS[task.continuous], *tuned)
    return [name for name in names if only is None or name in only]


def units(
    tasks: Iterable[Task], seeds: int, *, only: Iterable[str] | None = None, steps: int | None = None, zoo: bool = False
) -> list[Unit]:
    """All runs, the first seed of everything first; SB3's continuous ones, 20 minutes each, after all others."""
    tasks = list(tasks)
    every = [
        Unit(name, task.env, seed, steps or task.steps)
        for seed in range(1, seeds + 1)
        for task in tasks
        for name in contenders(task, only, zoo)
    ]
    return sorted(every, key=lambda unit: unit.contender in PEERS[True])


def source_of(contender: str) -> dict[str, str]:
    """The version of the code that a contender runs."""
    if contender == RANDOM:
        return {}
    if contender.startswith("sb3-"):
        return {"sb3": _version("stable-baselines3")}
    digest = hashlib.sha256()
    for path in sorted((ROOT / "src" / "shoal").rglob("*")):
        if path.suffix in (".py", ".yaml", ".yml"):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return {"commit": _run("git", "rev-parse", "--short=9", "HEAD") or "none", "sources": digest.hexdigest()[:12]}


class Store:
    """Finished runs, one JSON object per line. Runners may append to one file at the same time."""

    def __init__(self, path: Path, begin_with: Path | None = None) -> None:
        """Where there is no store yet, it begins with the runs of a results file."""
        self.path = path
        if begin_with is not None and begin_with.exists() and not path.exists():
            self._write(json.loads(begin_with.read_text())["units"])

    def read(self) -> dict[Unit, dict[str, Any]]:
        """What is there; the later of two results of a unit counts, and a line cut off by a crash is skipped."""
        found: dict[Unit, dict[str, Any]] = {}
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            try:
                one = json.loads(line)
                unit = Unit(one["contender"], one["env"], one["seed"], one["steps"])
            except (ValueError, KeyError):
                continue
            if "error" not in one or "score" not in found.get(unit, {}):  # a failure does not replace a result
                found[unit] = one
        return found

    def missing(self, wanted: Iterable[Unit]) -> list[Unit]:
        """Those without a result; failed ones are tried again."""
        there = {unit for unit, one in self.read().items() if "error" not in one}
        return [unit for unit in wanted if unit not in there]

    def add(self, unit: Unit, result: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps({**asdict(unit), **result}) + "\n")

    def drop(self, names: Iterable[str], envs: Iterable[str]) -> int:
        """Forgets contenders' results on some environments."""
        there = self.read()
        kept = [one for unit, one in there.items() if not (unit.contender in names and unit.env in envs)]
        self._write(kept)
        return len(there) - len(kept)

    def _write(self, results: Iterable[dict[str, Any]]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text("".join(json.dumps(one) + "\n" for one in results))
        new.replace(self.path)
