"""The verdict, with cases worked by hand."""

from __future__ import annotations

import math

import pytest

from shoal.runtime.bottleneck import verdict


@pytest.mark.parametrize(
    ("learner_wait", "actor_wait", "expected"),
    [
        (0.63, 0.0, "actors (the learner waits 63 % of its time for data)"),
        (1.0, 0.0, "actors (the learner waits 100 % of its time for data)"),
        (0.02, 0.4, "learner (the actors wait 40 % of their time for it)"),
        # PPO: the sides take turns, 70 + 30 = 100 %. Collecting takes longer than training.
        (0.7, 0.3, "actors (the learner waits 70 % of its time for data)"),
        (0.3, 0.7, "learner (the actors wait 70 % of their time for it)"),
        (0.5, 0.5, "balanced (the learner waits 50 % of its time, the actors 50 %)"),
        (0.45, 0.4, "balanced (the learner waits 45 % of its time, the actors 40 %)"),
        (0.0, 0.0, "balanced (nobody waits: both are busy)"),
        (0.09, 0.0, "balanced (nobody waits: both are busy)"),
        (0.12, 0.05, "balanced (the learner waits 12 % of its time, the actors 5 %)"),
        # Timers overlap a little; a wait cannot be longer than the time it was measured in.
        (1.02, -0.01, "actors (the learner waits 100 % of its time for data)"),
    ],
)
def test_verdict(learner_wait: float, actor_wait: float, expected: str) -> None:
    assert verdict(learner_wait, actor_wait) == expected


def test_both_idle_is_neither_sides_fault() -> None:
    """90 % and 80 % add up to 170 %: for at least 70 % of the time both waited at once."""
    text = verdict(0.9, 0.8)
    assert text.startswith("hand-over (both wait at once for at least 70 % of the time")
    assert verdict(0.6, 0.55).startswith("balanced")


@pytest.mark.parametrize("waits", [(math.nan, 0.2), (0.2, math.nan), (math.inf, 0.0)])
def test_not_measured(waits: tuple[float, float]) -> None:
    assert verdict(*waits) == "unknown (not measured yet)"
