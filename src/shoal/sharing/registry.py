"""Registry: who shares which shards with whom. A folder, nothing to start.

    <registry>/registry.json            sizes and times, written once
    <registry>/<buffer_id>/entry.json   whose buffer, what its rows mean, where its shards are
    <registry>/<buffer_id>/alive        touched every few seconds by the buffer's process
    <registry>/<buffer_id>/shard/       the rows (a Shoal run's own shards lie elsewhere; the entry says where)

A buffer that has been silent for `stale_seconds` is removed by whoever notices, with its rows: the folder is renamed
first, so that only one process removes it and nobody finds half of it. Rows that a reader still maps stay readable.

Runs on other machines are not reached by a folder. They will have a registry of the same methods on Ray.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from shoal.errors import ConfigError, ShoalError
from shoal.replay.storage import sharing_folder
from shoal.sharing.description import Description

STALE_SECONDS = 300.0
MIN_BUFFER_SIZE = 1000
REGISTRY = "SHOAL_REGISTRY"
"""Environment variable: the registry's folder. `shoal share` sets it for its runs."""
BUFFER_ID, RUN_ID, ENV_ID = "SHOAL_BUFFER_ID", "SHOAL_RUN_ID", "SHOAL_ENV_ID"
_FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """One buffer of a registry."""

    buffer_id: str
    run_id: str
    algorithm: str
    pid: int
    description: Description | None = None
    """None until its first row is written."""
    shards: tuple[Path, ...] = ()
    made: float = 0.0
    """When its shards were made: new ones at the old place are another buffer."""


