"""The rules of path finding as numba kernels: many worlds, one call per step.

A world is a square grid with a border as wide as an agent sees, so that no window leaves it. A cell is one number,
`row * width + column`, border included; a move adds an offset to it. Kernels that call each other share a file, because
numba's cache notices a changed kernel by its file only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

FREE, OBSTACLE, OUTSIDE = 0, 1, 2
CHANNELS = 6
STAY_ON_GOAL, STEP, COLLISION, ALL_ON_GOALS = 0.0, -0.075, -0.5, 3.0
FAR = 2**30


class Worlds(NamedTuple):
    """The state of W worlds with up to A agents on grids of P x P cells, border included; and what agents get.

    Attributes:
        random: state of each world's random numbers, uint64 [W].
        size, agents: of the episode being played, int64 [W].
        ground: FREE, OBSTACLE or OUTSIDE, uint8 [W, P * P].
        taken: the agent on each cell plus 1; 0: nobody. int16 [W, P * P].
        hints: where moves shorten the way to an agent's goal: bit k for action k + 1. uint8 [W, A, P * P].
        place, goal: cells of each agent, int64 [W, A].
        steps, collisions, messages, shortest: of the episode so far, int64 [W]; `shortest` is the longest of the
            agents' shortest paths, which no team can beat.
        heard: messages that the agents can hear in the present observation, int64 [W].
        played: episodes played before this one, int64 [W].
        ended: whether the next step resets this world, bool [W].
        seen: observations [A, 6, D, D] and communication mask [A, A] of each world in one row, uint8 [W, ...].
        reward: float32 [W, A].
    """

    random: Any
    size: Any
    agents: Any
    ground: Any
    taken: Any
    hints: Any
    place: Any
    goal: Any
    steps: Any
    collisions: Any
    messages: Any
    shortest: Any
    heard: Any
    played: Any
    ended: Any
    seen: Any
    reward: Any


class Rules(NamedTuple):
    """What does not change between episodes.

    Attributes:
        radius: how far agents see.
        hearing: how far they hear.
        neighbours: how many they hear at most.
        limit: steps of an episode.
        cases: how many fixed cases are played in turn; 0: none.
        case_seed: what the cases are made of.
        density: of obstacles; below 0: another one for every episode.
    """

    radius: int
    hearing: int
    neighbours: int
    limit: int
    cases: int
    case_seed: int
    density: float


_INTS = numba.int64[::1]
WORLDS = numba.types.NamedTuple(  # type: ignore[no-untyped-call]
    (
        *(numba.uint64[::1], _INTS, _INTS),
        *(numba.uint8[:, ::1], numba.int16[:, ::1], numba.uint8[:, :, ::1]),
        *(numba.int64[:, ::1], numba.int64[:, ::1]),
        *(_INTS, _INTS, _INTS, _INTS, _INTS, _INTS),
        *(numba.boolean[::1], numba.uint8[:, ::1], numba.float32[:, ::1]),
    ),
    Worlds,
)
RULES = numba.types.NamedTuple((*(numba.int64,) * 6, numba.float64), Rules)  # type: ignore[no-untyped-call]


_PATHS = numba.void(numba.uint8[::1], numba.int64, _INTS, _INTS, numba.uint8[::1])


@numba.njit(_PATHS, cache=True)
def find_paths(ground, goal, queue, distance, hints):  # type: ignore[no-untyped-def]
    """Breadth-first search from a goal: each cell's distance (FAR: no way) and the moves that shorten it. [P * P]"""
    width = np.int64(np.sqrt(ground.shape[0]))
    distance[:] = FAR
    hints[:] = 0
    distance[goal], queue[0] = 0, goal
    head, filled = 0, 1
    while head < filled:
        nearer = queue[head]
        head += 1
        # From the cell below, the move up leads here; so for the others.
        for move, offset in enumerate((width, -width, 1, -1)):
            cell = nearer + offset
            if ground[cell] != FREE:
                continue
            if distance[cell] == FAR:
                distance[cell] = distance[nearer] + 1
                queue[filled] = cell
                filled += 1
            if distance[cell] > distance[nearer]:
                hints[cell] |= 1 << move


@numba.njit(numba.void(WORLDS, RULES, numba.int64), cache=True)
def _listen(worlds, rules, world):  # type: ignore[no-untyped-def]
    """Writes the communication mask behind the observations. Nearest of all agents, then those within the radius."""
    agents, padded, place = worlds.agents[world], worlds.place.shape[1], worlds.place[world]
    width = np.int64(np.sqrt(worlds.ground.shape[1]))
    mask = worlds.seen[world, worlds.seen.shape[1] - padded * padded :].reshape(padded, padded)
    rows, columns = place[:agents] // width, place[:agents] % width
    heard = 0
    for agent in range(agents):
        for other in range(agents):
            down, right = rows[other] - rows[agent], columns[other] - columns[agent]
            mask[agent, other] = agent == other
            if other == agent or max(abs(down), abs(right)) > rules.hearing:
                continue
            apart, nearer = down**2 + right**2, 0
            for third in range(agents):
                gap = (rows[third] - rows[agent]) ** 2 + (columns[third] - columns[agent]) ** 2
                nearer += third != agent and (gap < apart or (gap == apart and third < other))
            if nearer < rules.neighbours:
                mask[agent, other] = 1
                heard += 1
    worlds.heard[world] = heard


