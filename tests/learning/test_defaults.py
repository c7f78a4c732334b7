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


@pytest.mark.parametrize("algo", ["impact", "impala"])
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
