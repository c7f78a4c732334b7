"""The process of one run of `shoal share`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from shoal.cli.share_plan import ShareOptions, load_runs, plan
from shoal.cli.share_worker import WorkerSpec
from shoal.config.sb3_scenario import load_sb3_scenario
from shoal.sharing import Registry, create_distributed_registry

pytest.importorskip("stable_baselines3")
pytestmark = pytest.mark.slow
SMALL = ["learning_starts=10", "every_steps=1000", "total_timesteps=100_000_000"]


def work(folder: Path, registry: Registry, launcher: int, *overrides: str) -> tuple[int, dict[str, object]]:
    settings = load_sb3_scenario(Path("sb3_dqn_cartpole"), [*SMALL, *overrides]).model_dump(mode="json")
    spec = folder / "spec.json"
    spec.write_text(json.dumps(asdict(WorkerSpec("a", str(folder), launcher, str(registry.path), None, settings))))
    done = subprocess.run(
        [sys.executable, "-m", "shoal.cli.share_worker", str(spec)],
        env={**os.environ, "SHOAL_REGISTRY": str(registry.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "", done.stdout
    return done.returncode, json.loads((folder / "summary.json").read_text())


def test_a_run_without_its_launcher_saves_stops_and_frees_the_registry(tmp_path: Path) -> None:
    registry = create_distributed_registry()
    gone = registry.register_buffer("one_that_died", "DQN")
    for name in ("entry.json", "alive"):
        file = registry.folder(gone) / name
        file.write_text(file.read_text().replace(f'"pid": {os.getpid()}', '"pid": 999999999'))
    code, summary = work(tmp_path, registry, launcher=1)
    assert code == 0 and summary["status"] == "interrupted" and (tmp_path / "model.zip").exists()
    assert not registry.path.exists()


def test_the_registry_stays_while_another_run_lives(tmp_path: Path) -> None:
    registry = create_distributed_registry()
    try:
        other = registry.register_buffer("alive", "DQN")
        assert work(tmp_path, registry, launcher=1)[0] == 0
        assert [entry.buffer_id for entry in registry.entries()] == [other]
    finally:
        registry.stop()


def test_a_failure_is_in_the_summary(tmp_path: Path) -> None:
    registry = create_distributed_registry()
    try:
        code, summary = work(tmp_path, registry, os.getpid(), "env=NoSuchEnv-v0")
        assert code == 1 and summary["status"] == "failed" and "NoSuchEnv" in str(summary["error"])
    finally:
        registry.stop()


def test_a_run_has_the_settings_that_were_checked_whatever_becomes_of_its_scenario(tmp_path: Path) -> None:
    scenario = tmp_path / "mine.yaml"
    scenario.write_text("framework: sb3\nalgo: DQN\nenv: CartPole-v1\ntotal_timesteps: 64\n")
    options = ShareOptions(0.2, "local_only", (), 7, None, ("every_steps=64", "episodes=1"), False, 1, 60.0)
    (run,) = plan(options, load_runs([scenario], options), tmp_path, None)
    scenario.unlink()
    done = subprocess.run(run.command, env=run.environment, capture_output=True, text=True, timeout=120)
    summary = json.loads((run.folder / "summary.json").read_text())
    assert done.returncode == 0 and summary["status"] == "finished", done.stderr
    assert load_sb3_scenario(run.folder / "config.yaml").seed == 7
