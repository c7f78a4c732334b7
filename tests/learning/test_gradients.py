"""A3C learns with every kind of action and rule, inline and on Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.learning.test_sequences import run, settings_of

pytestmark = pytest.mark.learning
LEARNER = {"batch_size": "lanes", "publish_every": 1}
CASES: dict[str, tuple[str, dict[str, Any], float]] = {
    "plain": ("TestCorridor-v0", {}, 1.0),
    "a2c": ("TestCorridor-v0", {"k": "actors"}, 1.0),
    "newest": ("TestCorridor-v0", {"on_full": "newest", "max_staleness": 4, "discount_staleness": True}, 1.0),
    "rmsprop": ("TestCorridor-v0", {"optimizer": "rmsprop"}, 1.0),
    "lstm": ("TestRecall-v0", {"lstm": 16, "unroll": 16, "learning_rate": 3e-3}, 1.0),
    "continuous": ("TestReach-v0", {"gamma": 0.9, "normalize_values": True, "entropy_cost": 0.0}, -0.6),
}


@pytest.mark.parametrize("case", CASES)
def test_it_learns(tmp_path: Path, case: str) -> None:
    env, algorithm, goal = CASES[case]
    stop = {"steps": 60_000, "mean_return": goal}
    settings = settings_of("a3c", env, [{"type": "rollout"}], algorithm, stop=stop, learner=LEARNER)
    summary = run(tmp_path, settings)
    assert summary.status == "solved", summary
    assert summary.samples_per_insert == pytest.approx(1.0, abs=0.1)


def test_it_learns_on_ray(tmp_path: Path) -> None:
    options: dict[str, Any] = {"stop": {"steps": 400_000, "seconds": 90, "mean_return": 1.0}, "runtime": "ray"}
    actor = {"weights_period": 1}
    settings = settings_of("a3c", "TestCorridor-v0", [{"type": "rollout"}], {}, learner=LEARNER, actor=actor, **options)
    summary = run(tmp_path, settings)
    assert summary.status == "solved", summary
