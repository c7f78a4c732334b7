"""The inline runtime: reproducible, resumable, honest about how it ended."""

from __future__ import annotations

import json
import math
import shutil
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fakes import corridor, reach

from shoal.config.load import settings_for
from shoal.errors import CheckpointError, EnvError
from shoal.files import read_json
from shoal.loops import evaluator
from shoal.loops.plan import make_plan
from shoal.loops.settings import RunSettings
from shoal.metrics_file import read_metrics
from shoal.replay import ShardReader
from shoal.runtime.execution import execute
from shoal.runtime.run_folder import RunFolder, Summary


def run(tmp_path: Path, settings: RunSettings, folder: RunFolder | None = None) -> tuple[RunFolder, Summary]:
    resume = folder is not None
    folder = folder or RunFolder.create(tmp_path, "Corridor", settings.algo, datetime.now())
    return folder, execute(make_plan(settings), folder, resume=resume, quiet=True)


def timeless(folder: RunFolder) -> list[dict[str, Any]]:
    rows = read_metrics(folder.metrics_jsonl)
    return [{k: v for k, v in row.items() if k != "wall" and not k.startswith("time/")} for row in rows]


@pytest.mark.parametrize("algo", ["apex-dqn", "apex-qr-dqn"])
def test_one_seed_one_result(tmp_path: Path, algo: str) -> None:
    short = {"stop": {"steps": 1000}, "evaluation": {"every_steps": 200}}
    first, _ = run(tmp_path, corridor(algo=algo, **short))
    second, _ = run(tmp_path, corridor(algo=algo, **short))
    other, _ = run(tmp_path, corridor(algo=algo, seed=2, **short))
    assert len(timeless(first)) >= 5
    assert timeless(first) == timeless(second)
    assert timeless(first) != timeless(other)


@pytest.mark.parametrize("rules", [["k=1"], ["k=actors"], ["on_full=newest"]], ids=str)
def test_gradients_come_in_the_same_order(tmp_path: Path, rules: list[str]) -> None:
    """Also with an environment that fails: what is left of its rollout is not pushed."""
    short = [
        *rules,
        "runtime=inline",
        "stop.steps=1000",
        "hidden=[8]",
        "env.kwargs={fail_at: 90}",
        "env_error_limit=99",
    ]
    settings = settings_for("tests.fakes:TestCorridor-v0", "a3c", [*short, "evaluation.episodes=2"])
    first, second = (run(tmp_path, settings)[0] for _ in range(2))
    assert timeless(first) == timeless(second)
    last = timeless(first)[-1]
    assert last["gradients/applied"] > 20 and last["gradients/dropped"] == 0


def test_a_last_checkpoint_that_cannot_be_saved_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not a "Finished" with nothing to show for it."""

    def full(*_: object, **__: object) -> None:
        raise CheckpointError("Cannot write it: No space left on device.")

    monkeypatch.setattr("shoal.loops.learner.save_checkpoint", full)
    with pytest.raises(CheckpointError, match="No space left"):
        run(tmp_path, corridor(stop={"steps": 300}))
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir() and not path.is_symlink())
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "failed" and "No space left" in summary["error"]


def test_resume_goes_on_with_the_replay(tmp_path: Path) -> None:
    """An interrupted run keeps its replay; resumed, its counts go on."""
    keep = {"keep": True}
    folder, first = run(tmp_path, corridor(replay=keep, stop={"steps": 800}))
    _, second = run(tmp_path, corridor(replay=keep, stop={"steps": 1200}), folder)
    assert first.env_steps >= 800 and second.env_steps >= 1200
    assert second.env_steps < 1200 + 200  # nothing was collected twice
    assert second.updates > first.updates and second.episodes > first.episodes
    walls = [row["wall"] for row in read_metrics(folder.metrics_jsonl)]
    assert walls == sorted(walls)


def test_resume_without_the_replay_goes_on_with_the_weights(tmp_path: Path) -> None:
    folder, first = run(tmp_path, corridor(stop={"steps": 800}))
    _, second = run(tmp_path, corridor(stop={"steps": 1200}), folder)
    assert first.env_steps <= second.env_steps < first.env_steps + 600
    assert second.updates > first.updates


def test_a_resumed_run_does_not_repeat_its_random_numbers(tmp_path: Path) -> None:
    """Not even where the replay, and with it the count of restarts, is gone: three executions, three beginnings."""
    keep = {"keep": True, "min_size": 20}
    begun: list[tuple[bytes, bytes, int]] = []
    folder = None
    for steps in (60, 120, 180):
        folder, _ = run(tmp_path, reach(replay=keep, stop={"steps": steps}, actors=1), folder)
        replay = Path(read_json(folder.path / "replay.json")["path"])
        rows = ShardReader(replay / "shard_000").columns
        begun.append((rows["obs"][0].tobytes(), rows["action"][0].tobytes(), torch.initial_seed()))
        shutil.rmtree(replay)
    assert [len(set(one)) for one in zip(*begun, strict=True)] == [3, 3, 3], "starts, exploration, the learner's noise"
    assert folder is not None and read_json(folder.path / "resumed.json")["times"] == 2
    folder.write_json("resumed.json", ["damaged"])
    assert (folder.count_resumption(), folder.count_resumption()) == (1, 2)


def test_a_failed_run_says_so(tmp_path: Path) -> None:
    settings = corridor(env={"kwargs": {"fail_at": 50}}, actor={"on_env_error": "stop"})
    folder = RunFolder.create(tmp_path, "Corridor", settings.algo, datetime.now())
    with pytest.raises(EnvError):
        execute(make_plan(settings), folder, quiet=True)
    summary = json.loads(folder.summary_json.read_text())
    assert summary["status"] == "failed" and "crashed" in summary["error"]


def test_a_time_limit_holds_where_no_episode_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation is under way when time is up, and the last one has its own end."""
    monkeypatch.setattr("shoal.runtime.evaluation_schedule.GRACE_SECONDS", 0.5)
    settings = corridor(env={"id": "tests.fakes:TestEndless-v0"}, stop={"steps": None, "seconds": 2.0})
    began = time.monotonic()
    folder, summary = run(tmp_path, settings)
    assert time.monotonic() - began < 60 and summary.status == "finished" and summary.updates > 0
    assert math.isnan(summary.eval_return_mean)
    assert list(folder.checkpoints.glob("step_*"))  # its close raises, and learning is saved all the same


