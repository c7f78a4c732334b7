"""Path finding in numpy and Python, one world, in the way of DHC's own environment: the contender of `pathfinding.py`.

Positions are arrays [A, 2]; conflicts are found by comparing them; grids are padded and windows sliced out of them in
every step. The maps of shortest paths are made once per episode, by a search in Python.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

MOVES = np.array([(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)])
RADIUS = 4


class PlainWorld:
    """One world on a given map: obstacles [S, S], starts and goals [A, 2]."""

    def __init__(self, obstacles: Any, starts: Any, goals: Any) -> None:
        self.map, self.starts, self.goals = np.asarray(obstacles), np.asarray(starts), np.asarray(goals)
        self.reset()

    def reset(self) -> Any:
        """Searches the shortest paths and starts an episode; returns observations [A, 6, 9, 9]."""
        self.places = self.starts.copy()
        self._find_paths()
        return self.observe()

    def step(self, actions: Any) -> tuple[Any, Any, bool]:
        """Returns observations, rewards [A] and whether all agents stand on their goals."""
        rewards = np.full(len(actions), -0.075)
        moving = [agent for agent, action in enumerate(actions) if action]
        for agent, action in enumerate(actions):
            if action == 0 and np.array_equal(self.places[agent], self.goals[agent]):
                rewards[agent] = 0.0
        targets = self.places + MOVES[actions]

        def send_back(agents: list[int]) -> None:
            for agent in agents:
                targets[agent] = self.places[agent]
                rewards[agent] = -0.5
                moving.remove(agent)

        for agent in moving.copy():
            target = targets[agent]
            if np.any(target < 0) or np.any(target >= len(self.map)) or self.map[tuple(target)]:
                send_back([agent])
        while (pair := self._swap(targets, moving)) is not None:
            send_back(pair)
        while (losers := self._losers(targets, moving)) is not None:
            send_back(losers)
        self.places = targets
        done = bool(np.array_equal(self.places, self.goals))
        return self.observe(), np.full(len(actions), 3.0) if done else rewards, done

    def observe(self) -> Any:
        """What every agent sees, [A, 6, 9, 9]."""
        others = np.zeros_like(self.map)
        others[self.places[:, 0], self.places[:, 1]] = 1
        others, walls = np.pad(others, RADIUS), np.pad(self.map, RADIUS)
        seen = np.zeros((len(self.places), 6, 2 * RADIUS + 1, 2 * RADIUS + 1), np.bool_)
        for agent, (row, column) in enumerate(self.places):
            window = slice(row, row + 2 * RADIUS + 1), slice(column, column + 2 * RADIUS + 1)
            seen[agent, 0] = others[window]
            seen[agent, 0, RADIUS, RADIUS] = 0
            seen[agent, 1] = walls[window]
            seen[agent, 2:] = self.hints[(agent, slice(None), *window)]
        return seen

    def _swap(self, targets: Any, moving: list[int]) -> list[int] | None:
        for agent in moving:
            (found,) = np.where(np.all(self.places == targets[agent], axis=1))
            if len(found) and np.array_equal(targets[found[0]], self.places[agent]):
                return [agent, int(found[0])]
        return None

    def _losers(self, targets: Any, moving: list[int]) -> list[int] | None:
        for agent in moving:
            claimants = np.where(np.all(targets == targets[agent], axis=1))[0].tolist()
            if len(claimants) > 1:
                losers = [one for one in claimants if one in moving]
                return losers[1:] if len(losers) == len(claimants) else losers
        return None

    def _find_paths(self) -> None:
        agents, size = len(self.goals), len(self.map)
        distances = np.full((agents, size + 2, size + 2), 2**30)  # a border, so that no neighbour is outside
        for agent, goal in enumerate(self.goals):
            distance, waiting = distances[agent], deque([tuple(goal)])
            distance[goal[0] + 1, goal[1] + 1] = 0
            while waiting:
                row, column = waiting.popleft()
                for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
                    beside = row + down, column + right
                    if min(beside) < 0 or max(beside) >= size or self.map[beside]:
                        continue
                    if distance[beside[0] + 1, beside[1] + 1] == 2**30:
                        distance[beside[0] + 1, beside[1] + 1] = distance[row + 1, column + 1] + 1
                        waiting.append(beside)
        here, inner = distances[:, 1:-1, 1:-1], slice(1, -1)
        beside = [distances[:, :-2, inner], distances[:, 2:, inner], distances[:, inner, :-2], distances[:, inner, 2:]]
        hints = np.stack([one < here for one in beside], axis=1) & (here < 2**30)[:, None]
        self.hints = np.pad(hints, ((0, 0), (0, 0), (RADIUS, RADIUS), (RADIUS, RADIUS)))
