"""Every way to mix fresh and old sequences learns, with every option beside it, for discrete and continuous actions."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests import fakes  # noqa: F401  registers the environments

from shoal.loops.plan import make_plan
from shoal.loops.settings import RunSettings
from shoal.runtime.execution import execute
from shoal.runtime.run_folder import RunFolder, Summary

pytestmark = pytest.mark.learning
HALF_FRESH = {"type": "fifo", "ratio": 0.5}
MIXTURES: dict[str, list[dict[str, Any]]] = {
    "fifo": [{"type": "fifo"}],
    "drop": [{"type": "fifo", "on_full": "drop"}],
    "uniform": [HALF_FRESH, {"type": "uniform", "ratio": 0.5, "capacity": 200}],
    "newest": [HALF_FRESH, {"type": "newest", "ratio": 0.5}],
    "attentive": [HALF_FRESH, {"type": "attentive", "ratio": 0.5, "distance": "cosine"}],
    "elite 1 kl": [HALF_FRESH, {"type": "elite", "ratio": 0.5, "strategy": 1, "distance": "kl"}],
    "elite 2": [HALF_FRESH, {"type": "elite", "ratio": 0.5, "strategy": 2}],
    "elite 3": [HALF_FRESH, {"type": "elite", "ratio": 0.5, "strategy": 3, "lambda": 6, "anneal": 0.01}],
    "elite 4 insertion": [
        HALF_FRESH,
        {"type": "elite", "ratio": 0.5, "strategy": 4, "insertion": True, "capacity": 100},
    ],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clear and laser": {"clear": {"enabled": True}, "laser": {"enabled": True}},
    "lstm": {"lstm": 16, "burn_in": 2},
    "clear": {"clear": {"enabled": True}},
    "laser": {"laser": {"enabled": True}},
    "all": {"clear": {"enabled": True}, "laser": {"enabled": True}, "lstm": 16, "burn_in": 2},
}


def settings_of(
    algo: str, env: str, replay: list[dict[str, Any]], algorithm: dict[str, Any], **more: Any
) -> RunSettings:
    """A run of seconds."""
    return RunSettings.model_validate(
        {
            "env": {"id": f"tests.fakes:{env}", "lanes": 4},
            "algo": algo,
            "actors": 2,
            "runtime": "inline",
            "algorithm": {"learning_rate": 3e-3, "hidden": [32], "unroll": 8, "gradient_clip": 10, **algorithm},
            "actor": {"weights_period": 1},
            "learner": {"batch_size": 8, "publish_every": 1},
            "replay": {"capacity": 4000, "min_size": 1, "samples_per_insert": None, "selectors": replay},
            "evaluation": {"episodes": 8, "every_steps": 10_000, "lanes": 8},
            **more,
        }
    )


def run(tmp_path: Path, settings: RunSettings) -> Summary:
    folder = RunFolder.create(tmp_path, settings.env.id, settings.algo, datetime.now())
    return execute(make_plan(settings), folder, quiet=True)


CASES = [
    ("fifo", "plain"),
    ("fifo", "clear and laser"),
    ("drop", "lstm"),
    ("uniform", "plain"),
    ("uniform", "all"),
    ("newest", "clear"),
    ("attentive", "all"),
    ("elite 1 kl", "laser"),
    ("elite 2", "clear and laser"),
    ("elite 3", "lstm"),
    ("elite 4 insertion", "all"),
]
"""Every mixture and every choice of options, and each option with fresh rows, uniform draws and others."""


@pytest.mark.parametrize(("mixture", "options"), CASES)
def test_impala_learns_the_corridor(tmp_path: Path, mixture: str, options: str) -> None:
    stop = {"steps": 12_000, "mean_return": 1.0}
    settings = settings_of("impala", "TestCorridor-v0", MIXTURES[mixture], OPTIONS[options], stop=stop)
    summary = run(tmp_path, settings)
    assert summary.status == "solved", summary
    # A fresh step once, and as many old ones beside it. Rows that only hold an episode's last observation are drawn,
    # too, and are no steps: every fifth, where an episode takes four.
    reuse = len(MIXTURES[mixture])
    assert reuse * 0.95 <= summary.samples_per_insert <= reuse * 1.35


CONTINUOUS: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any]]] = {
    "impala": ("impala", MIXTURES["fifo"], {}),
    "impala, uniform, clear and laser": ("impala", MIXTURES["uniform"], OPTIONS["clear and laser"]),
    "impala, elite, lstm": ("impala", MIXTURES["elite 3"], OPTIONS["lstm"]),
    "impala, attentive, all": ("impala", MIXTURES["attentive"], OPTIONS["all"]),
    "impact": ("impact", [{"type": "circular", "slots": 2, "passes": 4}], {"target_period": 8}),
}


@pytest.mark.parametrize("case", CONTINUOUS)
def test_it_learns_to_reach(tmp_path: Path, case: str) -> None:
    """Random actions return about -4, the best possible ones -0.1."""
    algo, replay, options = CONTINUOUS[case]
    algorithm = {"gamma": 0.9, "entropy_cost": 0.0, "share_torso": False, **options}
    stop = {"steps": 40_000, "mean_return": -0.6}
    summary = run(tmp_path, settings_of(algo, "TestReach-v0", replay, algorithm, stop=stop))
    assert summary.status == "solved", summary


CIRCULAR = {"type": "circular", "slots": 2, "passes": 3}


@pytest.mark.parametrize("options", ["plain", "lstm"])
@pytest.mark.parametrize("mixture", ["circular", "elite 3"])
def test_impact_learns_the_corridor(tmp_path: Path, mixture: str, options: str) -> None:
    replay = [CIRCULAR] if mixture == "circular" else [CIRCULAR | {"ratio": 0.5}, MIXTURES[mixture][1]]
    algorithm = {"target_period": 6, **OPTIONS[options]}
    stop = {"steps": 12_000, "mean_return": 1.0}
    summary = run(tmp_path, settings_of("impact", "TestCorridor-v0", replay, algorithm, stop=stop))
    assert summary.status == "solved", summary
    assert summary.samples_per_insert == pytest.approx(3.6 * len(replay), rel=0.2)


@pytest.mark.parametrize(
    ("env", "mixture", "inference"),
    [("TestCorridor-v0", "attentive", "served"), ("TestReach-v0", "elite 3", "local")],
)
def test_it_learns_on_ray(tmp_path: Path, env: str, mixture: str, inference: str) -> None:
    """With the options beside it, in processes of their own."""
    reach = env == "TestReach-v0"
    algorithm = OPTIONS["clear and laser"] | {"gamma": 0.9, "entropy_cost": 0.0} if reach else OPTIONS["all"]
    stop = {"steps": 400_000, "seconds": 90, "mean_return": -0.6 if reach else 1.0}
    actor = {"weights_period": 1, "inference": inference}
    settings = settings_of("impala", env, MIXTURES[mixture], algorithm, stop=stop, runtime="ray", actor=actor)
    summary = run(tmp_path, settings)
    assert summary.status == "solved", summary


def test_batches_of_what_is_ready(tmp_path: Path) -> None:
    stop = {"steps": 12_000, "mean_return": 1.0}
    learner = {"batch_size": 8, "publish_every": 1, "batch": {"min": 2, "max": 16}}
    settings = settings_of("impala", "TestCorridor-v0", MIXTURES["fifo"], {}, stop=stop, learner=learner)
    summary = run(tmp_path, settings)
    assert summary.status == "solved", summary
