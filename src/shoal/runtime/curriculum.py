"""CurriculumRecord: the curriculum of a run, fed with actors' reports, written into metrics and saved."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.envs.episode_metrics import SUCCESS, level_of
from shoal.errors import ConfigError, explained
from shoal.files import atomic_write, read_object
from shoal.loops.curriculum import Curriculum, Level, label
from shoal.loops.plan import Plan
from shoal.loops.preparation import set_aside
from shoal.loops.reports import ActorReport
from shoal.types import Episode

CURRICULUM_FILE = "curriculum.json"


class CurriculumRecord:
    """Only episodes of the lanes that explore least are counted: the others fail by chance."""

    def __init__(self, plan: Plan, file: Path, note: Callable[[str], None]) -> None:
        """Args:
        plan: the run's plan.
        file: where it is saved; continued if it is there.
        note: shows a line to the user.
        """
        self._curriculum = Curriculum(plan.settings.curriculum)
        self._env_id, self._actors = plan.spec.env_id, plan.settings.actors
        counted = math.floor(plan.lanes * plan.settings.curriculum.lanes + 1e-9)  # 0.7 of 10 lanes is 6.999...
        self._first = plan.lanes - max(1, counted)
        self._file, self._note, self._warned = file, note, False
        self._said: set[str] = set()
        if file.exists():
            self._restore()

    @property
    def levels(self) -> Sequence[Level]:
        """Those that actors play. A new object when there is one more."""
        return self._curriculum.levels

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to pass."""
        return self._curriculum.finished

    def take(self, report: ActorReport) -> None:
        """Counts an actor's episodes.

        Raises:
            ConfigError: the environment does not say how they ended.
        """
        for episode in report.episodes:
            if episode.lane * self._actors + report.index >= self._first:  # its place on the ladder of exploration
                self._count(episode)

    def record(self) -> dict[str, float]:
        """Saves it, and returns its metrics."""
        try:
            atomic_write(self._file, json.dumps(self._curriculum.state()).encode())
        except OSError as error:  # as with metrics: the run goes on without
            if not self._warned:
                self._note(f"the curriculum is not saved: {explained(error, self._file)}")
            self._warned = True
        rates = {f"curriculum/{label(level)}": self._curriculum.success(level) for level in self.levels}
        played = {name: rate for name, rate in rates.items() if not math.isnan(rate)}
        return {"curriculum/levels": len(self.levels), **played}

    def _count(self, episode: Episode) -> None:
        told = level_of(episode.metrics)
        if SUCCESS not in episode.metrics or not told:
            raise ConfigError(
                f"curriculum: {self._env_id} ended an episode without saying whether it succeeded, or at which level: "
                'its last info needs "is_success", a vector environment\'s also "level.NAME" in "episode_metrics".'
            )
        level = self._curriculum.named(told)
        for one in self._curriculum.observe(level, bool(episode.metrics[SUCCESS])):
            rate = self._curriculum.success(level)
            self._note(f"curriculum: {label(level)} passes with {rate:.2f} and unlocks {label(one)}")
        if self._curriculum.lost(level) and label(level) not in self._said:
            self._said.add(label(level))
            self._note(
                f"curriculum: {label(level)} had passed, and {self._curriculum.success(level):.2f} of its newest "
                "episodes succeed: what was learned is being lost. In a new run, lower learning_rate, or raise "
                "curriculum.success: harder levels then come later"
            )

    def _restore(self) -> None:
        try:
            self._curriculum.restore(read_object(self._file))
        except (KeyError, TypeError, ValueError):
            self._note(f"{self._file.name} is damaged; set aside as {set_aside(self._file)}: levels start over")
