"""Path finding: agents on a grid, each with a goal of its own; the episode succeeds when all stand on their goals.

The task of DHC (https://arxiv.org/abs/2106.11365), whose rules these are, and of PRIMAL before it. See
docs/pathfinding.md. `PathFindingVector` is what training uses, `PathFinding` one world for pictures and for playing by
hand; `pathfinding_parallel.py` has PettingZoo's form.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from shoal.envs.parts import PackedBox
from shoal.envs.pathfinding_render import TRAIL, draw_picture, draw_text
from shoal.envs.pathfinding_rules import ALL_ON_GOALS, CHANNELS, COLLISION
from shoal.envs.pathfinding_worlds import LARGEST_SIZE, MOVES, NO_LIMIT, Cases, Flags, Ints, PathWorlds, fixed_cases
from shoal.errors import ConfigError, EnvError
from shoal.types import Array

__all__ = ["Cases", "PathFinding", "PathFindingVector", "PathWorlds", "fixed_cases"]

Info = dict[str, Any]

LEVEL = ["agents", "size"]
"""The numbers of a level, for `metadata`."""


class PathFindingVector(VectorEnv[Array, Array, Array]):
    """Many worlds, one numba call per step, in NEXT_STEP autoreset. Observations are packed rows, as in training."""

    metadata: ClassVar[Info] = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": [], "levels": LEVEL}  # type: ignore[misc]

    def __init__(self, num_envs: int, render_mode: None = None, **arguments: Any) -> None:
        """Args:
        num_envs: how many worlds.
        render_mode: none; `PathFinding` draws pictures.
        arguments: those of `PathWorlds`.
        """
        self.worlds = PathWorlds(num_envs, **arguments)
        self.num_envs, self.render_mode = num_envs, render_mode
        self.single_observation_space = self._packed = PackedBox(observation_space(self.worlds))
        self.single_action_space = spaces.MultiDiscrete([MOVES] * self.worlds.agents)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def set_levels(self, levels: Sequence[Mapping[str, float]]) -> None:
        """Every new episode draws one of these levels, such as {"agents": 4, "size": 20}."""
        self.worlds.set_levels(levels)

    def reset(self, *, seed: Any = None, options: Info | None = None) -> tuple[Array, Info]:
        """Starts an episode in every world: obs [W, row]. World w gets seed + w of an int; fixed cases start anew.

        `options={"level": {...}}` sets the one level of this and the following episodes.
        """
        if seed is not None:
            self.worlds.seed(seed)
        set_level(self.worlds, options)
        self.worlds.reset()
        return self._rows(), {}

    def step(self, actions: Array) -> tuple[Array, Array, Flags, Flags, Info]:
        """Plays actions [W, A]; `info["episode_metrics"]` tells of the episodes that ended."""
        terminated, truncated = self.worlds.step(actions)
        info: Info = {}
        for world in (terminated | truncated).nonzero()[0].tolist():
            info = self._add_info(info, {"episode_metrics": self.worlds.metrics(world)}, world)
        return self._rows(), self.worlds.mean_reward(), terminated, truncated, info

    def _rows(self) -> Array:
        """What `PackedBox.pack` would make of each world's observation: new rows [W, row]."""
        state = self.worlds.state
        in_bytes = self._packed.dtype == np.uint8
        floats = [state.reward]
        if self.worlds.positions:
            floats.insert(0, self.worlds.places().reshape(self.num_envs, -1))
        stored = [one.view(np.uint8) if in_bytes else one for one in floats]
        return np.concatenate([state.seen, *stored], axis=1, dtype=self._packed.dtype)


