"""Which run owns a replay. A run uses and frees only a replay that it has signed.

`replay.json` in the run folder and `owner.json` in the replay folder hold the same random mark; `owner.json` also names
the run folder. If a run folder was moved, its old path is gone, and the run signs again. If it was copied, the original
still exists and keeps the replay; the copy continues with its weights only. A run holds a lock in the replay folder
while it uses the replay, even if the run folder is renamed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

from shoal.errors import RunInUse
from shoal.files import is_own_folder, make_private, read_object
from shoal.replay.storage import choose_folder
from shoal.runtime.run_folder import RunFolder

ON_DISK = "replay_on_disk"


class ReplayFolder:
    """A run's replay folder, locked until the end of a `with`."""

    def __init__(self, run: RunFolder, path: Path, mark: str) -> None:
        """Raises RunInUse if another process uses it, FileNotFoundError if it is gone."""
        self.path, self._run, self.mark = path, run, mark
        self._lock = RunFolder(path).lock()

    def sign(self) -> None:
        """Writes both documents if they are out of date: the run folder may have been moved."""
        for folder, name, content in (
            (RunFolder(self.path), "owner.json", {"run": str(self._run.path), "mark": self.mark}),
            (self._run, "replay.json", {"path": str(self.path), "mark": self.mark}),
        ):
            if read_object(folder.path / name) != content:
                folder.write_json(name, content)

    def free(self) -> None:
        """Removes the replay, unless another run has signed it."""
        if read_object(self.path / "owner.json").get("mark") == self.mark:
            shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> ReplayFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def new_replay(run: RunFolder, nbytes: int, requested: Path | None, mark: str | None = None) -> ReplayFolder:
    """A new folder for a run's replay, where there is space for `nbytes`. `mark`: the run's, if it has one already."""
    path = choose_folder(run.path.name, nbytes, requested, run.path / ON_DISK)
    return ReplayFolder(run, path, mark or uuid.uuid4().hex)


def earlier_replay(run: RunFolder) -> tuple[ReplayFolder | None, str]:
    """The replay of an earlier execution; or None, and why there is none that this run may use."""
    path, mark = _pointer(run)
    if not any(os.path.lexists(path / name) for name in ("ledger.bin", "owner.json")):  # one may be damaged or lost
        return None, "the replay of this run is gone (freed, or the machine was restarted)"
    if why := _not_ours(run, path, mark) or not_safe(path):
        return None, f"{path} is not used: {why}"
    try:
        replay = ReplayFolder(run, path, str(mark or uuid.uuid4().hex))
    except RunInUse as error:
        return None, f"{path} is not used: {error}"
    except FileNotFoundError:
        return None, "the replay of this run was removed just now"
    if why := _not_ours(run, path, mark):  # another process may have signed it before we had the lock
        with replay:
            return None, f"{path} is not used: {why}"
    return replay, ""


def own_replay(run: RunFolder) -> Path | None:
    """Where a run's replay is, without locking it; None if the run has none of its own."""
    path, mark = _pointer(run)
    return path if is_own_folder(path) and not _not_ours(run, path, mark) else None


def _pointer(run: RunFolder) -> tuple[Path, Any]:
    """Path and mark of the replay, as `replay.json` says."""
    content = read_object(run.replay_json)
    path = Path(str(content.get("path") or run.path / ON_DISK))
    moved_with_its_run = run.path / ON_DISK / path.name
    return path if os.path.exists(path) else moved_with_its_run, content.get("mark")


def free_earlier_replay(run: RunFolder) -> None:
    """Removes a run's replay, if it may."""
    replay, _ = earlier_replay(run)
    if replay is not None:
        with replay:
            replay.free()


def _not_ours(run: RunFolder, path: Path, mark: Any) -> str:
    """Why a run may not use a replay; empty when it may."""
    owner = read_object(path / "owner.json")
    named = owner_of(path)
    if not owner and os.path.lexists(path / "owner.json"):
        return "its owner.json is damaged"
    if named is None or owner.get("mark") != mark:
        return "this run has not signed it"
    if run.path.is_relative_to(path):
        return "it is no replay: this run lies in it"
    # Replays of earlier versions have no mark: a moved run cannot prove that they are its own.
    if not _same(named, run.path) and (mark is None or read_object(named / "replay.json").get("mark") == mark):
        return f"it belongs to {named}, and this run is a copy of it"
    return ""


def not_safe(path: Path) -> str:
    """Why a replay cannot be trusted; empty when it can. Makes it private."""
    # First, so that nobody else can change what is checked next.
    if not make_private(path):
        return "it is a link, somebody else's, or others can write into it"
    if any(one.is_symlink() for one in path.rglob("*")):
        return "there are links in it"
    return ""


def owner_of(replay: Path) -> Path | None:
    """The run folder that signed a replay."""
    named = read_object(replay / "owner.json").get("run")
    return Path(named) if isinstance(named, str) and named else None


def in_use(replay: Path, run: Path | None = None) -> bool:
    """Whether a live process uses it. Its own lock says so even if the run folder was renamed.

    Args:
        replay: its folder.
        run: the run it belongs to, if the caller knows better than its owner.json.
    """
    run = run or owner_of(replay)
    for folder in (replay, *([] if run is None else [run])):
        with contextlib.suppress(OSError):
            if RunFolder(folder).owner() is not None:
                return True
    return False


def _same(one: Path, other: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return one == other or os.path.samefile(one, other)
    return False
