"""A vector environment that steps ordinary environments one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from shoal.envs.episode_metrics import Metrics, merge, told_by_one
from shoal.envs.faults import close_quietly
from shoal.envs.spaces import policy_dtype
from shoal.errors import on_failure
from shoal.types import Array

Step = tuple[Array, Array, npt.NDArray[np.bool_], npt.NDArray[np.bool_], dict[str, Any]]


class LoopVectorEnv(VectorEnv[Array, Array, Array]):
    """Does exactly what `gymnasium.vector.SyncVectorEnv` does in NEXT_STEP autoreset (a test compares them).

    It exists for four reasons. `lane` says which sub-environment was running when one raised. Observations are written
    once, in the policy's dtype, into a new array. Of the sub-environments' info dicts, only what they say of finished
    episodes is merged. And every episode can be played at a level of its own.
    """

    def __init__(self, make_one: Callable[[], gymnasium.Env[Any, Any]], lanes: int) -> None:
        """Makes the sub-environments; their observation space must be a Box."""
        self.lane: int | None = 0
        self.envs: list[gymnasium.Env[Any, Any]] = []
        with on_failure(self.close_extras):
            for self.lane in range(lanes):
                self.envs.append(make_one())
        self.lane = None
        self.num_envs = lanes
        self.metadata = {**self.envs[0].metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        observation = self.envs[0].observation_space
        assert isinstance(observation, spaces.Box)
        self.single_observation_space = observation
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(observation, lanes)
        self.action_space = batch_space(self.single_action_space, lanes)
        self._shape = observation.shape
        self._dtype = policy_dtype(observation)
        self._ended = [False] * lanes
        self._levels: Sequence[Mapping[str, float]] = ()
        self._level: list[Mapping[str, float]] = [{}] * lanes
        self._rng = np.random.default_rng()

    def set_levels(self, levels: Sequence[Mapping[str, float]]) -> None:
        """From its next reset on, each lane plays one of these levels, drawn anew at each reset."""
        self._levels = levels

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Resets all lanes; `seed` is one int per lane or None."""
        obs: Array = np.empty((self.num_envs, *self._shape), self._dtype)
        if seed is not None:
            self._rng = np.random.default_rng([int(one) for one in seed])
        for lane in range(self.num_envs):
            self.lane = lane
            one = self._reset(lane, None if seed is None else int(seed[lane]), options)
            self._write(obs[lane, ...], one)
        self._ended = [False] * self.num_envs
        self.lane = None
        return obs, {}

    def step(self, actions: Array) -> Step:
        """Steps each lane, or resets it if it ended in the step before."""
        obs: Array = np.empty((self.num_envs, *self._shape), self._dtype)
        rewards = np.zeros(self.num_envs)
        terminated = np.zeros(self.num_envs, np.bool_)
        truncated = np.zeros(self.num_envs, np.bool_)
        told: dict[int, Metrics] = {}
        for lane, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            self.lane = lane
            if self._ended[lane]:
                one = self._reset(lane)
                self._ended[lane] = False
            else:
                one, rewards[lane], terminal, cut, info = env.step(action)
                if terminal or cut:
                    terminated[lane], truncated[lane] = terminal, cut
                    self._ended[lane] = True
                    told[lane] = told_by_one(info, self._level[lane])
            self._write(obs[lane, ...], one)
        self.lane = None
        return obs, rewards, terminated, truncated, merge(self.num_envs, told)

    def close_extras(self, **kwargs: Any) -> None:
        """Closes all sub-environments, even if one raises."""
        for env in self.envs:
            close_quietly(env)

    def _reset(self, lane: int, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begins an episode in one lane; returns its first observation."""
        if self._levels:
            self._level[lane] = self._levels[int(self._rng.integers(len(self._levels)))]
            options = {**(options or {}), "level": dict(self._level[lane])}
        return self.envs[lane].reset(seed=seed, options=options)[0]

    def _write(self, row: Array, one: Any) -> None:
        # A wrong shape that happens to broadcast must not pass, so copyto alone is not enough.
        if np.shape(one) != self._shape:
            raise ValueError(f"observation of shape {np.shape(one)}, but its space says {self._shape}")
        np.copyto(row, one, casting="same_kind")
