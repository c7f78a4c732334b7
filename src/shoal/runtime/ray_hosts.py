"""Ray actors around the roles: the only thing they add is a process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import ray

from shoal.loops import assembly
from shoal.loops.assembly import RunPaths
from shoal.loops.run_paths import count_roles
from shoal.loops.settings import RunSettings
from shoal.replay.counters import Counters

Role = Literal["actor", "learner", "inference", "evaluator"]


def pid_words(places: RunPaths, settings: RunSettings) -> memoryview:
    """Where each role says which process it has, once it is built: words that need no memory when they are written."""
    return Counters(places.processes, writable=True, count=count_roles(settings)).words


@ray.remote
class Host:
    """One role in a process of its own."""

    def __init__(self, role: Role, index: int, number: int, settings: str, replay: str, checkpoints: str) -> None:
        """Args:
        role: which role.
        index: which of its kind.
        number: which of all; its word in `RunPaths.processes`.
        settings: the run's settings as JSON.
        replay, checkpoints: the run's folders.
        """
        self._place = role, index, number, settings, RunPaths(Path(replay), Path(checkpoints))
        self._role: Any = None

    def run(self, **bounds: float) -> Any:
        """A bounded piece of the role's work; returns its report. The last piece of a run ends the role in order.

        The first piece builds the role. Not the constructor: Ray tells of an error there as of a process that died,
        without the error.
        """
        if self._role is None:
            self._role = _built(*self._place)
        report = self._role.run(**bounds)
        if self._role.stopping:
            self._role.end()
        return report


def _built(role: Role, index: int, number: int, settings: str, places: RunPaths) -> Any:
    parsed = RunSettings.model_validate_json(settings)
    made: Any
    if role == "actor":
        made = assembly.build_actor(parsed, places, index)
    elif role == "learner":
        made = assembly.build_learner(parsed, places)
    elif role == "inference":
        made = assembly.build_inference(parsed, places)
    else:
        made = assembly.build_evaluator(parsed, places)
    pid_words(places, parsed)[number] = os.getpid()
    return made
