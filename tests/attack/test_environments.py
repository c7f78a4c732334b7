"""Environments that do what they should not, in whole runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.conftest import Training

pytestmark = pytest.mark.attack
Start = Callable[..., Training]


def test_an_evaluation_that_does_not_end_keeps_neither_the_run_nor_its_last_evaluation(
    train: Start, tmp_path: Path
) -> None:
    fast, ending = tmp_path / "fast", tmp_path / "ending"
    small = ("env.lanes=2", "batch_size=16", "hidden=[16]", "capacity=4000", "min_size=100")
    judge = ("evaluation.every_steps=200", "evaluation.episodes=2")
    files = (f"env.kwargs.slow_until={fast}", f"env.kwargs.until={ending}")
    training = train("train", "tests.fakes:TestEndless-v0", *small, *judge, *files, "--steps", "3000")
    training.wait_for(lambda: "evaluator" in training.pids(), "an evaluation under way")
    fast.touch()
    training.wait_for(lambda: "0 of 2 episodes had ended when training did" in training.output, "the end of training")
    ending.touch()  # only the evaluation that begins now can end
    assert training.end(90) == 0, training.output
    summary = training.read("summary.json")
    assert summary["status"] == "finished" and summary["eval_return_mean"] >= 3
    rows = [json.loads(line) for line in (training.run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "eval/mean_reward" in row] == [summary["env_steps"]]
    assert f"{summary['env_steps']:,} steps | evaluation: return" in training.output
    assert "Traceback" not in training.output and "while ending" not in training.output  # its close raises, too
    assert training.survivors() == []
