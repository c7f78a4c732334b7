"""Draws the maps of path finding, with starts and goals, in numba."""

from __future__ import annotations

import numba
import numpy as np

from shoal.envs.pathfinding_rules import FREE, OBSTACLE, OUTSIDE, RULES, WORLDS

MODE, LARGEST_DENSITY = 0.33, 0.5
"""Of the triangular distribution of densities, which starts at 0."""
MAPS = 1000
"""Maps that are tried until one has room for all agents."""

_INTS = numba.int64[::1]


# Random numbers: splitmix64, our own, so that no version of numpy changes the fixed cases.


@numba.njit(numba.uint64(numba.uint64), cache=True)
def mixed(value):  # type: ignore[no-untyped-def]
    """A number that looks random, for any number: makes states of seeds."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@numba.njit(numba.uint64(numba.uint64[::1], numba.int64), cache=True)
def _bits(random, world):  # type: ignore[no-untyped-def]
    random[world] += np.uint64(0x9E3779B97F4A7C15)
    return mixed(random[world])


@numba.njit(numba.int64(numba.uint64[::1], numba.int64, numba.int64), cache=True)
def _below(random, world, count):  # type: ignore[no-untyped-def]
    return np.int64(((_bits(random, world) >> np.uint64(32)) * np.uint64(count)) >> np.uint64(32))


@numba.njit(numba.float64(numba.uint64[::1], numba.int64), cache=True)
def _uniform(random, world):  # type: ignore[no-untyped-def]
    return np.float64(_bits(random, world) >> np.uint64(11)) * 2.0**-53


@numba.njit(numba.float64(numba.uint64[::1], numba.int64, numba.float64), cache=True)
def _density(random, world, fixed):  # type: ignore[no-untyped-def]
    if fixed >= 0.0:
        return fixed
    point = _uniform(random, world)  # of the triangular distribution's inverse
    if point < MODE / LARGEST_DENSITY:
        return np.sqrt(point * LARGEST_DENSITY * MODE)
    return LARGEST_DENSITY - np.sqrt((1.0 - point) * LARGEST_DENSITY * (LARGEST_DENSITY - MODE))


@numba.njit(numba.void(WORLDS, numba.int64, numba.int64, numba.float64), cache=True)
def _draw_map(worlds, world, border, density):  # type: ignore[no-untyped-def]
    ground, size = worlds.ground[world], worlds.size[world]
    width = np.int64(np.sqrt(ground.shape[0]))
    ground[:] = OUTSIDE
    for row in range(border, border + size):
        for cell in range(row * width + border, row * width + border + size):
            ground[cell] = OBSTACLE if _uniform(worlds.random, world) < density else FREE


@numba.njit(numba.int64(numba.uint8[::1], _INTS, _INTS), cache=True)
def _components(ground, cells, ends):  # type: ignore[no-untyped-def]
    """Writes the free cells, one connected component after the other, and where each ends; returns their number."""
    width = np.int64(np.sqrt(ground.shape[0]))
    found = np.zeros(ground.shape[0], np.bool_)
    count = filled = 0
    for first in range(ground.shape[0]):
        if ground[first] != FREE or found[first]:
            continue
        head = filled
        cells[filled] = first
        found[first] = True
        filled += 1
        while head < filled:
            for offset in (-width, width, -1, 1):
                cell = cells[head] + offset
                if ground[cell] == FREE and not found[cell]:
                    found[cell] = True
                    cells[filled] = cell
                    filled += 1
            head += 1
        ends[count] = filled
        count += 1
    return count


@numba.njit(numba.boolean(WORLDS, numba.int64), cache=True)
def _place_agents(worlds, world):  # type: ignore[no-untyped-def]
    """Draws starts and goals, a pair within one component each; False if the map has no room for all of them."""
    cells, ends = np.empty(worlds.ground.shape[1], np.int64), np.empty(worlds.ground.shape[1], np.int64)
    count = _components(worlds.ground[world], cells, ends)
    left, total = np.zeros(count, np.int64), 0
    for part in range(count):
        left[part] = ends[part] - (ends[part - 1] if part else 0)
        left[part] = left[part] if left[part] >= 2 else 0
        total += left[part]
    for agent in range(worlds.agents[world]):
        if total == 0:
            return False
        point, part = _below(worlds.random, world, total), 0
        while point >= left[part]:
            point -= left[part]
            part += 1
        first = ends[part - 1] if part else 0
        for which in range(2):
            drawn = first + _below(worlds.random, world, left[part])
            cell = cells[drawn]
            left[part] -= 1
            cells[drawn] = cells[first + left[part]]
            if which == 0:
                worlds.place[world, agent] = cell
            else:
                worlds.goal[world, agent] = cell
        total -= 2 if left[part] >= 2 else 2 + left[part]
        left[part] = left[part] if left[part] >= 2 else 0
    return True


@numba.njit(numba.int64(WORLDS, RULES, numba.int64[:, ::1], _INTS), nogil=True, cache=True)
def draw(worlds, rules, levels, which):  # type: ignore[no-untyped-def]
    """Draws level (agents, size), map, starts and goals of some worlds. Returns one without room for all, else -1."""
    for world in which:
        if rules.cases > 0:
            case = (world + worlds.played[world] * worlds.played.shape[0]) % rules.cases
            worlds.random[world] = mixed(np.uint64(rules.case_seed + case))
        level = _below(worlds.random, world, levels.shape[0]) if levels.shape[0] > 1 else 0
        worlds.agents[world], worlds.size[world] = levels[level, 0], levels[level, 1]
        density = _density(worlds.random, world, rules.density)
        placed = False
        for _ in range(MAPS):
            _draw_map(worlds, world, rules.radius, density)
            placed = _place_agents(worlds, world)
            if placed:
                break
        if not placed:
            return world
    return -1
