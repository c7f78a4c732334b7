"""Independent learners: one of SB3's DQNs per agent of a PettingZoo environment, all at once.

Each has a network, a buffer and an exploration of its own, and takes the others for a part of the environment. SB3's
defaults are for ten million steps; with the two settings here, a DQN learns far more in some ten thousand.
"""

from __future__ import annotations

import statistics
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3 import DQN
from stable_baselines3.common.logger import Logger

SETTINGS = {"learning_rate": 1e-3, "target_update_interval": 500}


class Seat(gymnasium.Env[Any, Any]):
    """Tells a DQN what one agent sees and does; it is played elsewhere."""

    def __init__(self, env: Any, agent: str) -> None:
        self.observation_space, self.action_space = env.observation_space(agent), env.action_space(agent)


def train(env: Any, steps: int, seed: int) -> dict[str, DQN]:
    """Trains all agents of a parallel environment for so many of its steps."""
    agents = list(env.possible_agents)
    models = {
        agent: DQN("MlpPolicy", Seat(env, agent), **SETTINGS, seed=len(agents) * seed + place, device="cpu")
        for place, agent in enumerate(agents)
    }
    for model in models.values():
        model.set_logger(Logger(None, []))
    obs, _ = env.reset(seed=seed)
    for step in range(1, steps + 1):
        actions = {agent: int(models[agent].predict(obs[agent])[0]) for agent in agents}
        after, reward, terminated, truncated, _ = env.step(actions)
        for agent, model in models.items():
            done = terminated[agent] or truncated[agent]
            cut = [{"TimeLimit.truncated": truncated[agent] and not terminated[agent]}]
            model.replay_buffer.add(obs[agent], after[agent], np.array(actions[agent]), reward[agent], done, cut)
            model.num_timesteps = step
            model._update_current_progress_remaining(step, steps)
            model._on_step()  # exploration, and the copy into the target network
            if step % model.train_freq.frequency == 0 and step > model.learning_starts:
                model.train(gradient_steps=1, batch_size=model.batch_size)
        obs = after if env.agents else env.reset()[0]
    return models


def play(env: Any, models: dict[str, DQN], episodes: int, seed: int) -> float:
    """The mean return of an agent in greedy episodes."""
    returns = []
    for episode in range(episodes):
        (obs, _), total = env.reset(seed=seed + episode), 0.0
        while env.agents:
            actions = {agent: int(models[agent].predict(obs[agent], deterministic=True)[0]) for agent in env.agents}
            obs, reward, *_ = env.step(actions)
            total += statistics.fmean(reward.values())
        returns.append(total)
    return statistics.fmean(returns)
