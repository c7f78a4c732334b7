"""Many worlds of path finding in step: arguments, levels, fixed cases and maps of one's own, around the kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shoal.envs.pathfinding_maps import LARGEST_DENSITY, draw, mixed
from shoal.envs.pathfinding_rules import CHANNELS, FREE, OBSTACLE, OUTSIDE, Rules, Worlds, advance, start
from shoal.errors import ConfigError, EnvError, UnknownName
from shoal.types import Array

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MOVES = 5
"""Stay, up, down, left, right."""
MOST_AGENTS, LARGEST_SIZE, LARGEST_RADIUS = 1024, 512, 32
NO_LIMIT = 2**31
_CASES = 7_000_000_000
"""Seeds of fixed cases lie from here on, far from those of training."""


class Cases(NamedTuple):
    """N maps with the starts and goals of A agents: obstacles uint8 [N, S, S], cells (row, column) int64 [N, A, 2]."""

    obstacles: Array
    starts: Ints
    goals: Ints


class PathWorlds:
    """W worlds in step. `state` holds what they are and what their agents get; see `Worlds`.

    Attributes:
        agents: the padded number A, the same in every world.
        state: the arrays that the kernels work on.
        rules: what does not change between episodes.
    """

    def __init__(
        self,
        worlds: int,
        *,
        agents: int = 4,
        size: int = 10,
        density: float | None = None,
        max_agents: int | None = None,
        max_episode_steps: int = 256,
        observation_radius: int = 4,
        communication_radius: int = 4,
        neighbours: int = 2,
        cases: int = 0,
        case_seed: int = 0,
        positions: bool = False,
    ) -> None:
        """Makes the worlds; `reset` starts the first episodes.

        Args:
            worlds: how many.
            agents: in each world.
            size: rows and columns of the map.
            density: share of obstacles, 0 to 0.5; None: drawn for each episode from Triangular(0, 0.33, 0.5).
            max_agents: pads observations, actions and rewards to this number; None: `agents`.
            max_episode_steps: an episode is cut after so many.
            observation_radius: agents see a square of 2 * radius + 1 cells.
            communication_radius: agents hear others in a square of 2 * radius + 1 cells.
            neighbours: of the other agents, only so many nearest can be heard; 0: nobody.
            cases: play these fixed cases in turn: world w of W plays w, w + W, ...; 0: new maps all the time.
            case_seed: another one makes another set of cases.
            positions: observations also say where each agent is, for `communication: causal` of comm-dqn.

        Raises:
            ConfigError: an argument cannot be used.
        """
        radius = _whole("observation_radius", observation_radius, 1, LARGEST_RADIUS)
        if communication_radius == 0:
            raise ConfigError("Path finding: communication_radius is 0. Use at least 1, or neighbours=0 for silence.")
        if density is not None and (isinstance(density, str | bool) or not 0.0 <= density <= LARGEST_DENSITY):
            raise ConfigError(
                f"Path finding: density is {density!r}. Use 0 to {LARGEST_DENSITY}, or null for one of each episode."
            )
        self.agents = _whole("max_agents", agents if max_agents is None else max_agents, 1, MOST_AGENTS)
        self.rules = Rules(
            radius,
            _whole("communication_radius", communication_radius, 1, LARGEST_SIZE),
            _whole("neighbours", neighbours, 0, MOST_AGENTS),
            _whole("max_episode_steps", max_episode_steps, 1, NO_LIMIT),
            _whole("cases", cases, 0, 2**31),
            int(mixed(np.uint64(_CASES + _whole("case_seed", case_seed, 0, 2**31)))) >> 1,
            -1.0 if density is None else float(density),
        )
        self.positions = bool(positions)
        self._default = {"agents": agents, "size": size}
        self._levels = self._checked([self._default])
        self.state = _empty(worlds, self.agents, int(self._levels[0, 1]), radius)
        self.seed(int(np.random.SeedSequence().generate_state(1)[0]))

    def seed(self, seed: int | Sequence[int]) -> None:
        """Seeds world w with seed + w, or with its own of several. All its episodes follow from that."""
        each = np.arange(len(self.state.steps)) + seed if np.ndim(seed) == 0 else seed
        for world, one in enumerate(np.asarray(each)):
            self.state.random[world] = mixed(np.uint64(one))

    def set_levels(self, levels: Sequence[Mapping[str, float]]) -> None:
        """Each new episode draws one of these levels, such as {"agents": 4, "size": 20}. What is missing in one is as
        the arguments say.

        Raises:
            ConfigError: there are none, or one cannot be played.
        """
        checked = self._checked(levels)
        self._make_room(int(checked[:, 1].max()))
        self._levels = checked

    def reset(self, *, first_case: bool = True) -> None:
        """Starts an episode in every world, with the first fixed cases or with the next ones."""
        if first_case:
            self.state.played[:] = 0
        self._begin(np.arange(len(self.state.steps)))

    def reset_to(self, world: int, obstacles: Any, starts: Any, goals: Any) -> None:
        """Starts an episode on a map of your own: obstacles [S, S], 0 where a cell is free; cells (row, column) [A, 2].

        Raises:
            ConfigError: the map is not square, or agents do not fit into it.
        """
        ground = np.asarray(obstacles) != 0
        cells = np.stack([np.asarray(starts, np.int64), np.asarray(goals, np.int64)])  # [2, A, 2]
        if ground.ndim != 2 or ground.shape[0] != ground.shape[1] or cells.ndim != 3 or cells.shape[2] != 2:
            raise ConfigError(
                f"Path finding: a map has obstacles [S, S], starts [A, 2] and goals [A, 2]; these have {ground.shape} "
                f"and {cells.shape[1:]}."
            )
        size, agents = _whole("size", len(ground), 2, LARGEST_SIZE), _whole("agents", cells.shape[1], 1, self.agents)
        inside = bool((cells >= 0).all() and (cells < size).all())
        different = all(len(np.unique(ends, axis=0)) == agents for ends in cells)
        if not inside or not different or ground[cells[..., 0], cells[..., 1]].any():
            raise ConfigError("Path finding: starts and goals must be free cells of the map, each for one agent.")
        self._make_room(size)
        width, radius = self._width, self.rules.radius
        grid = np.full((width, width), OUTSIDE, np.uint8)
        grid[radius : radius + size, radius : radius + size] = np.where(ground, OBSTACLE, FREE)
        state = self.state
        state.ground[world], state.size[world], state.agents[world] = grid.ravel(), size, agents
        state.place[world, :agents], state.goal[world, :agents] = (cells + radius) @ [width, 1]
        start(state, self.rules, np.array([world]))

    def step(self, actions: Array) -> tuple[Flags, Flags]:
        """Plays one action per agent, [W, A]; a world that ended in the step before is reset instead.

        Returns:
            terminated and truncated, [W].

        Raises:
            EnvError: an action is none of 0 to 4, or a new map has no room for all agents.
        """
        actions = np.ascontiguousarray(actions, np.int64)
        worlds = len(self.state.steps)
        if actions.shape != (worlds, self.agents) or (actions.view(np.uint64) >= MOVES).any():
            raise EnvError(
                f"Path finding takes actions 0 to {MOVES - 1} of shape {(worlds, self.agents)}, not {actions.tolist()}."
            )
        (waiting,) = self.state.ended.nonzero()
        terminated, truncated = np.empty(worlds, np.bool_), np.empty(worlds, np.bool_)
        advance(self.state, self.rules, actions, terminated, truncated)
        if len(waiting):
            self._begin(waiting)
        return terminated, truncated

    def mean_reward(self) -> npt.NDArray[np.float64]:
        """Of the agents that are there, [W]."""
        mean: npt.NDArray[np.float64] = self.state.reward.sum(axis=1, dtype=np.float64) / self.state.agents
        return mean

    def metrics(self, world: int) -> dict[str, float]:
        """What there is to tell of a world's episode when it ended."""
        state = self.state
        turns = float(state.agents[world] * state.steps[world])
        there = slice(state.agents[world])
        return {
            "is_success": float((state.place[world, there] == state.goal[world, there]).all()),
            "collisions": float(state.collisions[world]) / turns,
            "messages": float(state.messages[world]) / turns,
            "shortest": float(state.shortest[world]),
            "level.agents": float(state.agents[world]),
            "level.size": float(state.size[world]),
        }

    def obstacles(self, world: int) -> Array:
        """The map, 1 where an obstacle is, uint8 [S, S]."""
        inner = slice(self.rules.radius, self.rules.radius + int(self.state.size[world]))
        grid: Array = self.state.ground[world].reshape(self._width, self._width)[inner, inner]
        return np.asarray(grid == OBSTACLE, np.uint8)

    def cells(self, world: int) -> tuple[Ints, Ints]:
        """Where the agents are and where they want to go: (row, column), [agents, 2] each."""
        there = slice(self.state.agents[world])
        ends = (np.stack(np.divmod(one[world, there], self._width), 1) for one in (self.state.place, self.state.goal))
        places, goals = (end - self.rules.radius for end in ends)
        return places, goals

    def places(self) -> Array:
        """Row and column of every agent, from a corner of its world's grid: float32 [W, A, 2]."""
        return np.stack(np.divmod(self.state.place, self._width), 2).astype(np.float32)

    @property
    def _width(self) -> int:
        return int(np.sqrt(self.state.ground.shape[1]))

    def _begin(self, which: Ints) -> None:
        crowded = draw(self.state, self.rules, self._levels, which)
        if crowded >= 0:
            agents, size = self.state.agents[crowded], self.state.size[crowded]
            raise EnvError(f"Path finding found no map of {size}x{size} with room for {agents} agents. {_ROOM}")
        start(self.state, self.rules, which)

    def _checked(self, levels: Sequence[Mapping[str, float]]) -> Ints:
        if not levels:
            raise ConfigError("Path finding: there is no level to play. Give at least one, such as {'agents': 4}.")
        numbers = []
        for level in levels:
            for name in level.keys() - self._default.keys():
                raise UnknownName("setting of a path finding level", name, self._default)
            level = self._default | dict(level)
            agents = _whole("agents", level["agents"], 1, MOST_AGENTS)
            if agents > self.agents:
                most = f"of {self.agents} at most. Set max_agents={agents}."
                raise ConfigError(f"Path finding: agents is {agents}, {most}")
            size = _whole("size", level["size"], 2, LARGEST_SIZE)
            density = LARGEST_DENSITY if self.rules.density < 0 else self.rules.density
            free = int((1 - density) * size**2)
            if 2 * agents > free:
                raise ConfigError(
                    f"Path finding: {agents} agents need {2 * agents} free cells, for starts and goals; a map of "
                    f"{size}x{size} with a density of {density:g} has about {free}. {_ROOM}"
                )
            numbers.append((agents, size))
        return np.array(numbers, np.int64)

    def _make_room(self, size: int) -> None:
        """Lays the grids out anew if a level is larger than all before; episodes go on."""
        old, before = self.state, self._width
        worlds, radius = len(old.steps), self.rules.radius
        if size + 2 * radius <= before:
            return
        new = _empty(worlds, self.agents, size, radius)
        width = size + 2 * radius
        for grid, into in ((old.ground, new.ground), (old.taken, new.taken), (old.hints, new.hints)):
            square = into.reshape(*into.shape[:-1], width, width)
            square[..., :before, :before] = grid.reshape(*grid.shape[:-1], before, before)
        cells = {name: getattr(old, name) // before * width + getattr(old, name) % before for name in ("place", "goal")}
        self.state = old._replace(ground=new.ground, taken=new.taken, hints=new.hints, **cells)


def fixed_cases(size: int, agents: int, density: float = 0.3, count: int = 200, seed: int = 0) -> Cases:
    """The cases that an environment with the arguments `cases` and `case_seed` plays: the same on every machine."""
    worlds = PathWorlds(count, agents=agents, size=size, density=density, cases=count, case_seed=seed)
    worlds.reset()
    places, goals = zip(*(worlds.cells(world) for world in range(count)), strict=True)
    return Cases(np.stack([worlds.obstacles(world) for world in range(count)]), np.stack(places), np.stack(goals))


_ROOM = "Use fewer agents, a larger size or a lower density."


def _whole(name: str, value: Any, low: int, high: int) -> int:
    """An argument that must be a whole number from `low` to `high`; 4.0 is one."""
    if isinstance(value, bool | str) or not low <= value <= high or value != int(value):
        raise ConfigError(f"Path finding: {name} is {value!r}. Use a whole number from {low} to {high}.")
    return int(value)


def _empty(worlds: int, agents: int, size: int, radius: int) -> Worlds:
    cells, side = (size + 2 * radius) ** 2, 2 * radius + 1

    def counts() -> Ints:
        return np.zeros(worlds, np.int64)

    return Worlds(
        random=np.zeros(worlds, np.uint64),
        size=np.full(worlds, size),
        agents=np.full(worlds, agents),
        ground=np.full((worlds, cells), OUTSIDE, np.uint8),
        taken=np.zeros((worlds, cells), np.int16),
        hints=np.zeros((worlds, agents, cells), np.uint8),
        place=np.zeros((worlds, agents), np.int64),
        goal=np.zeros((worlds, agents), np.int64),
        steps=counts(),
        collisions=counts(),
        messages=counts(),
        shortest=counts(),
        heard=counts(),
        played=counts(),
        ended=np.zeros(worlds, np.bool_),
        seen=np.zeros((worlds, agents * CHANNELS * side * side + agents * agents), np.uint8),
        reward=np.zeros((worlds, agents), np.float32),
    )