class PathFinding(gymnasium.Env[Info, Array]):
    """One world, with observations as a dict of arrays; draws pictures."""

    metadata: ClassVar[Info] = {"render_modes": ["rgb_array", "ansi"], "render_fps": 8, "levels": LEVEL}  # type: ignore[misc]

    def __init__(self, render_mode: str | None = None, **arguments: Any) -> None:
        """Args:
        render_mode: `rgb_array`, `ansi` or None.
        arguments: those of `PathWorlds`.
        """
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ConfigError(f"Path finding has no render mode {render_mode!r}. Use 'rgb_array' or 'ansi'.")
        self.worlds = PathWorlds(1, **arguments)
        self.render_mode = render_mode
        self.observation_space = observation_space(self.worlds)
        self.action_space = spaces.MultiDiscrete([MOVES] * self.worlds.agents)
        self._picture = Picture(self.worlds)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Info, Info]:
        """Starts an episode. A seed also goes back to the first fixed case.

        Options: `level`, such as {"agents": 4, "size": 20}, for this and the following episodes; `map`, with
        `obstacles` [S, S], `starts` [A, 2] and `goals` [A, 2], for this one.
        """
        super().reset(seed=seed)
        if self.spec is not None:  # made by gymnasium.make, whose TimeLimit it is that cuts episodes
            self.worlds.rules = self.worlds.rules._replace(limit=NO_LIMIT)
        begin(self.worlds, seed, options)
        self._picture.restart()
        return self._observation(), {}

    def step(self, action: Array) -> tuple[Info, float, bool, bool, Info]:
        """Plays actions [A]; `info["episode_metrics"]` tells of the episode so far."""
        if self.worlds.state.ended[0]:
            raise EnvError("The episode of path finding has ended: call reset.")
        terminated, truncated = self.worlds.step(np.asarray(action)[None])
        self._picture.follow()
        reward, info = float(self.worlds.mean_reward()[0]), {"episode_metrics": self.worlds.metrics(0)}
        return self._observation(), reward, bool(terminated[0]), bool(truncated[0]), info

    def render(self) -> Any:
        return self._picture.draw(self.render_mode)

    def _observation(self) -> Info:
        windows, mask = views(self.worlds)
        seen = {"agents": windows.copy(), "mask": mask.copy(), "reward": self.worlds.state.reward[0].copy()}
        return seen | ({"position": self.worlds.places()[0]} if self.worlds.positions else {})


class Picture:
    """Draws the first of some worlds, with the way each agent came."""

    def __init__(self, worlds: PathWorlds) -> None:
        self._worlds = worlds
        self._trail: deque[Ints] = deque(maxlen=TRAIL)

    def restart(self) -> None:
        """Forgets the ways of the last episode."""
        self._trail.clear()
        self.follow()

    def follow(self) -> None:
        """Remembers where the agents are."""
        self._trail.append(self._worlds.cells(0)[0])

    def draw(self, mode: str | None) -> Any:
        """A picture [H, W, 3] of bytes, or text for "ansi"; None without a mode."""
        if mode is None:
            return None
        obstacles, (places, goals) = self._worlds.obstacles(0), self._worlds.cells(0)
        if mode == "ansi":
            return draw_text(obstacles, places, goals)
        return draw_picture(obstacles, np.stack(self._trail), goals)


def observation_space(worlds: PathWorlds) -> spaces.Dict:
    """What agents see [A, 6, D, D], who hears whom [A, A], what each got in the last step [A], where each is [A, 2]."""
    agents, side = worlds.agents, 2 * worlds.rules.radius + 1
    seen: dict[str, spaces.Space[Any]] = {
        "agents": spaces.Box(0, 1, (agents, CHANNELS, side, side), np.uint8),
        "mask": spaces.Box(0, 1, (agents, agents), np.uint8),
        "reward": spaces.Box(COLLISION, ALL_ON_GOALS, (agents,), np.float32),
    }
    if worlds.positions:
        seen["position"] = spaces.Box(0, LARGEST_SIZE + 2 * side, (agents, 2), np.float32)
    return spaces.Dict(seen)


def views(worlds: PathWorlds) -> tuple[Array, Array]:
    """The first world's observations [A, 6, D, D] and mask [A, A], where the next step overwrites them."""
    agents, side, seen = worlds.agents, 2 * worlds.rules.radius + 1, worlds.state.seen[0]
    windows = seen[: -agents * agents].reshape(agents, CHANNELS, side, side)
    return windows, seen[-agents * agents :].reshape(agents, agents)


def begin(worlds: PathWorlds, seed: int | None, options: Info | None) -> None:
    """The reset of a single world: a seed, a level, a map of one's own or the next one."""
    if seed is not None:
        worlds.seed(seed)
    set_level(worlds, options)
    if options and "map" in options:
        worlds.reset_to(0, **options["map"])
    else:
        worlds.reset(first_case=seed is not None)


def set_level(worlds: PathWorlds, options: Info | None) -> None:
    """Takes the level out of `reset`'s options, if there is one."""
    if options and "level" in options:
        worlds.set_levels([options["level"]])
