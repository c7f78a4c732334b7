"""EvaluationSchedule: when the weights are evaluated while a run trains, and for how long at its end."""

from __future__ import annotations

import math
from collections.abc import Collection

from shoal.loops.settings import RunSettings
from shoal.runtime.recent_episodes import RECENT_EPISODES

FIRST = 10
"""The first evaluation comes after this part of `every_steps`, counted from the first published weights; each interval
is twice the one before, until it is `every_steps`.
"""
AT_GOAL = 4
"""While training itself reaches the goal, evaluations come after this part of `every_steps`."""
REST = 2.0
"""Without a goal nobody waits for the result: the evaluator rests this many times as long as it worked."""
LAST_SECONDS, LAST_SHARE = 60.0, 0.25
"""The evaluation of the final weights may take this many seconds; this share of the training if that is more."""
GRACE_SECONDS, GRACE_SHARE = 10.0, 0.1
"""The same beyond `stop.seconds`; the share is of these."""


class EvaluationSchedule:
    """Pure: asked with counts and, where roles work side by side, with the clock."""

    def __init__(self, settings: RunSettings, steps: int, updates: int) -> None:
        """Args:
        settings: the run's settings.
        steps: the run's steps so far.
        updates: and its updates; above 0, an earlier execution has learned already.
        """
        self._every, self._goal = settings.evaluation.every_steps, settings.stop.mean_return
        self._interval = self._every if updates else max(1, self._every // FIRST)
        self._last = steps // self._every * self._every if updates else None
        """Steps at the last evaluation, or when weights were first published; None before that."""
        self._published = updates + (1 if updates else settings.learner.publish_every)
        self._enough = settings.evaluation.episodes
        self._rests = self._goal is None and settings.runtime != "inline"
        self._rested, self._longest = -math.inf, 0.0

    def take_turn(self, steps: int, updates: int, returns: Collection[float] = (), now: float = 0.0) -> bool:
        """Whether it is time to evaluate; if so, sets the next time.

        Args:
            steps: the run's steps.
            updates: its updates.
            returns: of the newest episodes of training.
            now: a clock in seconds; not used where roles take turns.
        """
        if updates < self._published:
            return False
        if self._last is None:
            self._last = steps
        since = steps - self._last
        soon = since >= max(1, self._every // AT_GOAL) and self._at_goal(returns)
        if not soon and (since < self._interval or (self._rests and now < self._rested)):
            return False
        self._last, self._interval = steps, min(self._every, 2 * self._interval)
        return True

    def ended(self, seconds: float, now: float) -> None:
        """An evaluation has ended that took `seconds`."""
        self._longest, self._rested = max(self._longest, seconds), now + REST * seconds

    def _at_goal(self, returns: Collection[float]) -> bool:
        enough = len(returns) >= min(self._enough, RECENT_EPISODES)
        return self._goal is not None and enough and sum(returns) / len(returns) >= self._goal

    def last_seconds(self, trained: float, limit: float | None) -> float:
        """How long the evaluation of the final weights may take.

        Args:
            trained: seconds since the first step.
            limit: `stop.seconds`.
        """
        if limit is not None:
            return max(0.0, limit - trained) + max(GRACE_SECONDS, GRACE_SHARE * limit)
        return max(LAST_SECONDS, LAST_SHARE * trained, 2 * self._longest)
