"""Which levels are unlocked, by hand-worked sequences of episodes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shoal.loops.curriculum import Curriculum, Level, label
from shoal.loops.settings import CurriculumSettings


def settings(**changes: Any) -> CurriculumSettings:
    usual = {
        "start": {"agents": 1, "size": 10},
        "grow": {"agents": 1, "size": 5},
        "limit": {"agents": 3, "size": 20},
        "success": 0.75,
        "window": 4,
    }
    return CurriculumSettings.model_validate(usual | changes)


def level(agents: float, size: float) -> Level:
    return {"agents": agents, "size": size}


def passed(curriculum: Curriculum, one: Level, times: int = 4) -> list[str]:
    return [label(new) for _ in range(times) for new in curriculum.observe(one, True)]


def test_a_level_unlocks_a_neighbour_per_number() -> None:
    curriculum = Curriculum(settings())
    first = curriculum.levels
    assert first == (level(1, 10),) and math.isnan(curriculum.success(level(1, 10)))
    assert [curriculum.observe(level(1, 10), success) for success in (False, False, True)] == [[], [], []]
    assert curriculum.observe(level(1, 10), True) == []  # 2 of 4
    assert curriculum.observe(level(1, 10), True) == [level(2, 10), level(1, 15)]  # of the newest 4: 3
    assert curriculum.success(level(1, 10)) == 0.75 and curriculum.levels is not first
    assert curriculum.levels == (level(1, 10), level(2, 10), level(1, 15))
    assert passed(curriculum, level(1, 10)) == []  # once
    kept = curriculum.levels
    curriculum.observe(level(1, 10), False)
    curriculum.observe(level(1, 10), False)
    assert not curriculum.passes(level(1, 10)) and curriculum.levels is kept  # what is unlocked stays so


def test_a_full_window_is_needed_and_locked_levels_do_not_count() -> None:
    curriculum = Curriculum(settings())
    assert passed(curriculum, level(1, 10), 3) == [] and passed(curriculum, level(3, 20), 9) == []
    assert len(curriculum.levels) == 1


def test_levels_keep_whole_numbers_and_their_limits() -> None:
    curriculum = Curriculum(settings(limit={"agents": 2, "size": 17}))
    assert passed(curriculum, level(1.0, 10.0)) == ["agents=2,size=10", "agents=1,size=15"]  # as environments report it
    assert passed(curriculum, level(1, 15)) == ["agents=2,size=15", "agents=1,size=17"]  # not 20
    assert passed(curriculum, level(2, 15)) == ["agents=2,size=17"]
    assert passed(curriculum, level(2, 17)) == []
    assert all(isinstance(value, int) for one in curriculum.levels for value in one.values())


def test_it_is_finished_when_all_levels_of_the_last_numbers_limit_pass() -> None:
    curriculum = Curriculum(settings(limit={"agents": 2, "size": 15}))
    for one in (level(1, 10), level(2, 10), level(2, 15)):
        passed(curriculum, one)
    assert len(curriculum.levels) == 4 and not curriculum.finished  # one agent on 15 did not pass
    passed(curriculum, level(1, 15))
    assert curriculum.finished
    curriculum.observe(level(2, 15), False)
    curriculum.observe(level(2, 15), False)
    assert not curriculum.finished


def test_numbers_may_fall_in_small_steps() -> None:
    falling = settings(start={"slack": 0.3}, grow={"slack": -0.1}, limit={"slack": 0.0})
    curriculum = Curriculum(falling)
    for _ in range(5):
        passed(curriculum, curriculum.levels[-1])
    assert [one["slack"] for one in curriculum.levels] == [0.3, 0.2, 0.1, 0.0] and curriculum.finished


def test_a_state_comes_back() -> None:
    curriculum = Curriculum(settings())
    passed(curriculum, level(1, 10))
    curriculum.observe(level(2, 10), False)
    again = Curriculum(settings())
    again.restore(curriculum.state())
    assert again.levels == curriculum.levels and again.state() == curriculum.state()
    assert passed(again, level(2, 10), 3) == [
        "agents=3,size=10",
        "agents=2,size=15",
    ]  # 3 of 4
    smaller = Curriculum(settings(limit={"agents": 1, "size": 20}))
    smaller.restore(curriculum.state())
    assert smaller.levels == (level(1, 10), level(1, 15))


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"levels": 3, "recent": []},
        {"levels": [{"agents": 1, "size": 10}], "recent": []},
        {"levels": [{"agents": 1}], "recent": ["1"]},
        {"levels": [{"agents": 1, "size": "x"}], "recent": ["1"]},
        {"levels": [{"agents": 1, "size": 10}], "recent": ["1x"]},
    ],
)
def test_a_damaged_state_changes_nothing(damaged: Any) -> None:
    curriculum = Curriculum(settings())
    with pytest.raises((KeyError, TypeError, ValueError)):
        curriculum.restore(damaged)
    assert curriculum.state() == Curriculum(settings()).state()
