"""Groups of runs, interrupted and killed for real: everything is saved, nothing is left running or in memory."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.faults.conftest import Training

pytest.importorskip("stable_baselines3")
pytestmark = pytest.mark.faults
Start = Callable[..., Training]

ENDLESS = ("--steps", "10_000_000", "--min-buffer-size", "100", "--tag", "t")
SMALL = ("--", "learning_starts=100", "train_freq=50", "gradient_steps=5", "every_steps=10_000_000")


def runs(group: Training) -> list[Path]:
    return sorted(path for path in group.out.glob("runs/share_t/launch_001/*") if path.is_dir())


def last_line(run: Path) -> dict[str, Any]:
    lines = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []
    return json.loads(lines[-1]) if lines else {}


def sharing(group: Training) -> bool:
    return len(runs(group)) == 2 and all(last_line(run).get("share/foreign_fraction", 0) > 0 for run in runs(group))


def registries() -> list[Path]:
    return list(Path(os.environ["SHOAL_SHARED_MEMORY"]).glob("shoal-*/registry-*"))


def test_ctrl_c_saves_every_run_and_leaves_nothing(train: Start) -> None:
    group = train("share", "sb3_dqn_cartpole", "-n", "2", *ENDLESS, *SMALL)
    group.wait_for(lambda: sharing(group), "rows of the other run")
    assert len(registries()) == 1
    group.press_ctrl_c()
    assert group.end(60) == 0, group.output
    for run in runs(group):
        summary = json.loads((run / "summary.json").read_text())
        assert summary["status"] == "interrupted" and summary["env_steps"] > 100
        assert (run / "model.zip").exists(), (run / "log.txt").read_text()
    assert "Traceback" not in group.output and "stopped" in group.output
    assert group.survivors() == [] and registries() == []


def test_an_impatient_user_leaves_nothing_behind_either(train: Start) -> None:
    group = train("share", "sb3_dqn_cartpole", "-n", "2", *ENDLESS, *SMALL)
    group.wait_for(lambda: len(runs(group)) == 2 and all(last_line(run) for run in runs(group)), "steps")
    for _ in range(3):
        group.press_ctrl_c()
        time.sleep(0.2)
    assert group.end(30) == 0, group.output
    assert "Traceback" not in group.output
    assert group.survivors() == [] and registries() == []


def test_runs_notice_that_the_launcher_was_killed(train: Start) -> None:
    group = train("share", "sb3_dqn_cartpole", "-n", "2", *ENDLESS, *SMALL)
    group.wait_for(lambda: sharing(group), "rows of the other run")
    os.kill(group.process.pid, signal.SIGKILL)
    group.process.wait()
    assert group.survivors(60) == []
    for run in runs(group):
        assert json.loads((run / "summary.json").read_text())["status"] == "interrupted"
        assert (run / "model.zip").exists()
    assert registries() == []


def test_a_run_that_fails_is_shown_and_the_others_go_on(train: Start, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(
        "framework: sb3\nalgo: DQN\nenv: {id: CartPole-v1, kwargs: {no_such_argument: 1}}\ntotal_timesteps: 500\n"
    )
    group = train("share", "sb3_dqn_cartpole", "bad.yaml", "--steps", "1000", "--tag", "t", "--", "every_steps=1000")
    assert group.end(120) == 1
    good, bad = (
        json.loads((group.out / "runs/share_t/launch_001" / name / "summary.json").read_text())
        for name in ("dqn_cartpole_0", "bad_1")
    )
    assert good["status"] == "finished" and bad["status"] == "failed" and "no_such_argument" in bad["error"]
    assert "bad_1 failed (exit code 1)" in group.output and "TypeError" in group.output
    assert group.survivors() == [] and registries() == []
