"""Curriculum: levels of difficulty that unlock one another by success. Pure: told of episodes, asked for levels.

A level is a mapping of numbers, such as {"agents": 1, "size": 10}. It passes when `window` of its episodes have ended
and enough of the newest ones succeeded; then it unlocks its neighbours, in which one number has grown. As in
"Distributed Heuristic Multi-Agent Path Finding with Communication", https://arxiv.org/abs/2106.11365.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from shoal.loops.settings import CurriculumSettings

Level = Mapping[str, int | float]
Key = tuple[float, ...]

LOST = 0.5
"""What was learned is lost where this share of the success is left that a level needed to pass."""


class Curriculum:
    """The unlocked levels, and how their newest episodes ended.

    Attributes:
        levels: those that are unlocked, in the order in which they were. A new tuple when there is one more.
    """

    def __init__(self, settings: CurriculumSettings) -> None:
        """Args:
        settings: with a `start`.
        """
        self._settings = settings
        self._names = tuple(settings.start)
        self._recent: dict[Key, deque[bool]] = {}
        self._unlocked: dict[Key, Level] = {}
        self._passed: set[Key] = set()
        self.levels: tuple[Level, ...] = ()
        self._unlock(settings.start)

    def observe(self, level: Level, success: bool) -> list[Level]:
        """Counts an episode; returns the levels that it unlocked. One of a level that is not unlocked is ignored."""
        known = self._unlocked.get(self._key(level))  # whose numbers are whole, if they were set so
        if known is None:
            return []
        self._recent[self._key(level)].append(success)
        if not self.passes(level):
            return []
        self._passed.add(self._key(level))
        return [one for one in self._neighbours(known) if self._unlock(one)]

    def passes(self, level: Level) -> bool:
        """Whether its newest episodes succeeded often enough, and are enough."""
        recent = self._recent.get(self._key(level), ())
        return len(recent) == self._settings.window and self.success(level) >= self._settings.success

    def lost(self, level: Level) -> bool:
        """Whether it had passed, and far fewer of its newest episodes succeed."""
        return self._key(level) in self._passed and self.success(level) < LOST * self._settings.success

    def named(self, level: Level) -> Level:
        """The numbers of a level that the curriculum sets; an environment may tell more."""
        return {name: level[name] for name in self._names}

    def success(self, level: Level) -> float:
        """The part of its newest episodes that succeeded; NaN before the first."""
        recent = self._recent[self._key(level)]
        return sum(recent) / len(recent) if recent else math.nan

    @property
    def finished(self) -> bool:
        """Whether all levels pass in which the last number (of `start`) is at its limit."""
        limit = self._settings.limit
        values = [list(self._values(name)) for name in self._names[:-1]]
        hardest = (dict(zip(self._names, (*one, limit[self._names[-1]]), strict=True)) for one in product(*values))
        return all(self.passes(level) for level in hardest)

    def state(self) -> dict[str, Any]:
        """All of it, for JSON."""
        newest = ("".join("01"[one] for one in self._recent[self._key(level)]) for level in self.levels)
        passed = [self._key(level) in self._passed for level in self.levels]
        return {"levels": [{**level} for level in self.levels], "recent": list(newest), "passed": passed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`. Levels that the settings do not allow any more are left out.

        Raises:
            KeyError, TypeError, ValueError: it is damaged.
        """
        grid = set(product(*(self._values(name) for name in self._names)))
        passed = state.get("passed", [False] * len(state["levels"]))
        saved = [
            (level, [bool(int(one)) for one in recent], bool(had_passed))
            for level, recent, had_passed in zip(state["levels"], state["recent"], passed, strict=True)
            if self._key(level) in grid
        ]
        for level, results, had_passed in saved:
            self._unlock(level)
            self._recent[self._key(level)].extend(results)
            if had_passed:
                self._passed.add(self._key(level))

    def _unlock(self, level: Level) -> bool:
        key = self._key(level)
        if key in self._recent:
            return False
        self._recent[key] = deque(maxlen=self._settings.window)
        self._unlocked[key] = dict(level)
        self.levels = tuple(self._unlocked.values())
        return True

    def _neighbours(self, level: Level) -> Iterator[Level]:
        for name in self._names:
            if level[name] != self._settings.limit[name]:
                yield {**level, name: grown(self._settings, name, level[name])}

    def _values(self, name: str) -> Iterator[int | float]:
        value, limit = self._settings.start[name], self._settings.limit[name]
        while value != limit:
            yield value
            value = grown(self._settings, name, value)
        yield limit

    def _key(self, level: Level) -> Key:
        return tuple(float(level[name]) for name in self._names)


def grown(settings: CurriculumSettings, name: str, value: int | float) -> int | float:
    """The next value of a number, not beyond its limit."""
    step, limit = settings.grow[name], settings.limit[name]
    value = round(value + step, 9)  # ten steps of 0.1 make 1
    return min(value, limit) if step > 0 else max(value, limit)


def label(level: Level) -> str:
    """A level in a word: `agents=1,size=10`."""
    return ",".join(f"{name}={value:g}" for name, value in level.items())
