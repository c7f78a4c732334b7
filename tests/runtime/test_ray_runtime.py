"""What a run says of a role that failed, how roles share GPUs, and evaluations beside training."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest
from ray.exceptions import RayTaskError
from tests.fakes import corridor

from shoal.errors import EnvError
from shoal.loops.plan import make_plan
from shoal.metrics_file import read_metrics
from shoal.runtime.execution import execute
from shoal.runtime.placement import gpu_shares
from shoal.runtime.ray_hosts import role_error
from shoal.runtime.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
TRACEBACK = "\x1b[36mray::Host.run()\x1b[39m (pid=7)\n  File learner.py, line 3\nValueError: \x1b[31mbad\x1b[0m"


def test_an_unforeseen_error_is_one_sentence_and_its_traceback_is_in_a_file(tmp_path: Path) -> None:
    failure = RayTaskError("run", TRACEBACK, ValueError("\x1b[31mbad\x1b[0m"))
    said = str(role_error("learner", failure, RunFolder(tmp_path)))
    assert said == f"learner failed: ValueError: bad (the traceback is in {tmp_path / 'error.txt'})"
    kept = (tmp_path / "error.txt").read_text()
    assert "learner.py, line 3" in kept and "\x1b" not in kept


def test_an_error_of_ours_is_kept_as_it_is(tmp_path: Path) -> None:
    error = role_error("actor 1", RayTaskError("run", TRACEBACK, EnvError("no such pole")), RunFolder(tmp_path))
    assert type(error) is EnvError and str(error) == "actor 1: no such pole"
    assert not (tmp_path / "error.txt").exists()


@pytest.mark.parametrize(
    ("trains", "gpus", "used", "shares"),
    [
        ([True], 1, 1, [1.0]),
        ([True, True], 1, 1, [0.5, 0.5]),
        ([True, False], 1, 1, [0.9, 0.1]),
        ([True, True, False], 1, 1, [0.4, 0.4, 0.1]),
        ([True, True, False], 2, 2, [0.9, 0.9, 0.1]),  # those that train keep one each
        ([True, False], 8, 1, [0.9, 0.1]),
        ([False], 4, 1, [0.1]),
        ([True, True, False], 0, 0, []),
        ([], 1, 0, []),
    ],
)
def test_roles_share_gpus(trains: list[bool], gpus: int, used: int, shares: list[float]) -> None:
    assert gpu_shares(trains, gpus) == (used, pytest.approx(shares))


@pytest.mark.slow
def test_a_baseline_comes_early_and_the_final_weights_come_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT / "src"), str(ROOT))))  # for Ray's workers
    folder = RunFolder.create(tmp_path, "Corridor", "apex-dqn", datetime.now())
    ends = {"steps": None, "seconds": 15.0}
    settings = corridor(runtime="ray", report_seconds=1, stop=ends, evaluation={"every_steps": 100_000})
    summary = execute(make_plan(settings), folder)
    evaluated = [row for row in read_metrics(folder.metrics_jsonl) if "eval/mean_reward" in row]
    steps = [row["step"] for row in evaluated]
    assert summary.status == "finished" and steps[0] < 100_000 and steps[-1] == summary.env_steps
    shown = capsys.readouterr().out
    assert f"{steps[0]:,} steps | evaluation: return" in shown
    assert f"eval {evaluated[-1]['eval/mean_reward']:.4g}" in shown  # how much is learned depends on the machine
    assert "| ETA 0:00:0" in shown
