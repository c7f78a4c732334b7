"""`shoal clean`: what is freed, and what never is."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from tests.cli.conftest import Shoal

from shoal.replay import storage
from shoal.runtime.run_folder import RunFolder

RUNS = {
    "live": None,
    "killed": None,
    "failed": "failed",
    "interrupted": "interrupted",
    "solved": "solved",
    "kept": "finished",
}


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shared memory of our own, with a replay for every kind of run."""
    monkeypatch.setattr(storage, "SHARED_MEMORY", tmp_path / "shm")
    base = storage._base(tmp_path / "shm")
    for name, status in RUNS.items():
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        if status is not None:
            (run / "summary.json").write_text(json.dumps({"status": status}))
        (run / "config.yaml").write_text(f"replay: {{keep: {str(name == 'kept').lower()}}}")
        _replay(base / name, run)
    _replay(base / "gone", tmp_path / "runs" / "gone")
    return base


def _replay(path: Path, run: Path) -> None:
    path.mkdir(parents=True)
    (path / "rows.bin").write_bytes(bytes(8192))
    (path / "owner.json").write_text(json.dumps({"run": str(run), "pid": 1}))


def _left(base: Path) -> set[str]:
    return {path.name for path in base.iterdir()}


def test_only_the_dead_go(run_shoal: Shoal, memory: Path, tmp_path: Path) -> None:
    with RunFolder(tmp_path / "runs" / "live").lock():
        result = run_shoal("clean")
    assert result.code == 0 and result.err == ""
    assert _left(memory) == {"live", "killed", "failed", "interrupted", "kept", "gone"}
    for line in result.out.splitlines()[:7]:
        name = line.split()[3]
        expected = {"live": "live", "solved": "dead", "gone": "gone", "kept": "kept"}.get(Path(name).name, "resumable")
        assert line.split()[2] == expected
    assert "(its run's folder is gone or was moved)" in result.out
    assert "Freed 12.0 KiB" in result.out and "5 that can still be of use stay" in result.out


def test_all_leaves_the_live(run_shoal: Shoal, memory: Path, tmp_path: Path) -> None:
    with RunFolder(tmp_path / "runs" / "live").lock():
        assert run_shoal("clean", "--all", "--yes").code == 0
        assert _left(memory) == {"live"}
        assert run_shoal("clean", "--all", "--yes").code == 0
        assert _left(memory) == {"live"}


def test_dry_run_removes_nothing(run_shoal: Shoal, memory: Path) -> None:
    before = _left(memory)
    result = run_shoal("clean", "--dry-run")
    assert result.code == 0 and "Would free 12.0 KiB" in result.out and _left(memory) == before


@pytest.mark.parametrize(("answer", "gone"), [(True, True), (False, False)])
def test_a_terminal_is_asked(
    run_shoal: Shoal, memory: Path, monkeypatch: pytest.MonkeyPatch, answer: bool, gone: bool
) -> None:
    questions: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda text, default: questions.append(text) or answer)
    run_shoal("clean")
    assert len(questions) == 1 and "Also remove 6 replays" in questions[0]
    assert ("failed" not in _left(memory)) is gone is ("gone" not in _left(memory))
    assert "solved" not in _left(memory)


def test_a_run_that_starts_meanwhile_keeps_its_replay(run_shoal: Shoal, memory: Path, tmp_path: Path) -> None:
    from shoal.cli.clean import LeftReplay, _removed

    with RunFolder(tmp_path / "runs" / "solved").lock():
        pass
    child = os.fork()
    if child == 0:  # the lock must be another process's
        lock = RunFolder(tmp_path / "runs" / "solved").lock()
        (tmp_path / "locked").touch()
        while not (tmp_path / "done").exists():
            time.sleep(0.01)
        lock.release()
        os._exit(0)
    try:
        while not (tmp_path / "locked").exists():
            time.sleep(0.01)
        assert not _removed(LeftReplay(memory / "solved", tmp_path / "runs" / "solved", "dead", 0))
        assert "solved" in _left(memory)
    finally:
        (tmp_path / "done").touch()
        os.waitpid(child, 0)


def test_a_live_run_that_was_renamed_keeps_its_replay(run_shoal: Shoal, memory: Path, tmp_path: Path) -> None:
    with RunFolder(memory / "solved").lock():
        (tmp_path / "runs" / "solved").rename(tmp_path / "runs" / "renamed")
        assert run_shoal("clean", "--all", "--yes").code == 0
        assert _left(memory) == {"solved"}