@numba.njit(numba.void(WORLDS, RULES, numba.int64), cache=True)
def _observe(worlds, rules, world):  # type: ignore[no-untyped-def]
    """Cuts every agent's window out of the grids. Unsigned indices: with signed ones it takes six times as long."""
    side, width = np.uintp(2 * rules.radius + 1), np.uintp(np.sqrt(worlds.ground.shape[1]))
    ground, taken, seen = worlds.ground[world], worlds.taken[world], worlds.seen[world]
    plane, one = side * side, np.uint8(1)
    for agent in range(np.uintp(worlds.agents[world])):
        hints = worlds.hints[world, agent]
        corner = np.uintp(worlds.place[world, agent]) - np.uintp(rules.radius) * (width + np.uintp(1))
        first = agent * np.uintp(CHANNELS) * plane
        for row in range(side):
            for column in range(side):
                cell, to = corner + row * width + column, first + row * side + column
                hint = hints[cell]
                seen[to] = taken[cell] != 0
                seen[to + plane] = ground[cell] == OBSTACLE
                seen[to + np.uintp(2) * plane] = hint & one
                seen[to + np.uintp(3) * plane] = (hint >> one) & one
                seen[to + np.uintp(4) * plane] = (hint >> np.uint8(2)) & one
                seen[to + np.uintp(5) * plane] = (hint >> np.uint8(3)) & one
        seen[first + plane // np.uintp(2)] = 0  # itself, in the middle
    _listen(worlds, rules, world)


@numba.njit(numba.void(WORLDS, RULES, _INTS), nogil=True, cache=True)
def start(worlds, rules, which):  # type: ignore[no-untyped-def]
    """Starts an episode in some worlds, whose size, ground, agents, places and goals are set."""
    queue, distance = np.empty(worlds.ground.shape[1], np.int64), np.empty(worlds.ground.shape[1], np.int64)
    for world in which:
        worlds.taken[world] = 0
        worlds.seen[world] = 0
        worlds.reward[world] = 0.0
        worlds.steps[world] = worlds.collisions[world] = worlds.messages[world] = worlds.shortest[world] = 0
        for agent in range(worlds.agents[world]):
            place = worlds.place[world, agent]
            worlds.taken[world, place] = agent + 1
            find_paths(worlds.ground[world], worlds.goal[world, agent], queue, distance, worlds.hints[world, agent])
            worlds.shortest[world] = max(worlds.shortest[world], distance[place])
        worlds.ended[world] = False
        worlds.played[world] += 1
        _observe(worlds, rules, world)


@numba.njit(numba.int64(WORLDS, numba.int64, numba.int64[::1]), cache=True)
def _move(worlds, world, actions):  # type: ignore[no-untyped-def]
    """Moves the agents, with the collision rules; returns how many collided."""
    agents, place, reward = worlds.agents[world], worlds.place[world], worlds.reward[world]
    ground, taken = worlds.ground[world], worlds.taken[world]
    width = np.int64(np.sqrt(ground.shape[0]))
    offsets = (0, -width, width, -1, 1)
    target = np.empty(agents, np.int64)  # an agent's own place: it stays, or was sent back
    for agent in range(agents):
        target[agent] = place[agent] + offsets[actions[agent]]
        reward[agent] = STEP
        if actions[agent] == 0 and place[agent] == worlds.goal[world, agent]:
            reward[agent] = STAY_ON_GOAL
        if ground[target[agent]] != FREE:
            target[agent] = place[agent]
            reward[agent] = COLLISION
    for agent in range(agents):  # two that change places are both sent back
        other = taken[target[agent]] - 1
        if other >= 0 and other != agent and target[other] == place[agent]:
            target[agent], target[other] = place[agent], place[other]
            reward[agent] = reward[other] = COLLISION
    for agent in range(agents - 1, -1, -1):  # of several that go to one cell, the first goes on
        if target[agent] != place[agent]:
            for offset in (-width, width, -1, 1):  # who else goes there stands beside it
                other = taken[target[agent] + offset] - 1
                if 0 <= other < agent and target[other] == target[agent]:
                    target[agent] = place[agent]
                    reward[agent] = COLLISION
                    break
    changed = True
    while changed:  # who stays keeps its cell, also one that was sent back to it
        changed = False
        for agent in range(agents):
            owner = taken[target[agent]] - 1
            if owner >= 0 and owner != agent and target[owner] == place[owner]:
                target[agent] = place[agent]
                reward[agent] = COLLISION
                changed = True
    collided = 0
    for agent in range(agents):
        taken[place[agent]] = 0
        collided += reward[agent] == np.float32(COLLISION)
    for agent in range(agents):
        place[agent] = target[agent]
        taken[target[agent]] = agent + 1
    return collided


_FLAGS = numba.boolean[::1]


@numba.njit(numba.void(WORLDS, RULES, numba.int64[:, ::1], _FLAGS, _FLAGS), nogil=True, cache=True)
def advance(worlds, rules, actions, terminated, truncated):  # type: ignore[no-untyped-def]
    """One step of every world that has not ended, actions [W, A]; writes how it ended."""
    for world in range(actions.shape[0]):
        terminated[world] = truncated[world] = False
        if worlds.ended[world]:
            continue
        agents = worlds.agents[world]
        worlds.messages[world] += worlds.heard[world]
        worlds.collisions[world] += _move(worlds, world, actions[world])
        worlds.steps[world] += 1
        if np.all(worlds.place[world, :agents] == worlds.goal[world, :agents]):
            terminated[world] = True
            worlds.reward[world, :agents] = ALL_ON_GOALS
        truncated[world] = not terminated[world] and worlds.steps[world] >= rules.limit
        worlds.ended[world] = terminated[world] or truncated[world]
        _observe(worlds, rules, world)
