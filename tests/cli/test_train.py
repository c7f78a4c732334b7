"""`shoal train` and `shoal resume`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.cli.conftest import SMALL, Shoal

import shoal
from shoal.config.load import load_config


def test_train_then_resume(run_shoal: Shoal, tmp_path: Path) -> None:
    result = run_shoal(
        "train", "CartPole-v1", *SMALL, "--steps", "3e2", "--seed", 7, "--actors", 1, f"replay.path={tmp_path}/replay"
    )
    assert result.code == 0 and result.err == ""
    folder = re.search(r"run +(runs/CartPole-v1_apex-dqn_\S+)", result.out)
    assert folder and Path(folder[1]).is_dir()
    for text in ("Finished: apex-dqn on CartPole-v1", "evaluation ", "steps ", "time ", "updates "):
        assert text in result.out
    for command in ("shoal eval", "tensorboard --logdir", "shoal resume"):
        assert f"  {command} {folder[1]}" in result.out
    assert "--steps 600" in result.out
    settings = load_config(Path(folder[1]))
    assert (settings.seed, settings.actors, settings.stop.steps, settings.runtime) == (7, 1, 300, "inline")

    result = run_shoal("resume", "runs/latest")
    assert result.code == 2 and "raise it, for instance --steps 600" in result.err
    result = run_shoal("resume", "runs/latest", "--steps", "400", "actors=4")
    assert result.code == 2 and "actors cannot change from 1 to 4" in result.err
    result = run_shoal("resume", "runs/latest", "--steps", "400", "--quiet")
    assert result == (0, f"{folder[1]}\n", "")
    assert load_config(Path(folder[1])).stop.steps == 400


def test_quiet_and_out(run_shoal: Shoal, tmp_path: Path) -> None:
    result = run_shoal("train", "CartPole-v1", *SMALL, "--steps", 50, "--out", tmp_path / "elsewhere", "-q")
    assert result.code == 0 and result.err == ""
    assert Path(result.out.strip()).parent == Path("elsewhere")


def test_solved(run_shoal: Shoal) -> None:
    result = run_shoal("train", "cartpole_apex_dqn", *SMALL, "--stop-return", "-5")
    assert result.code == 0
    assert "Solved: apex-dqn on CartPole-v1" in result.out and "(goal -5)" in result.out
    assert "shoal resume" not in result.out


def test_a_goal_of_another_environment_is_left_out_and_said(run_shoal: Shoal) -> None:
    result = run_shoal("train", "cartpole_apex_dqn", "env.id=Acrobot-v1", *SMALL, "--steps", 50)
    assert "stop.mean_return = 475 of cartpole_apex_dqn is for its own environment and was left out" in result.out
    assert result.code == 0 and "Finished: apex-dqn on Acrobot-v1" in result.out


@pytest.mark.parametrize("given", [("env=CartPole-v1",), ("env.id=CartPole-v1",), ("steps=50", "env=CartPole-v1")])
def test_the_environment_may_be_a_setting(run_shoal: Shoal, given: tuple[str, ...]) -> None:
    assert run_shoal("train", *given, *SMALL, "stop.steps=50", "-q").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Train on what? Name an environment or a scenario"),
        (("seed=3",), "Train on what?"),
        (("CartPol-v1",), "Unknown environment 'CartPol-v1'. Did you mean 'CartPole-v1'?"),
        (("cartpole_apex_dqm",), "Did you mean 'cartpole_apex_dqn'?"),
        (("none.yaml",), "Unknown scenario file 'none.yaml'"),
        (("bad.yaml",), "bad.yaml, line 2, column 1, is not valid YAML"),
        (("CartPole-v1", "--algo", "apex"), "Unknown algorithm 'apex'. Did you mean 'apex-dqn'?"),
        (("CartPole-v1", "--steps", "many"), "stop.steps = 'many' cannot be used: it must be a whole number"),
        (("CartPole-v1", "--actors", "0"), "actors = 0 cannot be used: it must be a whole number from 1 to"),
        (("CartPole-v1", "--runtime", "thread"), "runtime = 'thread' cannot be used: it must be one of ray, inline."),
        (("CartPole-v1", "--device", "tpu9"), "learner.device = 'tpu9' cannot be used"),
        pytest.param(
            ("CartPole-v1", "--device", "mps"),
            "learner.device = 'mps' cannot be used: ",
            marks=pytest.mark.skipif(torch.backends.mps.is_available(), reason="it can be used here"),
        ),
        (("CartPole-v1", "batch_size"), "'batch_size' is no setting: write KEY=VALUE"),
        (("CartPole-v1", "batchsize=3"), "Did you mean 'learner.batch_size'?"),
        (("CartPole-v1", "capacity=500", "min_size=1000"), "replay.min_size = 1000 is more than replay.capacity = 500"),
        (("Pendulum-v1", "--algo=apex-dqn"), "needs discrete actions"),
        (("no_such_package:Env-v0",), "cannot import 'no_such_package'"),
    ],
)
def test_what_is_asked_wrongly(run_shoal: Shoal, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "bad.yaml").write_text("env: {\n")
    result = run_shoal("train", *arguments)
    assert result.code == 2 and result.out == ""
    assert result.err.startswith("Error: ") and message in result.err
    assert "Traceback" not in result.err and not (tmp_path / "runs").exists()


def test_a_run_that_fails(run_shoal: Shoal) -> None:
    broken = "tests.cli.broken_env:Broken-v0"
    result = run_shoal("train", broken, *SMALL, "--steps", 5_000, "on_env_error=stop", "replay.path=replay")
    assert result.code == 1
    assert "the pole fell off" in result.err and "Traceback" not in result.err
    failed = re.search(r"The run failed; its folder is (\S+)\.", result.err)
    assert failed and (Path(failed[1]) / "summary.json").is_file()
    summary = shoal.load(failed[1]).summary
    assert summary is not None and summary.status == "failed" and "the pole fell off" in (summary.error or "")


def test_an_error_that_comes_again_is_printed_once_with_its_place(run_shoal: Shoal) -> None:
    broken = "tests.cli.broken_env:Broken-v0"
    result = run_shoal("train", broken, *SMALL, "--steps", 5_000, "env.lanes=1", "actors=2", "replay.path=replay")
    place = re.compile(r"the pole fell off \(/.*/tests/cli/broken_env\.py:\d+\)")
    lines = [line for line in result.out.splitlines() if place.search(line) and line.startswith("actor")]
    assert result.code == 1 and place.search(result.err) and "error 10 of 10 within an hour" in result.err
    assert len(lines) == 3 and lines[1].endswith("again (9 more)") and lines[2].endswith("again (17 more)")


def test_resume_of_what_is_no_run(run_shoal: Shoal) -> None:
    result = run_shoal("resume", "nowhere")
    assert result.code == 2 and "nowhere is not a run folder: there is no such folder." in result.err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_then_resumed(run_shoal: Shoal, tmp_path: Path, number: signal.Signals) -> None:
    asked = ["train", "CartPole-v1", *SMALL, "--steps", "10_000_000", f"replay.path={tmp_path}/replay"]
    environment = os.environ | {"PYTHONPATH": str(Path(shoal.__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal", *asked],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    metrics, deadline = tmp_path / "runs" / "latest" / "metrics.jsonl", time.monotonic() + 120
    while not (metrics.exists() and metrics.stat().st_size) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "Interrupted: apex-dqn" in output and "shoal resume runs/CartPole-v1_apex-dqn" in output
    before = shoal.load("runs/latest").summary
    assert before is not None and before.status == "interrupted"
    result = run_shoal("resume", "runs/latest", "--steps", before.env_steps + 100)
    assert result.code == 0 and f"resuming with {before.env_steps:,} collected steps" in result.out
    after = shoal.load("runs/latest").summary
    assert after is not None and after.status == "finished" and after.updates >= before.updates


def test_a_run_without_room_says_so_in_its_summary(run_shoal: Shoal, tmp_path: Path) -> None:
    place = tmp_path / "large"
    result = run_shoal("train", "CartPole-v1", "capacity=90_000_000_000", f"replay.path={place}", "--runtime=inline")
    summary = json.loads((tmp_path / "runs" / "latest" / "summary.json").read_text())
    assert result.code == 1 and "Lower replay.capacity" in result.err
    assert summary["status"] == "failed" and "Lower replay.capacity" in summary["error"] and not place.exists()


def test_damaged_checkpoints_are_not_a_reason_to_start_over(run_shoal: Shoal, finished: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(finished, tmp_path / "copy")
    for path in (copy / "checkpoints").glob("step_*"):
        path.write_bytes(b"")
    result = run_shoal("resume", copy, "--steps", 900)
    assert result.code == 1 and "To start over, train" in result.err
    assert json.loads((copy / "summary.json").read_text())["status"] == "finished"
