"""When weights are evaluated, with cases worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fakes import corridor

from shoal.loops.settings import RunSettings
from shoal.runtime.evaluation_schedule import EvaluationSchedule


def settings(goal: float | None = None, runtime: str = "inline", **evaluation: Any) -> RunSettings:
    learner, stop = {"publish_every": 8}, {"mean_return": goal}
    evaluation = {"every_steps": 1000, "episodes": 4, **evaluation}
    return corridor(runtime=runtime, evaluation=evaluation, learner=learner, stop=stop)


def turns(schedule: EvaluationSchedule, steps: range, *returns: float, updates: int = 100) -> list[int]:
    """The steps at which it was time."""
    return [step for step in steps if schedule.take_turn(step, updates, returns)]


def test_the_first_comes_soon_after_the_first_weights_and_intervals_grow() -> None:
    schedule = EvaluationSchedule(settings(), 0, 0)
    assert turns(schedule, range(0, 500, 10), updates=7) == []  # nothing is published yet
    assert turns(schedule, range(500, 5000, 10)) == [600, 800, 1200, 2000, 3000, 4000]


def test_a_resumed_run_has_had_its_first_ones() -> None:
    schedule = EvaluationSchedule(settings(), 1700, 50)
    assert turns(schedule, range(1700, 4000, 10), updates=50) == []  # this execution has learned nothing yet
    schedule = EvaluationSchedule(settings(), 1700, 50)
    assert turns(schedule, range(1700, 4500, 10)) == [2000, 3000, 4000]


def test_tiny_intervals() -> None:
    assert turns(EvaluationSchedule(settings(every_steps=3), 0, 0), range(0, 12)) == [1, 3, 6, 9]


def test_it_is_time_soon_when_training_reaches_the_goal() -> None:
    schedule = EvaluationSchedule(settings(goal=9.0), 1000, 50)
    assert turns(schedule, range(1000, 1500, 10), 9.0, 9.0, 8.9, 8.9) == []
    assert turns(schedule, range(1500, 1600, 10), 10.0, 10.0, 10.0) == []  # fewer episodes than an evaluation has
    assert turns(schedule, range(1600, 2400, 10), 9.0, 9.0, 9.0, 9.0) == [1600, 1850, 2100, 2350]
    assert turns(EvaluationSchedule(settings(), 1000, 50), range(1000, 1990, 10), *[1e9] * 4) == []  # no goal


@pytest.mark.parametrize(
    ("goal", "runtime", "rests"), [(None, "ray", True), (9.0, "ray", False), (None, "inline", False)]
)
def test_without_a_goal_it_takes_at_most_a_third_of_the_time(goal: float | None, runtime: str, rests: bool) -> None:
    schedule = EvaluationSchedule(settings(goal, runtime), 1000, 50)
    assert schedule.take_turn(2000, 60, now=100.0)
    schedule.ended(30.0, now=130.0)
    assert schedule.take_turn(3000, 70, now=189.0) is not rests
    assert schedule.take_turn(4000, 70, now=190.0)


def test_the_last_one_ends_too() -> None:
    schedule = EvaluationSchedule(settings(), 0, 0)
    assert schedule.last_seconds(trained=20.0, limit=None) == 60.0
    assert schedule.last_seconds(trained=600.0, limit=None) == 150.0
    schedule.ended(100.0, now=0.0)
    assert schedule.last_seconds(trained=600.0, limit=None) == 200.0  # it has taken 100 s beside training
    assert schedule.last_seconds(trained=20.0, limit=20.0) == 10.0
    assert schedule.last_seconds(trained=250.0, limit=300.0) == 50.0 + 30.0
