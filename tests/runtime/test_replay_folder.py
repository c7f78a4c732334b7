"""Whose a replay is: of moved and copied runs, of wrong pointers, of folders that others could change."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.files import read_json
from shoal.replay import storage
from shoal.runtime import run_folder
from shoal.runtime.replay_folder import earlier_replay, free_earlier_replay, in_use, new_replay
from shoal.runtime.run_folder import RunFolder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run with a replay that nobody uses at the moment."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(storage, "SHARED_MEMORY", tmp_path / "shm")
    return _made(tmp_path / "runs" / "a")


def _made(path: Path, requested: Path | None = None) -> RunFolder:
    path.mkdir(parents=True)
    run = RunFolder(path)
    with new_replay(run, 1, requested) as replay:
        replay.sign()
        (replay.path / "ledger.bin").touch()
    return run


def _replay(run: RunFolder) -> Path:
    return Path(read_json(run.path / "replay.json")["path"])


def _why(run: RunFolder) -> str:
    """Why there is none; what is there stays."""
    path = _replay(run)
    before = sorted(path.rglob("*"))
    replay, why = earlier_replay(run)
    assert replay is None
    free_earlier_replay(run)
    assert sorted(path.rglob("*")) == before
    return why


def _is_taken(run: RunFolder) -> Path:
    replay, why = earlier_replay(run)
    assert replay is not None, why
    with replay:
        replay.sign()
        assert in_use(replay.path)
        assert json.loads((replay.path / "owner.json").read_text())["run"] == str(run.path)
    assert not in_use(replay.path)
    return replay.path


def test_a_run_finds_its_own(run: RunFolder) -> None:
    assert _is_taken(run) == _replay(run)
    link = run.path.with_name("latest")
    link.symlink_to("a")
    assert _is_taken(RunFolder(link)) == _replay(run)
    free_earlier_replay(run)
    assert not _replay(run).exists()


def test_a_moved_run_signs_again(run: RunFolder) -> None:
    moved = RunFolder(run.path.rename(run.path.with_name("b")))
    assert _is_taken(moved) == _replay(moved)
    run.checkpoints.mkdir(parents=True)  # as a run does that was renamed while it was alive
    assert _is_taken(moved) == _replay(moved)


def test_a_replay_on_disk_moves_with_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "SHARED_MEMORY", tmp_path / "none")
    run = _made(tmp_path / "a")
    assert _replay(run).is_relative_to(run.path)
    moved = RunFolder(run.path.rename(tmp_path / "b"))
    assert _is_taken(moved) == _replay(moved) == tmp_path / "b" / "replay_on_disk" / "a"


def test_a_copy_leaves_the_replay_to_the_original(run: RunFolder) -> None:
    copy = RunFolder(Path(shutil.copytree(run.path, run.path.with_name("b"))))
    assert f"it belongs to {run.path}, and this run is a copy of it" in _why(copy)
    assert _is_taken(run) == _replay(run)
    with new_replay(copy, 1, None) as own:
        own.sign()
    assert _replay(copy) == own.path != _replay(run)


def test_a_pointer_to_another_runs_replay_is_not_followed(run: RunFolder, tmp_path: Path) -> None:
    victim = _made(tmp_path / "runs" / "victim")
    (run.path / "replay.json").write_text(
        json.dumps({**read_json(run.path / "replay.json"), "path": str(_replay(victim))})
    )
    assert "this run has not signed it" in _why(run)
    shutil.rmtree(victim.path)  # nor when the other run is gone
    assert "this run has not signed it" in _why(run)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"path": 3}', '{"path": ""}', "[" * 100_000, '{"path": "\\u0000"}']
)
def test_a_damaged_pointer_is_no_replay(run: RunFolder, content: str) -> None:
    (run.path / "replay.json").write_text(content)
    replay, why = earlier_replay(run)
    assert replay is None and "is gone" in why


def test_folders_that_nobody_signed_are_not_touched(run: RunFolder) -> None:
    for content in ('{"run": ""}', '{"run": 3}', '{"run": "/x", "mark": "another"}'):
        (_replay(run) / "owner.json").write_text(content)
        assert "this run has not signed it" in _why(run)
    for content in (b"", b"{", b"[]", b"\xff\x00"):
        (_replay(run) / "owner.json").write_bytes(content)
        assert "its owner.json is damaged" in _why(run)


def test_what_holds_the_run_is_no_replay(run: RunFolder) -> None:
    """A run folder from somebody else may come with files beside it."""
    for place in (run.path.parent, run.path):
        (place / "ledger.bin").touch()
        (place / "owner.json").write_text(json.dumps({"run": "/nowhere", "mark": "his"}))
        (run.path / "replay.json").write_text(json.dumps({"path": str(place), "mark": "his"}))
        assert "this run lies in it" in _why(run)


def test_pipes_in_place_of_documents_are_not_waited_for(run: RunFolder) -> None:
    replay = _replay(run)
    (replay / "owner.json").unlink()
    os.mkfifo(replay / "owner.json")
    assert "its owner.json is damaged" in _why(run)
    run.replay_json.unlink()
    os.mkfifo(run.replay_json)
    assert earlier_replay(run)[0] is None


def test_replays_of_earlier_versions_are_known_by_their_path(run: RunFolder) -> None:
    (run.path / "replay.json").write_text(json.dumps({"path": str(_replay(run))}))
    (_replay(run) / "owner.json").write_text(json.dumps({"run": str(run.path), "pid": 1}))
    moved = RunFolder(run.path.rename(run.path.with_name("b")))
    assert "is a copy of it" in _why(moved)
    assert _is_taken(RunFolder(moved.path.rename(run.path))) == _replay(run)
    assert read_json(run.path / "replay.json")["mark"]


def test_links_in_a_replay_are_not_followed(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (_replay(run) / "shard_000").mkdir()
    (_replay(run) / "shard_000" / "obs.bin").symlink_to(tmp_path / "precious")
    assert "there are links in it" in _why(run)


def test_a_replay_that_others_can_change_is_not_used(run: RunFolder) -> None:
    _replay(run).chmod(0o777)
    assert "others can write into it" in _why(run)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a second user")
def test_a_replay_of_another_user_is_not_used(run: RunFolder) -> None:
    shutil.chown(_replay(run), "nobody")
    assert "somebody else's" in _why(run)


HOLDER = """
import sys
from pathlib import Path
from shoal.runtime.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).lock():
    sys.stdout.write("held\\n")
    sys.stdout.flush()
    sys.stdin.read()
"""


def test_a_replay_in_use_is_left_alone_whatever_its_run_is_called(run: RunFolder) -> None:
    """The original was renamed while it was alive, so that its copy looks like a run that was moved."""
    copy = RunFolder(Path(shutil.copytree(run.path, run.path.with_name("b"))))
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(_replay(run))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(run_folder.__file__).parents[2])},
    )
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        run.path.rename(run.path.with_name("c"))
        assert in_use(_replay(copy))
        assert f"in use by process {holder.pid} on" in _why(copy)
