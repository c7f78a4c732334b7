"""Path finding as PettingZoo's `ParallelEnv`: one world, a dict entry per agent. Needs the package pettingzoo."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from shoal.envs.pathfinding import LEVEL, Info, Picture, begin, views
from shoal.envs.pathfinding_worlds import MOVES, PathWorlds
from shoal.errors import ConfigError
from shoal.types import Array

try:
    from pettingzoo import ParallelEnv
except ImportError as error:
    raise ConfigError(
        "Path finding as a ParallelEnv needs the package 'pettingzoo': run `pip install 'shoal-rl[multiagent]'`. "
        "`shoal/PathFinding-v0` is the same without it."
    ) from error

Each = dict[str, Any]


class PathFindingParallel(ParallelEnv[str, Array, int]):  # type: ignore[misc]
    """Agents `agent_0`, `agent_1`, ... All end together. `infos[agent]["hears"]` is the agent's row of the
    communication mask, uint8 [max_agents].
    """

    metadata: ClassVar[Info] = {
        "name": "pathfinding_v0",
        "render_modes": ["rgb_array", "ansi", "human"],
        "render_fps": 8,
        "is_parallelizable": True,
        "levels": LEVEL,
    }

    def __init__(self, render_mode: str | None = None, **arguments: Any) -> None:
        """Args:
        render_mode: `rgb_array`, `ansi`, `human` (the text of `ansi` on the terminal, after each step) or None.
        arguments: those of `PathWorlds`.
        """
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ConfigError(f"Path finding has no render mode {render_mode!r}. Use 'rgb_array', 'ansi' or 'human'.")
        self.worlds = PathWorlds(1, **arguments)
        self.render_mode = render_mode
        self.possible_agents = [f"agent_{number}" for number in range(self.worlds.agents)]
        self.agents: list[str] = []
        shape = views(self.worlds)[0].shape[1:]
        self.observation_spaces = {agent: spaces.Box(0, 1, shape, np.uint8) for agent in self.possible_agents}
        self.action_spaces = {agent: spaces.Discrete(MOVES) for agent in self.possible_agents}
        self._picture = Picture(self.worlds)

    def observation_space(self, agent: str) -> spaces.Box:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Discrete:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: Info | None = None) -> tuple[Each, Each]:
        """Starts an episode; seed and options are those of `PathFinding.reset`."""
        begin(self.worlds, seed, options)
        self.agents = self.possible_agents[: int(self.worlds.state.agents[0])]
        self._picture.restart()
        self._show()
        return self._observations(), self._infos()

    def step(self, actions: dict[str, int]) -> tuple[Each, Each, Each, Each, Each]:
        """Plays an action of every agent; in the last step, infos also have `episode_metrics`."""
        if not self.agents:
            return {}, {}, {}, {}, {}
        played = np.zeros((1, self.worlds.agents), np.int64)
        played[0, : len(self.agents)] = [actions[agent] for agent in self.agents]
        terminated, truncated = self.worlds.step(played)
        self._picture.follow()
        self._show()
        rewards = dict(zip(self.agents, self.worlds.state.reward[0].tolist(), strict=False))
        infos = self._infos()
        terminations = dict.fromkeys(self.agents, bool(terminated[0]))
        truncations = dict.fromkeys(self.agents, bool(truncated[0]))
        observations = self._observations()
        if terminated[0] or truncated[0]:
            metrics = self.worlds.metrics(0)
            infos = {agent: {**info, "episode_metrics": metrics} for agent, info in infos.items()}
            self.agents = []
        return observations, rewards, terminations, truncations, infos

    def render(self) -> Any:
        return None if self.render_mode == "human" else self._picture.draw(self.render_mode)

    def state(self) -> Array:
        """What all agents see, [max_agents, 6, D, D]."""
        return views(self.worlds)[0].copy()

    def _observations(self) -> Each:
        return dict(zip(self.agents, views(self.worlds)[0].copy(), strict=False))

    def _infos(self) -> Each:
        hears = views(self.worlds)[1].copy()
        return {agent: {"hears": row} for agent, row in zip(self.agents, hears, strict=False)}

    def _show(self) -> None:
        if self.render_mode == "human":
            sys.stdout.write(f"{self._picture.draw('ansi')}\n\n")


parallel_env = PathFindingParallel
"""The name under which PettingZoo's environments are made."""
