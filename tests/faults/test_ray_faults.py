"""Real processes, killed for real: training goes on, nothing is lost, nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.conftest import ROOT, Training

from shoal.replay import Ledger, ShardReader

pytestmark = pytest.mark.faults
SCENARIO = str(ROOT / "src" / "shoal" / "scenarios" / "cartpole_apex_dqn.yaml")
ALONE = ("--actors", "1", "evaluation.every_steps=1000000")
"""An actor and a learner only: each process of a run takes seconds to start."""
Start = Callable[..., Training]


def ledger_of(training: Training) -> Ledger | None:
    replay = Path(training.read("replay.json").get("path", "missing"))
    shards = sorted(replay.glob("shard_???"))
    return Ledger(replay, shards) if shards and (replay / "ledger.bin").exists() else None


def steps(training: Training) -> int:
    ledger = ledger_of(training)
    return ledger.env_steps if ledger else 0


def test_every_role_and_then_the_driver_may_die_and_training_goes_on_to_solve(train: Start) -> None:
    training = train("train", SCENARIO, "--stop-return", "1000000")
    training.wait_for(lambda: steps(training) > 1500, "steps")
    for role in ("actor 0", "learner", "actor 1", "evaluator"):
        training.kill_role(role)
        before = steps(training)
        training.wait_for(lambda before=before: steps(training) > before + 200, f"steps after {role} died")
    assert "restart 4" in training.text and "restart 5" not in training.text
    ray_folder = training.ray_folder
    os.kill(training.process.pid, signal.SIGKILL)
    training.process.wait()
    assert training.survivors(40) == []
    deadline = time.monotonic() + 20
    while ray_folder.exists() and time.monotonic() < deadline:  # the watchdog removes it last
        time.sleep(0.2)
    assert not ray_folder.exists()
    collected = steps(training)
    heads = [ShardReader(path).head for path in sorted(Path(training.read("replay.json")["path"]).glob("shard_???"))]
    again = train("resume", "runs/latest", "--stop-return", "475")
    assert again.end() == 0, again.output
    summary = again.read("summary.json")
    assert summary["status"] == "solved" and summary["env_steps"] > collected
    assert f"resuming with {collected:,} collected steps" in again.output and sum(heads) > 0
    assert again.survivors() == []


@pytest.mark.parametrize(("lag", "inference"), [(0, "served"), (1, "local")])
def test_a_barrier_waits_for_restarts_and_for_nothing_else(train: Start, lag: int, inference: str) -> None:
    """Whoever dies, and wherever in a rollout: both actors and the learner meet again."""
    rollout = (
        f"replay=[{{type: rollout, lag: {lag}}}]",
        f"actor.inference={inference}",
        "evaluation.every_steps=1000000",
    )
    training = train("train", "CartPole-v1", "--algo", "ppo", "--steps", "10000000", *rollout)
    training.wait_for(lambda: steps(training) > 3000, "steps")
    served = ["inference"] if inference == "served" else []
    for role in ("actor 0", "learner", *served, "actor 1"):
        training.kill_role(role)
        before = steps(training)
        training.wait_for(lambda before=before: steps(training) > before + 4000, f"rollouts after {role} died")
    os.kill(training.process.pid, signal.SIGKILL)
    training.process.wait()
    assert training.survivors(40) == []
    collected = steps(training)
    again = train("resume", "runs/latest", "--steps", str(collected + 5000))
    assert again.end() == 0, again.output
    assert again.read("summary.json")["env_steps"] >= collected + 5000


def test_a_role_that_cannot_be_built_ends_the_run_and_says_why(train: Start) -> None:
    training = train("train", "tests.cli.broken_env:Unbuildable-v0", "--steps", "1000", "--actors", "1")
    assert training.end(90) == 1, training.output
    assert "no such pole on this node (" in training.output and "Traceback" not in training.output
    assert f"({ROOT / 'tests' / 'cli' / 'broken_env.py'}:" in training.output
    summary = training.read("summary.json")
    assert summary["status"] == "failed" and summary["restarts"] == 0
    assert "no such pole" in summary["error"]
    assert training.survivors() == []


def test_ctrl_c_before_the_first_step_stops_cleanly(train: Start) -> None:
    training = train("train", SCENARIO)
    training.wait_for(lambda: ledger_of(training), "a prepared run")
    training.press_ctrl_c()
    assert training.end(60) == 0, training.output
    assert training.read("summary.json")["status"] == "interrupted"
    assert training.survivors() == []


def test_an_impatient_user_leaves_nothing_behind_either(train: Start) -> None:
    training = train("train", SCENARIO, *ALONE)
    training.wait_for(lambda: steps(training) > 1200, "steps")
    for _ in range(3):
        training.press_ctrl_c()
        time.sleep(0.3)
    assert training.end(60) == 0, training.output
    assert training.read("summary.json")["status"] == "interrupted"
    assert "Traceback" not in training.output
    assert training.survivors() == []


def test_a_run_in_use_is_refused_and_sigterm_stops_it_cleanly(train: Start) -> None:
    training = train("train", SCENARIO, *ALONE)
    training.wait_for(lambda: ledger_of(training), "a prepared run")
    second = train("resume", "runs/latest")
    assert second.end(60) == 1
    assert f"in use by process {training.process.pid}" in second.output
    training.wait_for(lambda: steps(training) > 1500, "steps")
    training.process.send_signal(signal.SIGTERM)
    assert training.end(60) == 0, training.output
    summary = training.read("summary.json")
    assert summary["status"] == "interrupted" and summary["env_steps"] > 1500
    assert list((training.run / "checkpoints").glob("step_*"))
    assert training.survivors() == []


def test_an_environment_that_fails_in_a_worker_fails_the_run(train: Start) -> None:
    bad = ("env.kwargs={fail_at: 40}", "actor.on_env_error=stop", "replay.capacity=2000")
    training = train("train", "tests.fakes:TestCorridor-v0", "--actors", "1", *bad)
    assert training.end(90) == 1
    assert f"the simulator crashed ({ROOT / 'tests' / 'fakes.py'}:" in training.output
    assert "Traceback" not in training.output
    assert training.read("summary.json")["status"] == "failed"
    assert training.survivors() == []


# 127.0.0.2: Ray takes 127.0.0.1 for this machine's outer address, where a cluster on loopback does not listen.
CLUSTER = """
import ray
context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.2")
print(context.address_info["gcs_address"], flush=True)
input()
"""


def test_a_cluster_that_is_too_small_is_named_not_waited_for(train: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # both sides must agree on it before they start
    command = [sys.executable, "-c", CLUSTER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as cluster:
        assert cluster.stdout is not None
        training = train("train", SCENARIO, "--address", cluster.stdout.readline().strip())
        try:
            assert training.end(120) == 1, training.output
        finally:
            cluster.communicate("\n")
    assert "4 roles need 4 CPUs" in training.output and "which has 2 CPUs" in training.output
    assert training.read("summary.json")["status"] == "failed"
