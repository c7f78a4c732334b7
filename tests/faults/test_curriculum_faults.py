"""Actors that die in the middle of a curriculum play the unlocked levels again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.faults.conftest import Training

from shoal.metrics_file import read_metrics

LEVELS = ("start={height: 1, width: 1}", "grow={height: 1, width: 1}", "limit={height: 4, width: 1}", "window=10")


def lines(training: Training) -> list[dict[str, Any]]:
    return [row for row in read_metrics(training.run / "metrics.jsonl") if "curriculum/levels" in row]


@pytest.mark.faults
def test_a_killed_actor_gets_the_levels_again(train: Callable[..., Training]) -> None:
    training = train(
        *("train", "tests.fakes:TestStairs-v0", "--seconds", "300", "actors=2", "env.lanes=2", "report_seconds=1"),
        *("evaluation.every_steps=1000000", *(f"curriculum.{one}" for one in LEVELS)),
    )
    training.wait_for(lambda: lines(training) and lines(training)[-1]["curriculum/levels"] == 4, "all levels")
    for role in ("actor 0", "actor 1"):
        training.kill_role(role)
    before = lines(training)[-1]["rollout/episodes"]

    def later() -> list[dict[str, Any]]:
        return [row for row in lines(training) if row["rollout/episodes"] > before + 500]

    training.wait_for(later, "500 more episodes")
    assert later()[0]["rollout/level.height"] > 1.5 and later()[0]["curriculum/levels"] == 4
    training.press_ctrl_c()
    assert training.end(60) == 0, training.output
    assert training.read("summary.json")["restarts"] == 2 and len(training.read("curriculum.json")["levels"]) == 4
    assert training.survivors() == []