class Registry:
    """A folder of buffers. Safe to use from any number of processes; picklable, as it holds only the path."""

    def __init__(self, path: Path) -> None:
        """Opens one that exists; `create_distributed_registry` makes one."""
        self.path = Path(path).resolve()
        try:
            settings: dict[str, Any] = json.loads((self.path / "registry.json").read_text())
            self.max_buffer_size = int(settings["max_buffer_size"])
            self.min_buffer_size = int(settings["min_buffer_size"])
            self.stale_seconds = float(settings["stale_seconds"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{self.path} is no registry ({error}). Make one with create_distributed_registry(path=...)."
            ) from error
        self._beating: dict[str, threading.Event] = {}
        self._owner = False

    def register_buffer(self, run_id: str, algorithm: str, env_id: str = "") -> str:
        """Announces a buffer; returns its id. Its first row makes it visible to others."""
        _require_name("run_id", run_id)
        buffer_id = f"{run_id}_{time.time_ns() // 1_000_000}_{uuid.uuid4().hex[:4]}"
        self.announce(Entry(buffer_id, run_id, algorithm, os.getpid()), env_id)
        self.keep_alive(buffer_id)  # from now on: its first row may be long in coming
        return buffer_id

    def announce(self, entry: Entry, env_id: str = "") -> None:
        """Writes an entry, new or changed, whole or not at all."""
        folder = self.folder(entry.buffer_id)
        folder.mkdir(exist_ok=True)
        (folder / "alive").touch()
        described = None if entry.description is None else entry.description.to_json()
        data = {"run_id": entry.run_id, "algorithm": entry.algorithm, "pid": entry.pid, "env_id": env_id}
        data |= {"description": described, "shards": [str(path) for path in entry.shards], "made": entry.made}
        building = folder / f"entry.json.{os.getpid()}"
        building.write_text(json.dumps(data, indent=1))
        building.rename(folder / "entry.json")

    def deregister_buffer(self, buffer_id: str) -> None:
        """Removes a buffer and its rows; that of a buffer that is gone already does nothing."""
        self._quiet(buffer_id)
        self._remove(self.folder(buffer_id))

    def keep_alive(self, buffer_id: str) -> None:
        """Touches a buffer's sign of life in a thread, until it is deregistered or this process ends."""
        if buffer_id in self._beating:
            return
        stop = self._beating[buffer_id] = threading.Event()
        alive = self.folder(buffer_id) / "alive"

        def beat() -> None:
            while not stop.wait(min(10.0, self.stale_seconds / 5)):
                try:
                    os.utime(alive)
                except OSError:  # removed: by its owner, or by others who did not hear of it for too long
                    return

        threading.Thread(target=beat, name="shoal-alive", daemon=True).start()

    def entries(self, *, sweep: bool = True) -> Iterator[Entry]:
        """All buffers that gave a sign of life lately; with `sweep` the others are removed on the way."""
        with contextlib.suppress(FileNotFoundError):
            for folder in sorted(self.path.iterdir()):
                if folder.is_dir():
                    with contextlib.suppress(FileNotFoundError):
                        # Nobody removes himself: a machine that slept wakes here before the thread that beats.
                        if folder.name not in self._beating and self._silence(folder) > self.stale_seconds:
                            if sweep:
                                self._remove(folder)
                        elif not folder.name.startswith(".") and (entry := self.entry(folder.name)) is not None:
                            yield entry

    def entry(self, buffer_id: str) -> Entry | None:
        """One buffer; None when there is no such, or it is just being written."""
        try:
            data: dict[str, Any] = json.loads((self.folder(buffer_id) / "entry.json").read_text())
            described = data["description"]
            description = None if described is None else Description.from_json(described)
            shards = tuple(Path(path) for path in data["shards"])
            who = (buffer_id, str(data["run_id"]), str(data["algorithm"]), int(data["pid"]))
            return Entry(*who, description, shards, float(data["made"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def damaged(self) -> list[str]:
        """Buffers whose entry is there and cannot be read."""
        with contextlib.suppress(FileNotFoundError):
            names = [path.name for path in self.path.iterdir() if not path.name.startswith(".")]
            bad = [name for name in names if (self.path / name).is_dir() and self.entry(name) is None]
            return [name for name in bad if (self.path / name / "entry.json").is_file()]
        return []

    def env_id(self, buffer_id: str) -> str:
        """The environment a buffer was registered with; empty when none was named."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads((self.folder(buffer_id) / "entry.json").read_text())["env_id"])
        return ""

    def folder(self, buffer_id: str) -> Path:
        """Where a buffer's entry and rows are."""
        _require_name("buffer_id", buffer_id)
        return self.path / buffer_id

    def get_buffer_stats(self) -> dict[str, dict[str, Any]]:
        """Run, algorithm and rows of every buffer."""
        from shoal.replay import ShardReader

        stats = {}
        for entry in self.entries():
            rows = 0
            with contextlib.suppress(ShoalError, OSError):
                rows = sum(min(one.head, one.rows) * one.lanes for one in map(ShardReader, entry.shards))
            stats[entry.buffer_id] = {"run_id": entry.run_id, "algorithm": entry.algorithm, "rows": rows}
        return stats

    def stop(self) -> None:
        """Ends this process's part; the process that made the registry removes it, with all its buffers."""
        for buffer_id in list(self._beating):
            self._quiet(buffer_id)
        if self._owner:
            self._remove(self.path)

    def _quiet(self, buffer_id: str) -> None:
        if stop := self._beating.pop(buffer_id, None):
            stop.set()

    def _silence(self, folder: Path) -> float:
        """Seconds since a sign of life; of a folder that is half made or half removed, since it was changed."""
        sign = folder / "alive"
        hidden = folder.name.startswith(".")
        return time.time() - (sign if not hidden and sign.exists() else folder).stat().st_mtime

    def _remove(self, folder: Path) -> None:
        away = folder.with_name(f".{folder.name.lstrip('.')}-{uuid.uuid4().hex[:8]}")
        with contextlib.suppress(OSError):  # somebody else was first
            folder.rename(away)
            shutil.rmtree(away, ignore_errors=True)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A model saved with a registry is loaded long after that is gone, too: `exists` says so.
        self.path, self._beating, self._owner = state["path"], {}, False
        self.max_buffer_size, self.min_buffer_size, self.stale_seconds = 1_000_000, MIN_BUFFER_SIZE, STALE_SECONDS
        if self.exists:
            self.__init__(self.path)  # type: ignore[misc]

    @property
    def maker_lives(self) -> bool:
        """Whether the process that made it still runs on this machine."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return process_lives(int(json.loads((self.path / "registry.json").read_text())["pid"]))
        return False

    @property
    def exists(self) -> bool:
        """Whether the folder is still there."""
        return (self.path / "registry.json").is_file()


def create_distributed_registry(
    max_buffer_size: int = 1_000_000,
    *,
    path: Path | str | None = None,
    min_buffer_size: int = MIN_BUFFER_SIZE,
    stale_seconds: float = STALE_SECONDS,
) -> Registry:
    """Makes a registry, or joins the one at `path`.

    Args:
        max_buffer_size: most rows a buffer may hold.
        path: its folder; by default a new one on shared memory. Other processes join with `connect_registry(path)`.
        min_buffer_size: rows a peer must have before it is sampled.
        stale_seconds: a buffer silent for so long is removed.
    """
    if max_buffer_size < 1 or min_buffer_size < 1 or not stale_seconds > 0:
        raise ConfigError(
            "max_buffer_size and min_buffer_size must be at least 1 and stale_seconds positive; "
            f"got {max_buffer_size}, {min_buffer_size} and {stale_seconds}."
        )
    folder = sharing_folder(f"registry-{uuid.uuid4().hex[:8]}") if path is None else Path(path)
    if _holds_other_files(folder):
        raise ConfigError(
            f"{folder} holds other files, and a registry removes all that is in its folder: name a new one."
        )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    settings: dict[str, Any] = {
        "format": _FORMAT,
        "max_buffer_size": max_buffer_size,
        "min_buffer_size": min_buffer_size,
    }
    settings |= {"stale_seconds": stale_seconds, "pid": os.getpid()}
    building = folder / f".registry.json.{uuid.uuid4().hex[:8]}"
    building.write_text(json.dumps(settings, indent=1))
    try:
        os.link(building, folder / "registry.json")  # unlike a rename it never replaces: the first one makes it
        made = True
    except FileExistsError:
        made = False
    finally:
        building.unlink()
    registry = Registry(folder)
    registry._owner = made
    return registry


def _holds_other_files(folder: Path) -> bool:
    if not folder.is_dir() or (folder / "registry.json").is_file():
        return False
    # What another process that makes the same registry just now has there does not count.
    return any(not one.name.startswith((".registry.json.", "registry.json")) for one in folder.iterdir())


def connect_registry(path: Path | str | None = None) -> Registry:
    """Joins a registry that another process made; without a path, the one that SHOAL_REGISTRY names."""
    named = path or os.environ.get(REGISTRY)
    if not named:
        raise ConfigError(f"No registry was named: give its path, or set {REGISTRY} to it.")
    return Registry(Path(named))


def _require_name(what: str, name: str) -> None:
    """Names become folders."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=+@-]{0,150}", name):
        raise ConfigError(f"{what} = {name!r} cannot be a folder's name: use letters, digits, '.', '-', '_', '='.")


def process_lives(pid: int) -> bool:
    """Whether a process of this machine is still at work; one that ended and was not yet waited for is not."""
    with contextlib.suppress(psutil.Error):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False
