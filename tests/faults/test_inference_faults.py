"""Actors that hold no network: training stops cleanly, and goes on when the server dies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.conftest import Training

from shoal.replay import Ledger

pytestmark = pytest.mark.faults
SERVED = ("train", "CartPole-v1", "--algo", "impala", "actor.inference=served")
Start = Callable[..., Training]


def steps(training: Training) -> int:
    replay = Path(training.read("replay.json").get("path", "missing"))
    shards = sorted(replay.glob("shard_???"))
    return Ledger(replay, shards).env_steps if len(shards) == 2 and (replay / "ledger.bin").exists() else 0


def test_a_served_run_trains_and_leaves_nothing_running(train: Start) -> None:
    training = train(*SERVED, "stop.steps=30000", "evaluation.every_steps=100000", "evaluation.episodes=2")
    assert training.end() == 0, training.output
    summary = training.read("summary.json")
    assert summary["status"] == "finished" and summary["env_steps"] >= 30_000 and summary["restarts"] == 0
    assert summary["updates"] > 10 and summary["eval_return_mean"] > 0
    assert summary["staleness_mean"] < summary["updates"] / 2  # rows carry the version the server acted with
    rows = [json.loads(line) for line in (training.run / "metrics.jsonl").read_text().splitlines()]
    batches = [row["time/inference_batch"] for row in rows if row.get("time/inference_batch") is not None]
    assert batches and batches[-1] >= 8
    assert "inference" in training.pids() and training.survivors() == []


def test_the_server_and_an_actor_may_die(train: Start) -> None:
    training = train(*SERVED, "algorithm.lstm=16", "--seconds", "300")
    training.wait_for(lambda: steps(training) > 1500, "steps")
    for role in ("inference", "actor 0", "inference"):
        training.kill_role(role)
        before = steps(training)
        training.wait_for(lambda before=before: steps(training) > before + 2000, f"steps after {role} died")
    training.press_ctrl_c()
    assert training.end(60) == 0, training.output
    summary = training.read("summary.json")
    assert summary["restarts"] == 3 and summary["status"] == "interrupted"
    assert list((training.run / "checkpoints").glob("step_*"))
    assert "inference died" in training.output and "Traceback" not in training.output
    assert training.survivors() == []
