"""Small environments that behave, and some that do not. Observations count the steps of an episode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

IDS = "ShoalTestCounter-v0", "ShoalTestSpaces-v0", "ShoalTestBroken-v0", "ShoalTestOwnVector-v0", "ShoalTestNeeds-v0"


class Counter(gymnasium.Env[Any, Any]):
    """Ends after `length` steps; the reward is the step number; the observation is (noise of the episode, step)."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def __init__(self, length: int = 3, render_mode: str | None = None) -> None:
        if length < 0:
            raise SystemExit("length is negative")
        if length == 0:
            raise AssertionError  # pytest would give an assert a text
        self.render_mode = render_mode
        self.length, self.fails = length, False
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = spaces.Discrete(3, start=-1)
        self.actions: list[int] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.noise = 0, self.np_random.random()
        return np.array([self.noise, 0.0]), {}

    def step(self, action: Any) -> Any:
        self.actions.append(int(action))
        assert self.action_space.contains(action)
        if self.fails:
            raise RuntimeError("stuck")
        self.t += 1
        return np.array([self.noise, self.t]), float(self.t), self.t >= self.length, False, {}

    def render(self) -> Any:
        return np.zeros((8, 8, 3), np.uint8)


class Spaces(gymnasium.Env[Any, Any]):
    """Any spaces, sampled."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any] | None = None) -> None:
        self.observation_space = observation
        self.action_space = action if action is not None else spaces.Discrete(2)
        self.last: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.last = action
        return self.observation_space.sample(), 0.0, False, False, {}


class Broken(Counter):
    """Does `fault` in step `at` of its life, in the lanes whose number (order of making) is `lane`."""

    made = 0

    def __init__(self, fault: str, at: int = 2, lane: int = 1) -> None:
        super().__init__(length=100)
        if fault == "make":
            raise RuntimeError("no licence")
        self.broken, self.fault, self.at = type(self).made == lane, fault, at
        type(self).made += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.fault == "reset" and self.broken:
            raise RuntimeError("no power")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if self.broken and self.t == self.at:
            if self.fault == "raise":
                raise ZeroDivisionError("boom")
            obs = {"shape": obs[:1], "nan obs": obs * np.nan, "text": np.array(["a", "b"])}.get(self.fault, obs)
            reward = {"nan": np.nan, "inf": -np.inf}.get(self.fault, reward)
        return obs, reward, terminated, truncated, info


def _needs_a_package() -> gymnasium.Env[Any, Any]:
    raise gymnasium.error.DependencyNotInstalled('run `pip install "gymnasium[box2d]"`')


class SameStep(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A vector version that autoresets in another way than Shoal needs."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}

    def __init__(self, num_envs: int, length: int = 3) -> None:
        self.num_envs = num_envs


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Registers the environments above for one test."""
    Broken.made = 0
    entries: list[Any] = [Counter, Spaces, Broken, Counter, _needs_a_package]
    for env_id, entry in zip(IDS, entries, strict=True):
        own = {"vector_entry_point": SameStep} if "OwnVector" in env_id else {}
        gymnasium.register(env_id, entry, **own)
    yield
    for env_id in IDS:
        del gymnasium.registry[env_id]
