"""Environments that do what they should not, in whole runs."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from tests.fakes import Corridor
from tests.faults.conftest import ROOT, Training

import shoal
from shoal.runtime import ray_runtime

pytestmark = pytest.mark.attack
Start = Callable[..., Training]


def test_an_evaluation_that_does_not_end_keeps_neither_the_run_nor_its_last_evaluation(
    train: Start, tmp_path: Path
) -> None:
    fast, ending = tmp_path / "fast", tmp_path / "ending"
    small = (
        "algo=apex-dqn",
        "env.lanes=2",
        "batch_size=16",
        "hidden=[16]",
        "capacity=4000",
        "min_size=100",
        "samples_per_insert=4",
    )
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


class Stuck(Corridor):
    """Its tenth step in an evaluation does not end for a minute; the file `stuck` says that it has begun."""

    def __init__(self, stuck: str) -> None:
        super().__init__()
        self._stuck = Path(stuck)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        frame = sys._getframe()
        while frame.f_back is not None and not frame.f_code.co_filename.endswith("loops/evaluator.py"):
            frame = frame.f_back
        if frame.f_back is not None and self._steps == 9:
            self._stuck.touch()
            time.sleep(60)
        return super().step(action)


if "TestStuck-v0" not in gymnasium.registry:
    gymnasium.register("TestStuck-v0", entry_point=Stuck, max_episode_steps=20)


def test_an_evaluation_that_blocks_does_not_keep_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT / "src"), str(ROOT))))  # for Ray's workers
    stuck = tmp_path / "stuck"

    def lose_patience() -> None:
        while not stuck.exists():
            time.sleep(0.1)
        monkeypatch.setattr(ray_runtime, "SILENCE_SECONDS", 1.0)

    threading.Thread(target=lose_patience, daemon=True).start()
    settings = {
        "algo": "apex-dqn",
        "env.kwargs": {"stuck": str(stuck)},
        "replay.capacity": 2000,
        "replay.min_size": 100,
        "evaluation.episodes": 20,
        "evaluation.lanes": 1,
    }
    run = shoal.train(f"{__name__}:TestStuck-v0", actors=1, steps=400, settings=settings)
    assert stuck.exists() and run.summary.status == "finished"
    said = capsys.readouterr()
    text = " ".join((said.out + said.err).split())
    assert "has not answered for 1 s: does its environment hang?" in text
    assert "the final weights are not evaluated: the evaluator does not answer" in text
