"""Ray actors around the roles: the only thing they add is a process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import ray

from shoal.loops import assembly
from shoal.loops.assembly import Places
from shoal.loops.settings import RunSettings

Role = Literal["actor", "learner", "evaluator"]


@ray.remote
class Host:
    """One role in a process of its own."""

    def __init__(self, role: Role, index: int, settings: str, replay: str, checkpoints: str) -> None:
        """Args:
        role: which role.
        index: which of its kind.
        settings: the run's settings as JSON.
        replay, checkpoints: the run's folders.
        """
        self._settings = RunSettings.model_validate_json(settings)
        places = Places(Path(replay), Path(checkpoints))
        self._role: Any
        if role == "actor":
            self._role = assembly.build_actor(self._settings, places, index)
        elif role == "learner":
            self._role = assembly.build_learner(self._settings, places)
        else:
            self._role = assembly.build_evaluator(self._settings, places)

    def pid(self) -> int:
        """Answers once the role is built."""
        return os.getpid()

    def run(self, **bounds: float) -> Any:
        """A bounded piece of the role's work; returns its report."""
        return self._role.run(**bounds)

    def finish(self, save: bool) -> None:
        """Ends the role; the learner saves its last checkpoint."""
        if save:
            self._role.save()
        self._role.close()