def test_an_evaluation_is_written_at_the_steps_of_its_weights(tmp_path: Path) -> None:
    cut = {"max_episode_steps": 25, "every_steps": 10_000}
    settings = corridor(env={"id": "tests.fakes:TestEndless-v0"}, stop={"steps": 400}, evaluation=cut)
    folder, summary = run(tmp_path, settings)
    evaluated = [row for row in read_metrics(folder.metrics_jsonl) if "eval/mean_reward" in row]
    assert [row["step"] for row in evaluated] == [summary.env_steps] and summary.eval_return_mean == 25.0


def test_the_first_evaluation_comes_soon_and_intervals_grow(tmp_path: Path) -> None:
    """Learning begins at 200 steps; the first is due a tenth of 400 steps later. Up to 8 steps are taken at once."""
    folder, summary = run(tmp_path, corridor(stop={"steps": 1500}))
    steps = [row["step"] for row in read_metrics(folder.metrics_jsonl) if "eval/mean_reward" in row]
    assert 240 <= steps[0] <= 280 and steps[-1] == summary.env_steps
    gaps = [after - before for before, after in pairwise(steps[:5])]
    assert all(0 <= gap - due < 8 for gap, due in zip(gaps, (80, 160, 320, 400), strict=True)), gaps


def test_an_execution_without_evaluations_keeps_the_earlier_result(tmp_path: Path) -> None:
    settings = corridor(stop={"steps": 400}, replay={"keep": True})
    folder, _ = run(tmp_path, settings)
    row = {"step": 400, "wall": 1.0, "eval/mean_reward": 0.5, "eval/std_reward": 0.0}
    folder.metrics_jsonl.write_text(json.dumps(row) + "\n")
    _, summary = run(tmp_path, settings, folder)
    assert (summary.eval_return_mean, summary.eval_return_std) == (0.5, 0.0)


@pytest.mark.slow
def test_evaluating_the_final_weights_does_not_count_as_slow_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = evaluator.play
    monkeypatch.setattr(evaluator, "play", lambda *given: (time.sleep(4.0), play(*given))[1])
    _, summary = run(tmp_path, corridor(stop={"steps": 400}, evaluation={"every_steps": 10_000}))
    assert summary.env_steps / summary.steps_per_second < 4.0, "seconds of training"


def test_an_unusable_shard_is_set_aside(tmp_path: Path) -> None:
    folder, _ = run(tmp_path, corridor(replay={"keep": True}, stop={"steps": 800}))
    replay = Path(json.loads(folder.replay_json.read_text())["path"])
    (replay / "shard_000" / "reward.bin").write_bytes(b"cut short")
    _, summary = run(tmp_path, corridor(replay={"keep": True}, stop={"steps": 1600}), folder)
    assert summary.status == "finished"
    assert list(replay.glob("shard_000.unusable-*"))


@pytest.mark.parametrize("damaged", ["shard_000/obs.bin", "ledger.bin", "weights.bin"])
def test_whatever_is_damaged_the_run_goes_on_and_its_counts_never_go_back(tmp_path: Path, damaged: str) -> None:
    folder, first = run(tmp_path, corridor(replay={"keep": True}, stop={"steps": 800}))
    replay = Path(json.loads(folder.replay_json.read_text())["path"])
    (replay / damaged).write_bytes(b"cut short")
    _, second = run(tmp_path, corridor(replay={"keep": True}, stop={"steps": 1300}), folder)
    assert second.status == "finished" and second.updates > first.updates
    assert 1300 <= second.env_steps < 1500
    counts = [row["step"] for row in read_metrics(folder.metrics_jsonl) if "train/updates" in row]
    assert counts == sorted(counts)


def test_a_failed_run_keeps_what_it_learned(tmp_path: Path) -> None:
    settings = corridor(env={"kwargs": {"fail_at": 150}}, actor={"on_env_error": "stop"})
    folder = RunFolder.create(tmp_path, "Corridor", settings.algo, datetime.now())
    with pytest.raises(EnvError):
        execute(make_plan(settings), folder, quiet=True)
    assert list(folder.checkpoints.glob("step_*"))
