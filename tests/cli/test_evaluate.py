"""`shoal eval`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Shoal

import shoal


def test_table(run_shoal: Shoal, finished: Path) -> None:
    result = run_shoal("eval", finished, "--episodes", 4, "--seed", 5)
    assert result.code == 0 and result.err == ""
    evaluation = shoal.load(finished).evaluate(4, seed=5)
    lines = {line.split()[0]: [float(word) for word in line.split()[1:]] for line in result.out.splitlines()[3:]}
    assert lines["return"] == pytest.approx(
        [evaluation.mean, evaluation.std, min(evaluation.returns), max(evaluation.returns)], abs=0.01
    )
    assert lines["length"][2:] == [min(evaluation.lengths), max(evaluation.lengths)]
    assert "4 greedy episodes with best.safetensors" in result.out


def test_checkpoints(run_shoal: Shoal, finished: Path, tmp_path: Path) -> None:
    assert "with step_" in run_shoal("eval", finished, "-n", 1, "--checkpoint", "last").out
    assert "with best" in run_shoal("eval", finished, "-n", 1, "--checkpoint", "best").out
    result = run_shoal("eval", finished, "--checkpoint", "first")
    assert result.code == 2 and "it must be best or last" in result.err
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    (copy / "checkpoints" / "best.safetensors").unlink()
    assert "with step_" in run_shoal("eval", copy, "-n", 1).out
    result = run_shoal("eval", copy, "--checkpoint", "best")
    assert result.code == 1 and "No best checkpoint" in result.err


def test_what_is_no_run(run_shoal: Shoal) -> None:
    result = run_shoal("eval", "nowhere")
    assert result.code == 2 and "is not a run folder" in result.err


def test_video(run_shoal: Shoal, finished: Path, tmp_path: Path) -> None:
    pytest.importorskip("pygame")
    pytest.importorskip("moviepy")
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    result = run_shoal("eval", copy, "-n", 1, "--video", "--seed", 2)
    assert result.code == 0
    file = Path(result.out.rsplit(": ", 1)[1].strip())
    assert file.parent == Path("copy/videos") and file.stat().st_size > 1000
    assert run_shoal("eval", copy, "-n", 1, "--video", "--seed", 3).code == 0  # beside the first
    assert len(list((copy / "videos").glob("*.mp4"))) == 2


def test_video_that_cannot_be_written(run_shoal: Shoal, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run_shoal("eval", finished, "-n", 1, "--video")
    assert result.code == 2 and "pip install moviepy" in result.err and result.out == ""