def test_a_run_that_was_moved_can_still_be_resumed(run_shoal: Shoal, memory: Path, tmp_path: Path) -> None:
    for name in ("failed", "killed"):  # "killed" is of an earlier version: without a mark
        run = (tmp_path / "runs" / name).rename(tmp_path / "runs" / f"{name}-moved")
        mark = {"mark": "of the failed"} if name == "failed" else {}
        (run / "replay.json").write_text(json.dumps({"path": str(memory / name), **mark}))
        (memory / name / "owner.json").write_text(json.dumps({"run": str(run.with_name(name)), **mark}))
    out = run_shoal("clean", "--runs", tmp_path / "runs").out
    assert "failed-moved" in next(line for line in out.splitlines() if str(memory / "failed") in line)
    (line,) = (line for line in out.splitlines() if str(memory / "killed") in line)
    assert "gone or was moved" in line  # it cannot be told from a copy's
    assert {"failed", "killed"} <= _left(memory)


def test_nothing_is_written_where_a_replay_says_its_run_is(run_shoal: Shoal, memory: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "runs" / "solved" / "run.lock").symlink_to(tmp_path / "precious")
    before = sorted((tmp_path / "runs").rglob("*"))
    run_shoal("clean", "--all", "--yes")
    assert _left(memory) == set() and sorted((tmp_path / "runs").rglob("*")) == before
    assert (tmp_path / "precious").read_text() == "mine"


def test_unsigned_replays_have_time_to_be_signed(run_shoal: Shoal, memory: Path) -> None:
    for name, age in (("new", 0), ("old", 3600)):
        (memory / name).mkdir()
        os.utime(memory / name, (time.time() - age,) * 2)
    run_shoal("clean")
    assert "new" in _left(memory) and "old" not in _left(memory)


def test_replays_on_disk(run_shoal: Shoal, memory: Path, tmp_path: Path) -> None:
    disk, foreign = tmp_path / "disk", tmp_path / "precious"
    foreign.mkdir()
    _replay(disk / "solved", tmp_path / "runs" / "solved")
    (tmp_path / "runs" / "solved" / "replay.json").write_text(json.dumps({"path": str(disk / "solved")}))
    (tmp_path / "runs" / "failed" / "replay.json").write_text(json.dumps({"path": str(foreign)}))
    run_shoal("clean", "--runs", tmp_path / "runs", "--all", "--yes")
    assert not (disk / "solved").exists()
    assert foreign.is_dir()  # no run has signed it


def test_a_replay_that_a_copied_run_brought_along(run_shoal: Shoal, memory: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    original, copy = runs / "failed", runs / "copy"
    _replay(original / "replay_on_disk" / "failed", original)
    (original / "replay.json").write_text(json.dumps({"path": str(original / "replay_on_disk" / "failed")}))
    shutil.copytree(original, copy)
    brought = copy / "replay_on_disk" / "failed"
    run_shoal("clean", "--runs", runs)
    assert brought.is_dir()  # should the original go, the copy can be resumed with it

    _replay(copy / "replay_on_disk" / "copy", copy)
    (copy / "replay.json").write_text(json.dumps({"path": str(copy / "replay_on_disk" / "copy")}))
    with RunFolder(copy).lock():
        run_shoal("clean", "--runs", runs)
        assert brought.is_dir()
    (tmp_path / "spelt").symlink_to(runs)
    out = run_shoal("clean", "--runs", tmp_path / "spelt").out
    assert not brought.exists() and "dead" in next(line for line in out.splitlines() if str(brought) in line)
    assert (original / "replay_on_disk" / "failed").is_dir() and (copy / "replay_on_disk" / "copy").is_dir()


def test_nothing_behind_a_link_is_cleaned(run_shoal: Shoal, memory: Path, tmp_path: Path) -> None:
    (tmp_path / "precious" / "inside").mkdir(parents=True)
    for run in ("solved", "failed"):
        (tmp_path / "runs" / run / "replay_on_disk").symlink_to(tmp_path / "precious")
    run_shoal("clean", "--runs", tmp_path / "runs", "--all", "--yes")
    assert (tmp_path / "precious" / "inside").is_dir()


def test_pipes_are_not_waited_for(run_shoal: Shoal, memory: Path, tmp_path: Path) -> None:
    for run in ("solved", "kept"):
        (tmp_path / "runs" / run / "config.yaml").unlink()
        os.mkfifo(tmp_path / "runs" / run / "config.yaml")
    (tmp_path / "runs" / "solved" / "summary.json").unlink()
    os.mkfifo(tmp_path / "runs" / "solved" / "summary.json")
    assert run_shoal("clean", "--dry-run").code == 0


def test_nothing_held(run_shoal: Shoal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "SHARED_MEMORY", tmp_path / "shm")
    assert run_shoal("clean").out == "No replay is held: nothing to free.\n"
