"""LearnerLoop: draws batches, updates, returns priorities, publishes weights, saves checkpoints."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.algorithms.interface import Learner, StepResult
from shoal.errors import ShoalError
from shoal.loops.checkpoint import CheckpointState, save_checkpoint
from shoal.loops.health import Health, Probe
from shoal.loops.reports import LearnerReport
from shoal.loops.restoring import restore
from shoal.loops.settings import LearnerSettings
from shoal.loops.sharing_group import SharingGroup
from shoal.loops.team import POLL_SECONDS, Learners, MemberLost
from shoal.loops.weights import BoardModule
from shoal.replay import Ledger, LedgerWord
from shoal.replay.source import Source
from shoal.types import Sample

WAIT_SECONDS = 0.001
"""Between two attempts to draw a batch."""
LOOK_STEPS = 1_000
"""Environment steps between two looks at the learner's health where a piece of work is a number of updates: inline, and
there metrics must not depend on the clock. Otherwise there is one look per report."""


class _Means:
    """Running means of device scalars. They are read only when reported: reading one waits for the device."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self.count = 0

    def add(self, metrics: Any) -> None:
        for name, value in metrics.items():
            known = self._sums.get(name)
            self._sums[name] = value.clone() if known is None else known.add_(value)
        self.count += 1

    def take(self) -> dict[str, float]:
        means = {name: float(total) / self.count for name, total in self._sums.items()} if self.count else {}
        self._sums, self.count = {}, 0
        return means


