"""Ray's own processes: who can reach them, and what a run does when one of them dies."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.faults.conftest import Training

from shoal.replay import Ledger

pytestmark = pytest.mark.attack
SCENARIO = "cartpole_apex_dqn"
SMALL = ("--actors", "1", "replay.min_size=200", "learner.checkpoint_seconds=100000", "evaluation.every_steps=1000000")
Start = Callable[..., Training]


def updates(training: Training) -> int:
    replay = Path(training.read("replay.json").get("path", "missing"))
    if not (replay / "shard_000" / "header.bin").exists() or not (replay / "ledger.bin").exists():
        return 0
    return Ledger(replay, [replay / "shard_000"]).updates


INTRUDER = """
import sys
from ray._raylet import GcsClient
try:
    GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None)
    print("let in")
except Exception as error:
    print(type(error).__name__)
"""


def intrude(training: Training, **variables: str) -> str:
    """What a client of the run's Ray gets to hear."""
    command = [sys.executable, "-c", INTRUDER, training.ray_option("gcs-address")]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True).stdout.strip()


def assert_a_clear_end(training: Training, died: str) -> None:
    assert training.end(90) == 1, training.output
    summary = training.read("summary.json")
    assert summary["status"] == "failed" and summary["restarts"] == 0 and summary["updates"] > 0
    assert died in summary["error"] and "shoal resume" in summary["error"]
    assert f"Ray's {died} has died" in training.output and "started again" not in training.output
    assert list((training.run / "checkpoints").glob("step_*")), "the learner did not save"
    assert training.survivors(40) == []


def test_the_raylets_death_ends_the_run_and_it_can_be_resumed(train: Start) -> None:
    training = train("train", SCENARIO, *SMALL)
    training.wait_for(lambda: updates(training) > 20, "updates")
    folder = training.ray_folder
    training.service("raylet").kill()
    assert_a_clear_end(training, "raylet")
    made = training.read("summary.json")["env_steps"]
    assert not folder.exists()

    again = train("resume", "runs/latest", "--steps", str(made + 300), "--runtime", "inline")
    assert again.end() == 0, again.output
    assert again.read("summary.json")["env_steps"] >= made + 300
    assert f"resuming with {made:,} collected steps" in again.output


def test_only_this_user_of_this_machine_reaches_ray_and_gcs_servers_death_ends_the_run(
    train: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # meant for another cluster
    long = tmp_path / ("long" * 30)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.setenv("HOME", str(tmp_path))  # Ray's own token would be written there, for everybody to read
    training = train("train", SCENARIO, *SMALL)
    training.wait_for(lambda: updates(training) > 20, "updates")

    driver = psutil.Process(training.process.pid)
    listening = {
        (process.name(), connection.laddr.ip)
        for process in (driver, *driver.children(recursive=True))
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert {name for name, _ in listening} >= {"gcs_server", "raylet"}
    assert {address for _, address in listening} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}, listening
    folder = training.ray_folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "token").stat().st_mode) == 0o600
    assert not (tmp_path / ".ray").exists()
    assert intrude(training, RAY_AUTH_MODE="disabled") == "AuthenticationError"
    assert intrude(training, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="0" * 64) == "AuthenticationError"
    assert intrude(training, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=str(folder / "token")) == "let in"

    training.service("gcs_server").kill()
    assert_a_clear_end(training, "gcs_server")
    assert not folder.exists()
