"""On-policy runs of Stable-Baselines3 contribute their steps and read none; a callback logs what a run reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from shoal.errors import ConfigError
from shoal.sharing.registry import Registry
from shoal.sharing.sb3_buffer import DistributedReplayBuffer
from shoal.sharing.stats import sampling_metrics
from shoal.types import Array

SIZE = 100_000


class ContributingVecEnv(VecEnvWrapper):
    """Writes every step of PPO, A2C … into a buffer of the group, for off-policy runs to learn from.

    Put it inside VecNormalize: raw values are shared, and each run normalises with its own statistics.
    """

    def __init__(
        self,
        venv: VecEnv,
        registry: Registry | Path | str | None = None,
        buffer_id: str | None = None,
        size: int | None = None,
    ) -> None:
        """Args:
        venv: the environments.
        registry: the group; by default that of SHOAL_REGISTRY.
        buffer_id: this run's; by default SHOAL_BUFFER_ID or a new one.
        size: rows to keep.
        """
        super().__init__(venv)
        if isinstance(self.action_space, spaces.Box) and not self.action_space.is_bounded():
            raise ConfigError(
                f"The action space {self.action_space} has no bounds, so its actions cannot be scaled to [-1, 1] for "
                "other runs: leave ContributingVecEnv out."
            )
        self.buffer = DistributedReplayBuffer(
            size or SIZE,
            self.observation_space,
            self.action_space,
            "cpu",
            self.num_envs,
            registry=registry,
            buffer_id=buffer_id,
            sample_strategy="local_only",
        )
        self._obs: Any = None
        self._actions: Array = np.empty(0)

    def reset(self) -> Any:
        """Starts new episodes."""
        self._obs = _kept(self.venv.reset())
        return self._obs

    def step_async(self, actions: Array) -> None:
        """Sends the actions."""
        self._actions = np.array(actions)
        self.venv.step_async(actions)

    def step_wait(self) -> Any:
        """Takes the answer and stores the step."""
        obs, rewards, dones, infos = self.venv.step_wait()
        following = _kept(obs)
        for lane in np.flatnonzero(dones):
            final = infos[lane].get("terminal_observation")
            if final is not None:
                _put(following, int(lane), final)
        self.buffer.add(self._obs, following, self._stored(self._actions), rewards, dones, infos)
        self._obs = _kept(obs)
        return obs, rewards, dones, infos

    def _stored(self, actions: Array) -> Array:
        """As SB3's off-policy algorithms store them: continuous ones in [-1, 1]."""
        if not isinstance(self.action_space, spaces.Box):
            return actions
        low, high = self.action_space.low, self.action_space.high
        scaled: Array = 2.0 * (actions - low) / (high - low) - 1.0
        return scaled


class SharingCallback(BaseCallback):
    """Logs what was read from whom, as `share/...`, beside SB3's own values."""

    def _on_rollout_end(self) -> None:
        if (buffer := buffer_of(self.model)) is not None:
            for name, value in share_metrics(buffer).items():
                self.logger.record(name, value)

    def _on_step(self) -> bool:
        return True


def buffer_of(model: Any) -> DistributedReplayBuffer | None:
    """The buffer that a model shares, if it has one."""
    buffer = getattr(model, "replay_buffer", None)
    return buffer if isinstance(buffer, DistributedReplayBuffer) else None


def share_metrics(buffer: DistributedReplayBuffer) -> dict[str, float]:
    """A buffer's statistics under the names they are logged by."""
    return sampling_metrics(buffer.get_stats())


def _kept(obs: Any) -> Any:
    """A copy: vector environments may reuse their arrays."""
    return {key: part.copy() for key, part in obs.items()} if isinstance(obs, dict) else np.array(obs)


def _put(obs: Any, lane: int, final: Any) -> None:
    if isinstance(obs, dict):
        for key in obs:
            obs[key][lane] = final[key]
    else:
        obs[lane] = final