class LearnerLoop:
    """One learner on one source of batches."""

    def __init__(
        self,
        learner: Learner,
        source: Source,
        weights: BoardModule,
        ledger: Ledger,
        settings: LearnerSettings,
        checkpoints: Path,
        group: SharingGroup | None = None,
        probe: Probe | None = None,
        team: Learners | None = None,
    ) -> None:
        """Goes on where the run's last learner stopped: see `restoring`.

        Args:
            learner: with its initial weights.
            source: where batches come from.
            weights: of the learner's module, and the board they are published on.
            ledger: the run's counts.
            settings: the `learner` section.
            checkpoints: their folder.
            group: the runs this one shares replay with.
            probe: looks at the learner's health.
            team: the run's learners, if there are several. The first one publishes, saves and counts updates.
        """
        self._learner, self._source, self._weights, self._ledger = learner, source, weights, ledger
        self._settings, self._checkpoints = settings, checkpoints
        self._group, self._notes_given = group, set[str]()
        self._team, self._first = team, team is None or team.rank == 0
        self._restored = team is None
        self._notes = restore(learner, weights, checkpoints) if team is None else ()
        self._waiting: Sample | None = None  # drawn, and not yet learned from, because other learners have no batch
        self._probe, self._next_look = probe, 0
        self._health: Health | None = None
        self._means = _Means()
        self._staleness = 0.0
        self._ruined = False
        self._ended = False
        self._saved_at = time.monotonic()

    def run(self, *, seconds: float | None = None, updates: int | None = None) -> LearnerReport:
        """Learns until `seconds` have passed, `updates` updates are done, or the run stops."""
        began = time.perf_counter()
        deadline = began + seconds if seconds is not None else float("inf")
        done, waited, stale, aged = 0, 0.0, 0.0, 0
        exchanged, pause = self._team.seconds if self._team else math.nan, POLL_SECONDS
        while (updates is None or done < updates) and not (self._ledger.stop and self._may_leave()):
            asked = time.perf_counter()
            if asked >= deadline:
                break
            sample, self._waiting = self._waiting or self._source.sample(), None
            due = sample is not None if self._team is None else self._due(self._team, sample)
            if not due and updates is None:
                pause = WAIT_SECONDS if sample is None else min(WAIT_SECONDS, 2 * pause)
                time.sleep(pause)
            if not due or self._source.draws_ahead:
                waited += time.perf_counter() - asked
            pause = pause if not due else POLL_SECONDS
            if not due:
                if updates is not None or self._ledger.orphaned:
                    break
                continue
            if sample is not None and not math.isnan(sample.weights_version):  # else all rows are of other runs
                stale, aged = stale + max(0.0, self._weights.board.version - sample.weights_version), aged + 1
            try:
                self._update(sample)
            except MemberLost:
                continue
            looks = not done and (updates is None or self._ledger.env_steps >= self._next_look)
            if self._probe and sample is not None and looks:
                self._health, self._next_look = self._probe.look(sample), self._ledger.env_steps + LOOK_STEPS
            done += 1
        metrics = self._means.take()
        if done:
            self._staleness = stale / aged if aged else math.nan
        return LearnerReport(
            updates=done,
            seconds=time.perf_counter() - began,
            waited=waited,
            metrics=metrics,
            staleness=self._staleness,
            weights_version=self._weights.board.version,
            notes=self._take_notes(),
            replay=self._source.metrics(),
            shared=self._group.metrics() if self._group else {},
            health=self._health,
            rank=self._team.rank if self._team else 0,
            exchanged=self._team.seconds - exchanged if self._team else math.nan,
        )

    def _due(self, team: Learners, sample: Sample | None) -> bool:
        """Whether all learners make an update now; keeps the sample if not."""
        try:
            if not team.joined and not self._join(team):
                due = False
            else:
                due = team.may_update(sample is not None)
        except MemberLost:
            due = False
        self._waiting = None if due else sample
        return due

    def _join(self, team: Learners) -> bool:
        """Becomes one of the learners, with the state that they have; the first of all has the run's."""
        if not team.join():
            return False
        self._notes, team.notes = self._notes + team.notes, ()
        if team.leader == team.rank and team.all_new:
            self._notes += restore(self._learner, self._weights, self._checkpoints)
        state = team.copy_state(self._learner.state())
        if team.leader != team.rank:
            self._learner.load_state(state)
        self._restored = True
        team.holds(int(state.scalars["learner_updates"]))
        return True

    def _may_leave(self) -> bool:
        """Whether no other learner waits for this one in an update."""
        return self._team is None or self._team.may_leave()

    @property
    def stopping(self) -> bool:
        return self._ledger.stop

    def end(self) -> None:
        """Publishes the final weights, saves a last checkpoint and stops. A second call does nothing."""
        if not self._ended:
            self._ended = True
            if self._first and self._restored:
                if not self._ruined:
                    self._weights.publish()
                self.save()
            self.close()
            if self._group:
                self._group.leave()

    def save(self) -> Path:
        """Saves a checkpoint now; ShoalError if the weights are ruined."""
        if self._ruined:
            raise ShoalError("The weights are not finite; they are not saved.")
        state = self._learner.state()
        info = {
            "env_steps": self._ledger.env_steps,
            "episodes": self._ledger.episodes,
            "updates": self._ledger.updates,
            "weights_version": self._weights.board.version,
            "learner": state.scalars,
        }
        saved = CheckpointState(updates=self._ledger.updates, tensors=state.tensors, info=info)
        self._saved_at = time.monotonic()
        return save_checkpoint(self._checkpoints, saved, keep=self._settings.keep_checkpoints)

    def close(self) -> None:
        """Stops the source's threads."""
        self._source.close()

    def _take_notes(self) -> tuple[str, ...]:
        notes, self._notes = self._notes, ()
        if self._group:
            notes += tuple(note for note in self._group.notes() if note not in self._notes_given)
            self._notes_given.update(notes)
        return notes

    def _update(self, sample: Sample | None) -> None:
        result = self._learner.step(sample)
        if self._team is not None:
            self._team.holds_another()
        publish = self._first and (self._ledger[LedgerWord.UPDATES] + 1) % self._settings.publish_every == 0
        save = self._first and time.monotonic() - self._saved_at >= self._settings.checkpoint_seconds
        if publish or save or result.priorities is not None:
            self._require_finite(result)
        if sample is not None and result.priorities is not None:
            self._source.update_priorities(sample.keys, result.priorities)
        self._means.add(result.metrics)
        if self._first:
            self._ledger.add(LedgerWord.UPDATES, 1)
        if publish:
            self._weights.publish()
        if save:
            self.save()

    def _require_finite(self, result: StepResult) -> None:
        """Ends the run before ruined weights are published or saved. Priorities are on the CPU already. Without them
        this is called only before publishing or saving, which waits for the device in any case.
        """
        norms = [value for name, value in result.metrics.items() if name.endswith("gradient_norm")]
        watched = norms or [loss for name, loss in result.metrics.items() if name == "loss"]
        finite = result.priorities is None or bool(np.isfinite(result.priorities).all())
        if not finite or not all(bool(torch.isfinite(value)) for value in watched):
            self._ruined = True
            raise ShoalError(
                f"The loss became {float(result.metrics.get('loss', math.nan))} at update {self._ledger.updates + 1}. "
                "Nothing of it was published or saved. Start a new run with a lower algorithm.learning_rate or "
                "algorithm.gradient_clip; if the environment's rewards are the cause, correct them and resume this one."
            )
