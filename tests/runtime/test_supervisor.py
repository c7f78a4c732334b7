"""Time limits, as the supervisor knows them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import corridor, prepared

from shoal.loops.reports import ActorReport
from shoal.replay import Ledger, LedgerWord
from shoal.replay.ledger import RUN, WIND_DOWN
from shoal.runtime import supervisor as module
from shoal.runtime.metrics import MetricsLog
from shoal.runtime.progress import Progress, Snapshot, eta
from shoal.runtime.supervisor import Supervisor
from shoal.types import Episode


class Shown(Progress):
    """Keeps what it was to show."""

    newest: Snapshot

    def update(self, snapshot: Snapshot) -> None:
        self.newest = snapshot


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def supervising(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Makes a supervisor, its ledger, its clock, and what it shows; after an earlier execution of 500 s."""
    with MetricsLog(tmp_path, []) as log:

        def make(**sections: Any) -> tuple[Supervisor, Ledger, Clock, Shown]:
            clock, shown = Clock(), Shown(quiet=True)
            monkeypatch.setattr(module, "time", clock)
            plan, ledger = prepared(tmp_path, corridor(**sections))
            return Supervisor(plan, ledger, log, shown, 0, wall_before=500.0), ledger, clock, shown

        yield make


def test_the_time_limit_counts_from_the_first_step_of_this_execution(supervising: Callable[..., Any]) -> None:
    limits = {"steps": 1_000_000, "seconds": 60.0}
    supervisor, ledger, clock, shown = supervising(runtime="ray", stop=limits)
    clock.now += 30.0  # start-up
    supervisor.tick()
    assert eta(shown.newest) is None and supervisor.status() is None
    ledger.add(LedgerWord.BASE_STEPS, 100)
    supervisor.tick()
    clock.now += 20.0
    supervisor.tick()
    assert shown.newest.elapsed == 550.0 and eta(shown.newest) == 40.0
    assert supervisor.evaluation_seconds == 40.0
    clock.now += 40.0
    supervisor.tick()
    assert eta(shown.newest) == 0.0 and supervisor.status() == "finished"
    ledger[LedgerWord.STOP] = WIND_DOWN
    assert supervisor.evaluation_seconds == 10.0
    ledger[LedgerWord.STOP] = RUN


@pytest.mark.parametrize(("runtime", "last"), [("ray", 60.0), ("inline", math.inf)])
def test_the_last_evaluation_ends_without_a_time_limit_too(
    supervising: Callable[..., Any], runtime: str, last: float
) -> None:
    """Inline it does not: results do not depend on the clock, and `evaluation.max_episode_steps` ends it."""
    supervisor, ledger, _, _ = supervising(runtime=runtime)
    assert supervisor.evaluation_seconds == math.inf
    ledger[LedgerWord.STOP] = WIND_DOWN
    assert supervisor.evaluation_seconds == last
    ledger[LedgerWord.STOP] = RUN


def test_training_that_reaches_the_goal_is_evaluated_soon(supervising: Callable[..., Any]) -> None:
    evaluation = {"every_steps": 1000, "episodes": 4}
    supervisor, ledger, _, _ = supervising(stop={"mean_return": 5.0}, evaluation=evaluation)
    ledger.add(LedgerWord.UPDATES, 50)
    taken = []
    for steps in range(0, 2000, 50):
        if steps == 1500:
            episodes = tuple(Episode(0, 6.0, 10) for _ in range(4))
            supervisor.take("actor 0", ActorReport(0, 50, 1.0, 0.0, episodes, 1))
        if supervisor.take_evaluation_turn():
            taken.append(steps)
        ledger.add(LedgerWord.BASE_STEPS, 50)
    assert taken == [100, 300, 700, 1500, 1750]
