"""On-policy runs give and never take; and what a run read is logged."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("stable_baselines3")

import torch
from stable_baselines3 import A2C, PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from shoal.errors import ConfigError
from shoal.sharing import (
    ContributingVecEnv,
    DistributedReplayBuffer,
    Registry,
    SharingCallback,
    share_metrics,
)

SMALL: dict[str, Any] = {"device": "cpu", "seed": 3}


class Counting(gymnasium.Env[Any, Any]):
    """Observations count steps; every third episode is cut by a time-out, the others end."""

    def __init__(self, lane: int, as_dict: bool) -> None:
        box = spaces.Box(-1e6, 1e6, (2,), np.float32)
        self.observation_space = spaces.Dict({"count": box}) if as_dict else box
        self.action_space = spaces.Box(np.array([-2, 0], np.float32), np.array([2, 10], np.float32))
        self._lane, self._dict, self._steps, self._episodes = lane, as_dict, 0, 0

    def _observe(self) -> Any:
        obs = np.array([self._steps, self._lane], np.float32)
        return {"count": obs} if self._dict else obs

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Goes on counting from the next thousand."""
        super().reset(seed=seed)
        self._steps = -(-(self._steps + 1) // 1000) * 1000
        self._episodes += 1
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Ends after five steps."""
        self._steps += 1
        end, out = self._steps % 1000 >= 5 + self._lane, self._episodes % 3 == 0
        return self._observe(), float(action[0]), end and not out, end and out, {}


@pytest.mark.parametrize("as_dict", [False, True])
def test_every_step_is_written_down(group: Registry, as_dict: bool) -> None:
    venv = DummyVecEnv([lambda lane=lane: Counting(lane, as_dict) for lane in range(3)])
    env = ContributingVecEnv(venv, group, group.register_buffer("ppo", "PPO"), size=3000)
    env.reset()
    taken = []
    for step in range(60):
        actions = np.stack([np.full(3, step % 5 - 2), np.full(3, step % 11)], axis=1).astype(np.float32)
        taken.append(actions.copy())
        env.step(actions)
        actions[:] = 99  # the caller may use its array again
    buffer = env.buffer
    part = (lambda obs: obs["count"]) if as_dict else (lambda obs: obs)
    obs, following = part(buffer.observations)[:60], part(buffer.next_observations)[:60]
    assert (obs[..., 1] == np.arange(3)).all() and (following[..., 1] == np.arange(3)).all()
    assert (following[..., 0] == obs[..., 0] + 1).all(), "what follows is the last observation, not the next episode's"
    ends = following[..., 0] % 1000 == 5 + np.arange(3)
    episode = obs[..., 0] // 1000
    assert (buffer.dones[:60] == ends).all() and ends.any(axis=0).all()
    assert (buffer.timeouts[:60] == (ends & (episode % 3 == 0))).all() and buffer.timeouts.any()
    scaled = np.stack(taken)
    assert np.allclose(buffer.actions[:60], np.stack([scaled[..., 0] / 2, scaled[..., 1] / 5 - 1], axis=-1))
    assert np.allclose(buffer.rewards[:60], scaled[..., 0])
    env.close()


@pytest.mark.parametrize("algorithm", [PPO, A2C])
@pytest.mark.parametrize("env_id", ["Pendulum-v1", "CartPole-v1"])
def test_training_is_the_same_and_nothing_is_read(group: Registry, algorithm: Any, env_id: str) -> None:
    states = []
    options = {"n_steps": 16, **SMALL, **({"batch_size": 32} if algorithm is PPO else {})}
    for contributes in (False, True):
        env = make_vec_env(env_id, 2, seed=1)
        if contributes:
            env = ContributingVecEnv(env, group, group.register_buffer("giver", algorithm.__name__, env_id))
        model = algorithm("MlpPolicy", VecNormalize(env), policy_kwargs={"net_arch": [8]}, **options)
        model.learn(96)
        states.append(model.policy.state_dict())
        model.get_env().close()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    (stats,) = group.get_buffer_stats().values()
    assert stats == {"run_id": "giver", "algorithm": algorithm.__name__, "rows": 96}
    buffer = env.buffer
    assert buffer.get_stats()["local_samples"] == 0 and buffer.get_stats()["num_shared_buffers"] == 0
    if env_id == "Pendulum-v1":
        assert np.abs(buffer.actions[:48]).max() <= 1.0
        assert (buffer.rewards[:48] < 0).all() and buffer.rewards[:48].min() < -1, "raw rewards, not normalised ones"
        circle = np.square(buffer.observations[:48, :, :2]).sum(axis=-1)
        assert np.allclose(circle, 1.0, atol=1e-5), "raw observations, not normalised ones"


class Kept(KVWriter):
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
        """Called by SB3's logger."""
        self.values |= key_values

    def close(self) -> None:
        """Nothing to close."""


def test_sac_learns_from_ppo_and_logs_it(group: Registry) -> None:
    giver = ContributingVecEnv(make_vec_env("Pendulum-v1", 2), group, group.register_buffer("ppo_1", "PPO"))
    PPO("MlpPolicy", giver, n_steps=16, batch_size=32, **SMALL).learn(64)
    kwargs = {"registry": group, "buffer_id": group.register_buffer("sac_1", "SAC"), "cross_sample_ratio": 0.25}
    model = SAC(
        "MlpPolicy",
        make_vec_env("Pendulum-v1", 1),
        learning_starts=20,
        batch_size=16,
        buffer_size=500,
        policy_kwargs={"net_arch": [8]},
        replay_buffer_class=DistributedReplayBuffer,
        replay_buffer_kwargs=kwargs,
        **SMALL,
    )
    kept = Kept()
    model.set_logger(Logger(None, [kept]))
    model.learn(50, callback=SharingCallback())
    model.logger.dump()
    assert kept.values["share/foreign_fraction"] == kept.values["share/ppo_1/fraction"] == 0.25
    assert kept.values["share/peers"] == 1 and 0 < kept.values["share/age"] < 32
    assert share_metrics(model.replay_buffer)["share/foreign_fraction"] == 0.25
    giver.close()
    model.get_env().close()


def test_the_callback_lets_other_models_be() -> None:
    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", 1), n_steps=16, batch_size=16, **SMALL)
    model.learn(16, callback=SharingCallback())
    model.get_env().close()


def test_without_a_group_it_is_harmless() -> None:
    env = ContributingVecEnv(make_vec_env("CartPole-v1", 2), size=100)
    env.reset()
    env.step(np.array([0, 1]))
    assert env.buffer.size() == 1 and env.buffer.actions[0].tolist() == [[0], [1]]
    env.close()


def test_actions_without_bounds_cannot_be_shared(group: Registry) -> None:
    """Scaled to [-1, 1] they would be NaN for whoever reads them."""

    class Unbounded(gymnasium.Env[Any, Any]):
        observation_space = spaces.Box(-1, 1, (2,))
        action_space = spaces.Box(-np.inf, np.inf, (1,))

    with pytest.raises(ConfigError, match="has no bounds"):
        ContributingVecEnv(DummyVecEnv([Unbounded]), group)
