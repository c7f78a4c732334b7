"""Ray actors around the roles: the only thing they add is a process."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import ray
from ray.exceptions import RayTaskError

from shoal.errors import ShoalError
from shoal.files import atomic_write
from shoal.loops.plan import Plan
from shoal.loops.reports import Report
from shoal.loops.role import Role
from shoal.loops.run_paths import RunPaths
from shoal.loops.settings import RunSettings
from shoal.replay.counters import Counters
from shoal.runtime.run_folder import RunFolder

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def pid_words(paths: RunPaths) -> memoryview:
    """Where each role says which process it has, once it is built: words that need no memory when they are written."""
    return Counters(paths.processes, writable=True, count=paths.processes.stat().st_size // 8).words


def without_settings(plan: Plan) -> tuple[Plan, dict[str, Any]]:
    """A plan in two parts, both of Shoal's own and plain types.

    Settings can be of a type of the user's. A process that cannot import it would end before it could say so.
    """
    return replace(plan, settings=cast(Any, None)), plan.settings.model_dump(mode="json")


def with_settings(plan: Plan, settings: dict[str, Any]) -> Plan:
    """The plan, whole again."""
    return replace(plan, settings=RunSettings.model_validate(settings))


@cast(Any, ray).remote(enable_task_events=False)  # Ray would keep a record of every call on the head node
class Host:
    """One role in a process of its own."""

    def __init__(
        self, build: Callable[[Plan, int], Role], plan: Plan, settings: dict[str, Any], index: int, number: int
    ) -> None:
        """Args:
        build: builds the role.
        plan: the run's plan; see `without_settings`.
        settings: the plan's, as plain data.
        index: which of its kind.
        number: which of all; its word in `RunPaths.processes`.
        """
        self._build, self._plan, self._settings, self._index, self._number = build, plan, settings, index, number
        self._role: Role | None = None

    def run(self, bounds: dict[str, Any]) -> tuple[Report | None, bool]:
        """A bounded piece of the role's work.

        The first call builds the role. Not the constructor: Ray reports constructor errors as actor deaths, without
        the error.

        Returns:
            The role's report, and whether the role has ended.
        """
        if self._role is None:
            self._role = self._build(with_settings(self._plan, self._settings), self._index)
            pid_words(self._plan.paths)[self._number] = os.getpid()
        report = self._role.run(**bounds)
        if ended := self._role.stopping:
            self._role.end()
        return report, ended


def role_error(name: str, failure: RayTaskError, folder: RunFolder) -> ShoalError:
    """The role's own error, as it was raised; the traceback goes to a file."""
    cause = failure.cause
    if isinstance(cause, ShoalError):
        return type(cause)(f"{name}: {cause}") if type(cause).__init__ is Exception.__init__ else cause
    file = folder.path / "error.txt"
    atomic_write(file, f"{_COLOURS.sub('', str(failure))}\n".encode(errors="replace"))
    reason = f"{type(cause).__name__}: {_COLOURS.sub('', str(cause))}"
    return ShoalError(f"{name} failed: {reason} (the traceback is in {file})")
