"""Ray actors around the roles: the only thing they add is a process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import ray

from shoal.loops.plan import Plan
from shoal.loops.reports import Report
from shoal.loops.role import Role
from shoal.loops.run_paths import RunPaths
from shoal.replay.counters import Counters


def pid_words(paths: RunPaths) -> memoryview:
    """Where each role says which process it has, once it is built: words that need no memory when they are written."""
    return Counters(paths.processes, writable=True, count=paths.processes.stat().st_size // 8).words


@ray.remote
class Host:
    """One role in a process of its own."""

    def __init__(self, build: Callable[[Plan, int], Role], plan: Plan, index: int, number: int) -> None:
        """Args:
        build: builds the role.
        plan: the run's plan.
        index: which of its kind.
        number: which of all; its word in `RunPaths.processes`.
        """
        self._build, self._plan, self._index, self._number = build, plan, index, number
        self._role: Role | None = None

    def run(self, bounds: dict[str, Any]) -> tuple[Report | None, bool]:
        """A bounded piece of the role's work.

        The first call builds the role. Not the constructor: Ray reports constructor errors as actor deaths, without
        the error.

        Returns:
            The role's report, and whether the role has ended.
        """
        if self._role is None:
            self._role = self._build(self._plan, self._index)
            pid_words(self._plan.paths)[self._number] = os.getpid()
        report = self._role.run(**bounds)
        if ended := self._role.stopping:
            self._role.end()
        return report, ended
