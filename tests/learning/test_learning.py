"""Every algorithm learns, in the runtime that repeats itself exactly: a failure here is a change, not bad luck."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.fakes import corridor, reach

from shoal.config.load import load_scenario
from shoal.loops.plan import make_plan
from shoal.loops.settings import RunSettings
from shoal.runtime.execution import execute
from shoal.runtime.run_folder import RunFolder, Summary

pytestmark = pytest.mark.learning
SCENARIOS = Path(__file__).parents[2] / "src" / "shoal" / "scenarios"


def run(tmp_path: Path, settings: RunSettings) -> tuple[RunFolder, Summary]:
    folder = RunFolder.create(tmp_path, settings.env.id, settings.algo, datetime.now())
    return folder, execute(make_plan(settings), folder, quiet=True)


VALUE_BASED = ("apex-dqn", "apex-qr-dqn")
PRIORITIZED = {"selectors": [{"type": "prioritized"}]}
CONTINUOUS: dict[str, dict[str, Any]] = {
    "apex-dpg": {"replay": PRIORITIZED, "algorithm": {"activation": "relu"}},
    "d4pg": {},
    "d4pg categorical, prioritized": {
        "replay": PRIORITIZED,
        "algorithm": {"critic": "categorical", "value_min": -8, "value_max": 1},
    },
    "td3": {},
    "td3 normalised": {"algorithm": {"normalize_observations": True, "reward_scale": 0.5}},
    "sac": {},
}


@pytest.mark.parametrize("algo", VALUE_BASED)
def test_it_learns_the_corridor(tmp_path: Path, algo: str) -> None:
    ends = {"stop": {"steps": 6000, "mean_return": 1.0}, "evaluation": {"every_steps": 4000}}
    folder, summary = run(tmp_path, corridor(algo=algo, **ends))
    assert summary.status == "solved" and summary.eval_return_mean == 1.0
    assert json.loads(folder.summary_json.read_text())["status"] == "solved"
    assert summary.samples_per_insert == pytest.approx(8, rel=0.05)
    assert not Path(json.loads(folder.replay_json.read_text())["path"]).exists()  # freed: it ended well


@pytest.mark.parametrize("case", CONTINUOUS)
def test_it_learns_to_reach(tmp_path: Path, case: str) -> None:
    settings = reach(algo=case.split()[0], stop={"mean_return": -0.4}, **CONTINUOUS[case])
    _, summary = run(tmp_path, settings)
    assert summary.status == "solved", summary
    assert summary.samples_per_insert == pytest.approx(32, rel=0.05)


@pytest.mark.parametrize("name", ["cartpole_apex_dqn", "cartpole_apex_qr_dqn", "cartpole_impala"])
def test_its_scenario_solves_cartpole(tmp_path: Path, name: str) -> None:
    """Well beyond chance (a random policy gets 22) within a short budget; benchmarks/cartpole.py has the whole bar."""
    overrides = ["runtime=inline", "seed=2", "stop.steps=60000", "stop.mean_return=300"]
    _, summary = run(tmp_path, load_scenario(SCENARIOS / f"{name}.yaml", overrides))
    assert summary.status == "solved", summary
