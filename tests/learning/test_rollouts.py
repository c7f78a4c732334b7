"""PPO learns with every kind of action, lag and inference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.learning.test_sequences import run, settings_of

pytestmark = pytest.mark.learning
LEARNER = {"batch_size": "lanes", "publish_every": 1}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], float]] = {
    "plain": ("TestCorridor-v0", {}, {}, 1.0),
    "lag 1": ("TestCorridor-v0", {"lag": 1}, {}, 1.0),
    "a share": ("TestCorridor-v0", {"share": 0.5}, {}, 1.0),
    "lstm": ("TestRecall-v0", {}, {"lstm": 16, "unroll": 16, "epochs": 4}, 1.0),
    "continuous": ("TestReach-v0", {}, {"gamma": 0.9, "unroll": 32, "normalize_values": True}, -0.6),
    "all": (
        "TestCorridor-v0",
        {},
        {
            "value_clip": 0.2,
            "target_kl": 0.05,
            "schedule_updates": 1_000,
            "surrogate_clip_end": 0.1,
            "entropy_cost": 0.01,
            "normalize_observations": True,
            "normalize_values": True,
        },
        1.0,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_it_learns(tmp_path: Path, case: str) -> None:
    env, rollout, algorithm, goal = CASES[case]
    stop = {"steps": 60_000, "mean_return": goal}
    settings = settings_of("ppo", env, [{"type": "rollout", **rollout}], algorithm, stop=stop, learner=LEARNER)
    summary = run(tmp_path, settings)
    assert summary.status == "solved", summary
    assert summary.samples_per_insert == pytest.approx(1.1, abs=0.2)  # rows without a step are drawn too


@pytest.mark.parametrize(("inference", "lag"), [("served", 0), ("local", 1)])
def test_it_learns_on_ray(tmp_path: Path, inference: str, lag: int) -> None:
    actor = {"weights_period": 1, "inference": inference}
    stop = {"steps": 400_000, "seconds": 90, "mean_return": 1.0}
    replay = [{"type": "rollout", "lag": lag}]
    options: dict[str, Any] = {"stop": stop, "learner": LEARNER, "actor": actor, "runtime": "ray"}
    summary = run(tmp_path, settings_of("ppo", "TestRecall-v0", replay, {"lstm": 16, "unroll": 16}, **options))
    assert summary.status == "solved", summary
