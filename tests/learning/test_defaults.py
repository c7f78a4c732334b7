"""With nothing set, algorithms learn, whatever the size of rewards and observations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import shoal

pytestmark = pytest.mark.learning


class Scaled(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment in other units: rewards and observations are multiplied."""

    def __init__(self, env: gymnasium.Env[Any, Any], rewards: float, observations: float) -> None:
        super().__init__(env)
        self._rewards, self._observations = rewards, observations
        space = env.observation_space
        assert isinstance(space, gymnasium.spaces.Box)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, space.shape, np.float32)

    def reset(self, **kwargs: Any) -> Any:
        obs, info = self.env.reset(**kwargs)
        return self._observations * obs, info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._observations * obs, self._rewards * float(reward), terminated, truncated, info


@pytest.mark.parametrize("algo", ["a3c", "impact", "impala", "ppo"])
def test_cartpole(tmp_path: Path, algo: str) -> None:
    """The others take longer: `make bench-learning`."""
    ends: dict[str, Any] = {"steps": 100_000, "stop_return": 300}
    run = shoal.train("CartPole-v1", algo=algo, runtime="inline", quiet=True, out=tmp_path, **ends)
    assert run.summary is not None and run.summary.status == "solved", run.summary


@pytest.mark.parametrize(("rewards", "observations"), [(1000.0, 0.01), (0.01, 100.0)])
def test_units_do_not_matter(tmp_path: Path, rewards: float, observations: float) -> None:
    scaled = {"name": "tests.learning.test_defaults:Scaled", "args": {"rewards": rewards, "observations": observations}}
    run = shoal.train(
        "CartPole-v1",
        algo="impact",
        runtime="inline",
        steps=100_000,
        stop_return=200 * rewards,
        quiet=True,
        out=tmp_path,
        settings={"env.wrappers": [scaled]},
    )
    assert run.summary is not None and run.summary.status == "solved", run.summary


class DistantGoal(gymnasium.Env[Any, Any]):
    """A corridor of 51 fields, from its middle. The last one on the right pays 1, within 50 steps. Of 10,000 episodes
    with random single actions, 5 get there.
    """

    observation_space = gymnasium.spaces.Discrete(51)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._at, self._steps = 25, 0
        return self._at, {}

    def step(self, action: Any) -> Any:
        self._at, self._steps = max(0, self._at + (1 if action == 1 else -1)), self._steps + 1
        there = self._at == 50
        return self._at, float(there), there, self._steps == 50, {}


@pytest.mark.parametrize("algo", ["impact", "impala"])
def test_a_distant_goal_is_found(tmp_path: Path, algo: str) -> None:
    ends: dict[str, Any] = {"steps": 30_000, "stop_return": 1.0}
    name = "tests.learning.test_defaults:DistantGoal"
    run = shoal.train(name, algo=algo, runtime="inline", quiet=True, out=tmp_path, **ends)
    assert run.summary is not None and run.summary.status == "solved", run.summary
