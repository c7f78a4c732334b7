"""Supervisor: takes the roles' reports, writes metrics, shows progress, decides when to evaluate and when to stop."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from functools import singledispatchmethod

import numpy as np

from shoal.envs.episode_metrics import mean_metrics
from shoal.errors import ShoalError
from shoal.loops.assembly import make_pace
from shoal.loops.plan import Plan, make_limiter
from shoal.loops.reports import ActorReport, EvaluationReport, LearnerReport, Report
from shoal.replay import Ledger, LedgerWord
from shoal.replay.ledger import HALT
from shoal.runtime.bottleneck import Share, Waits
from shoal.runtime.curriculum import CurriculumRecord
from shoal.runtime.evaluation_schedule import EvaluationSchedule
from shoal.runtime.health import HealthWatch
from shoal.runtime.metrics import MetricsLog
from shoal.runtime.progress import Progress, Snapshot
from shoal.runtime.recent_episodes import RecentEpisodes
from shoal.runtime.run_folder import Status, Summary

RECORD_STEPS = 1_000
"""Environment steps between two lines of metrics of an inline run, so that they do not depend on the clock."""
FIRST_REPORT_SECONDS = 2.0


class Supervisor:
    """Counts, rates and the end of one execution of a run."""

    def __init__(
        self,
        plan: Plan,
        ledger: Ledger,
        log: MetricsLog,
        progress: Progress,
        replay_bytes: int,
        wall_before: float = 0.0,
        curriculum: CurriculumRecord | None = None,
        at_least: int = 0,
    ) -> None:
        """Args:
        plan: the run's plan.
        ledger: its counts.
        log: where metrics go.
        progress: what the user sees.
        replay_bytes: size of the replay on shared memory.
        wall_before: seconds of earlier executions of this run.
        curriculum: its levels, if it has any.
        at_least: environment steps that the run has made; mirrors may have to catch up before the ledger counts them.
        """
        self._at_least, self.curriculum = at_least, curriculum
        self.plan, self.settings, self.ledger = plan, plan.settings, ledger
        self.inline = plan.settings.runtime == "inline"
        """Whether all roles share one process."""
        self.doing = ""
        """What the run is doing, if that is not training; shown."""
        self._trained_until: float | None = None
        self.health = HealthWatch(plan.settings, plan.spec)
        """Judges every line of metrics."""
        self.outposts: Mapping[int, object] = {}
        """Where each outpost is; for the role that mirrors their rows."""
        self.restarts = 0
        self.ray_calls = 0
        self.interrupted = False
        self.actors_next: int | None = None
        """With how many actors the run goes on, if it stops for that."""
        self._log, self._progress, self._replay_bytes, self._wall_before = log, progress, replay_bytes, wall_before
        self.pace, self._limiter = make_pace(plan, ledger), make_limiter(plan.settings)
        self._began = time.monotonic()
        self._first_step: float | None = None
        self._steps_before, self._updates_before = self._steps, ledger.updates
        self._recent = RecentEpisodes()
        self._waits = Waits()
        self._learner: LearnerReport | None = None
        self._logged: dict[str, Mapping[str, float]] = {}
        """The newest metrics of each role, by its name."""
        self._staleness = Share()
        self._metric_sums: dict[str, float] = {}
        self._metric_updates = 0
        self._evaluation: EvaluationReport | None = None
        self._evaluations = 0
        self._schedule = EvaluationSchedule(plan.settings, self._steps, ledger.updates)
        self._evaluated_last = False
        self._next_record, self._recorded = self._steps + RECORD_STEPS, self._began
        self._rates: deque[tuple[float, int, int]] = deque([(self._began, self._steps, ledger.updates)], maxlen=8)

    @property
    def _steps(self) -> int:
        return max(self._at_least, self.ledger.env_steps)

    # ---- what roles report
    # ------------------------------------------------------------------------------------------------

    def take(self, role: str, report: Report | None) -> None:
        """Takes the report of the role with this name."""
        if report is None:
            return
        for text in report.notes:
            self.note(text, recurs=report.notes_recur)
        if logged := report.logged:
            self._logged[role] = logged
        self._waits.take(report)
        self._count(report)

    @singledispatchmethod
    def _count(self, report: Report) -> None:
        """What a report brings beyond notes and metrics; most bring nothing."""

    @_count.register
    def _count_actor(self, report: ActorReport) -> None:
        self._recent.extend(report.episodes)
        self.health.begin(episode.episode_return for episode in report.episodes)
        if self.curriculum is not None:
            self.curriculum.take(report)

    @_count.register
    def _count_learner(self, report: LearnerReport) -> None:
        if report.updates and not report.rank:
            self._learner = report
            for name, value in report.metrics.items():
                self._metric_sums[name] = self._metric_sums.get(name, 0.0) + value * report.updates
            self._metric_updates += report.updates
            if not math.isnan(report.staleness):  # of other runs' rows only
                self._staleness.add(report.staleness * report.updates, report.updates)

    @_count.register
    def _count_evaluation(self, report: EvaluationReport) -> None:
        """Writes its metrics at once."""
        self._schedule.ended(report.seconds, time.monotonic())
        if not report.returns:
            return
        self._evaluation = report
        self._evaluations += 1
        values = {
            "eval/mean_reward": float(np.mean(report.returns)),
            "eval/std_reward": float(np.std(report.returns)),
            "eval/mean_ep_length": float(np.mean(report.lengths)),
            "eval/weights_version": float(report.weights_version),
            "eval/is_best": float(report.best),
            "time/eval_seconds": report.seconds,
        }
        values |= {f"eval/{name}": value for name, value in report.metrics.items()}
        self._write(report.env_steps, values)
        self.show()

    def restarted(self, role: str, why: str, then: str = "started again") -> None:
        """Counts a role or a node that died, and says what happens `then`; raises ShoalError if it is too often."""
        self.restarts += 1
        if self.restarts > self.settings.restart_limit:
            raise ShoalError(
                f"{role} died ({why}); roles have died {self.restarts} times, more than "
                f"restart_limit = {self.settings.restart_limit}. Look for what kills them: often too little memory."
            )
        self.note(f"{role} died ({why}); {then}, restart {self.restarts}.")

    def note(self, text: str, *, recurs: bool = False) -> None:
        """Shows a line that stays on the screen. Of lines that recur, the first is shown and the others are counted."""
        (self._progress.recurring_note if recurs else self._progress.note)(text)

    # ---- when to do what
    # --------------------------------------------------------------------------------------------------

    def take_evaluation_turn(self) -> bool:
        """Whether it is time to evaluate the weights; if so, sets the next time. After training: once, if the final
        ones are not evaluated yet.
        """
        steps = self._steps
        if self.ledger.updates == self._updates_before or self.ledger.halt:
            return False
        if self.ledger.stop:
            first, self._evaluated_last = not self._evaluated_last, True
            last, newest = self._evaluation, self._learner.weights_version if self._learner else 0
            return first and (last is None or last.env_steps < steps or last.weights_version < newest)
        return self._schedule.take_turn(steps, self.ledger.updates, self._recent.returns, time.monotonic())

    @property
    def evaluation_seconds(self) -> float:
        """How long an evaluation that starts now may take: until the run's end; the last one a little longer."""
        left = self.seconds_left
        if left is None and self.inline:  # its results do not depend on the clock
            return math.inf
        if self.ledger.stop:
            return self._schedule.last_seconds(self._trained, self.settings.stop.seconds)
        return math.inf if left is None else left

    @property
    def seconds_left(self) -> float | None:
        """Of `stop.seconds`; None without that limit. Start-up does not count: with a short limit on a slow machine,
        nothing would be trained.
        """
        limit = self.settings.stop.seconds
        return None if limit is None else max(0.0, limit - self._trained)

    @property
    def _trained(self) -> float:
        """Seconds since the first step of this execution."""
        return 0.0 if self._first_step is None else time.monotonic() - self._first_step

    def status(self) -> Status | None:
        """How the run has ended; None while it goes on."""
        stop, evaluation = self.settings.stop, self._evaluation
        if self.interrupted:
            return "interrupted"
        if stop.mean_return is not None and evaluation is not None and np.mean(evaluation.returns) >= stop.mean_return:
            return "solved"
        if stop.steps is not None and self._steps >= stop.steps:
            return "finished"
        if stop.curriculum and self.curriculum is not None and self.curriculum.finished:
            return "finished"
        return "finished" if self.seconds_left == 0 else None

    @property
    def report_seconds(self) -> float:
        """How long the roles' next piece of work is: short at first, so that a new run shows something soon."""
        return min(self.settings.report_seconds, max(FIRST_REPORT_SECONDS, (time.monotonic() - self._began) / 6))

    def interrupt(self) -> None:
        """The user asked to stop. Safe in a signal handler."""
        self.interrupted = True
        self.ledger[LedgerWord.STOP] = HALT

    # ---- what is shown
    # ----------------------------------------------------------------------------------------------------

    @property
    def wall(self) -> float:
        """Seconds the run has trained, earlier executions included."""
        return self._wall_before + time.monotonic() - self._began

    def tick(self) -> None:
        """Call often: updates the driver's sign of life, the start-up time and the live view."""
        self.ledger.beat()
        if self._first_step is None and self._steps > self._steps_before:
            self._first_step = time.monotonic()
            self._rates.clear()
            self._rates.append((self._first_step, self._steps, self.ledger.updates))
        self.show()

    def record_if_due(self) -> None:
        """Writes a line of metrics every `report_seconds`; inline, every 1,000 steps."""
        if self.inline:
            due = self._steps >= self._next_record
        else:
            due = time.monotonic() - self._recorded >= self.report_seconds
        if due:
            self._next_record, self._recorded = self._next_record + RECORD_STEPS, time.monotonic()
            self.record()

    def record(self) -> None:
        """Writes one line of metrics. Names outside `time/` do not depend on the clock."""
        now, steps, updates = time.monotonic(), self._steps, self.ledger.updates
        values: dict[str, float] = {"rollout/episodes": self.ledger.episodes, "train/updates": updates}
        values |= self._recent.metrics
        if self.curriculum is not None:
            values |= self.curriculum.record()
        if self._learner is not None:
            values |= {f"train/{name}": total / self._metric_updates for name, total in self._metric_sums.items()}
            values["replay/samples_per_insert"] = self._achieved()
        self._rates.append((now, steps, updates))
        steps_per_second, updates_per_second = self._recent_rates()
        values |= {
            "time/fps": steps_per_second,
            "time/updates_per_second": updates_per_second,
            "time/learner_wait_fraction": self._waits.learner.value,
            "time/actor_wait_fraction": self._waits.actors.value,
            "time/restarts": self.restarts,
        }
        values |= mean_metrics(self._logged.values())
        self._write(steps, values)
        self._metric_sums, self._metric_updates = {}, 0

    def _write(self, step: int, values: dict[str, float]) -> None:
        self._log.write(step, values, self.wall)
        layers = self._learner.health.layers if self._learner and self._learner.health else ()
        for text in (*self._log.take_notes(), *self.health.judge(step, values, layers)):
            self.note(text)

    def show(self) -> None:
        """Refreshes the live view."""
        if self.ledger.stop and self._trained_until is None:  # the final evaluation is no training: speeds stay
            self._trained_until = time.monotonic()
        steps_per_second, updates_per_second = self._recent_rates()
        learner, evaluation = self._learner, self._evaluation
        self._progress.update(
            Snapshot(
                env_steps=self._steps,
                elapsed=self.wall,
                target_steps=self.settings.stop.steps,
                seconds_left=self.seconds_left if self._first_step else None,
                steps_per_second=steps_per_second,
                updates=self.ledger.updates,
                updates_per_second=updates_per_second,
                train_return=self._recent.mean_return,
                eval_return=float(np.mean(evaluation.returns)) if evaluation else None,
                evaluations=self._evaluations,
                eval_steps=evaluation.env_steps if evaluation else None,
                stop_return=self.settings.stop.mean_return,
                loss=learner.metrics.get("loss") if learner else None,
                staleness=learner.staleness if learner else None,
                replay_rows=min(self.ledger.inserts, self.settings.replay.capacity),
                replay_capacity=self.settings.replay.capacity,
                restarts=self.restarts,
                bottleneck=self._waits.verdict(self.settings) if learner else "",
                note=self.doing if self._first_step else "starting",
            )
        )

    def summary(self, status: Status, error: str | None = None) -> Summary:
        """The run's result so far."""
        began = self._first_step or self._began
        seconds = max(1e-9, (self._trained_until or time.monotonic()) - began)
        evaluation = self._evaluation
        return Summary(
            status=status,
            env_steps=self._steps,
            episodes=self.ledger.episodes,
            updates=self.ledger.updates,
            wall_seconds=self.wall,
            train_return_mean=math.nan if (mean := self._recent.mean_return) is None else mean,
            eval_return_mean=float(np.mean(evaluation.returns)) if evaluation else math.nan,
            eval_return_std=float(np.std(evaluation.returns)) if evaluation else math.nan,
            steps_per_second=(self._steps - self._steps_before) / seconds,
            updates_per_second=(self.ledger.updates - self._updates_before) / seconds,
            samples_per_insert=self._achieved(),
            staleness_mean=self._staleness.value,
            learner_wait_fraction=self._waits.learner.value,
            actor_wait_fraction=self._waits.actors.value,
            bottleneck=self._waits.verdict(self.settings),
            restarts=self.restarts,
            replay_bytes=self._replay_bytes,
            error=error,
            ray_calls=self.ray_calls if self.settings.runtime == "ray" else None,
            health=self.health.complaints,
            startup_seconds=None if self._first_step is None else self._first_step - self._began,
        )

    def _achieved(self) -> float:
        return self._limiter.achieved(self.ledger.inserts, self.ledger[LedgerWord.SAMPLES])

    def _recent_rates(self) -> tuple[float, float]:
        then, steps, updates = self._rates[0]
        seconds = max(1e-9, (self._trained_until or time.monotonic()) - then)
        return (self._steps - steps) / seconds, (self.ledger.updates - updates) / seconds
