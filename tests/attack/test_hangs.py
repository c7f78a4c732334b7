"""Settings that pull against each other: a run that was let through must learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.attack


def test_a_run_that_looks_further_ahead_than_actors_may_go_still_learns(train: Callable[..., Any]) -> None:
    """Sixteen lanes may be eight rows ahead of the learner, and a transition of twenty steps needs 21."""
    few = ["batch_size=32", "n_step=20", "min_size=1", "capacity=4000", "actors=2", "env.lanes=8", "hidden=[8]"]
    run = train(
        "train",
        "CartPole-v1",
        "algo=apex-dqn",
        *few,
        "stop.steps=600",
        "every_steps=1000000",
        "evaluation.episodes=1",
        "-q",
    )
    assert run.end() == 0, run.output
    summary = run.read("summary.json")
    assert summary["status"] == "finished" and summary["updates"] > 50, run.output
